"""Samplers that gen does not know: called with all rows of the batch; rows go on from the ancestors that they name."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gen.completions import Completion
from gen.devices import to_device
from gen.errors import ArgumentError, GenError
from gen.loop.replay.host_calls import host_call
from gen.loop.results.ring import StepResults, packed
from gen.loop.results.texts import Text
from gen.loop.searches.search import Given, Search
from gen.requests.request import Request
from gen.samplers import MultinomialSampler
from gen.samplers.base import Sampler, check_sampled


class UserSampling(Search):
    """The search of a user's own sampler. A row goes on from the ancestor that the sampler names, if that is a row of
    the same request; otherwise it goes on from itself, and the host raises an error when it sees the ancestor.

    The sampler is called at every step, between the recorded parts of the step, unless it has an attribute `replayable`
    that is True, or is one of gen's own: then it is recorded with the step.
    """

    def __init__(self, sampler: Sampler, count: int, device: torch.device) -> None:
        self._sampler = sampler
        self._replayable = type(sampler) is MultinomialSampler or getattr(sampler, "replayable", False) is True
        self.reorders, self.draws = sampler.samples > 1, True
        token_ids, ancestors = (torch.zeros(shape, dtype=torch.int64, device=device) for shape in ((count, 1), count))
        self._weights = torch.zeros(count, dtype=torch.float32, device=device)
        self.results = packed((token_ids, self._weights, ancestors))
        self._token_ids, self._logprobs, self._ancestors = self.results

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        each = (rows.stop - rows.start) // len(requests)
        begun = torch.tensor(weights, dtype=torch.float32, device="cpu").repeat_interleave(each)
        self._weights[rows] = to_device(begun, self._weights.device)

    def choose(self, given: Given) -> Tensor | None:
        """See `gen.loop.searches.search.Search.choose`; the sampler is called once, with the tokens that surely fit.

        Host sync: those of the sampler.
        """
        logits, here, keys, _, room, _ = given
        assert isinstance(here, slice) and keys is not None  # it draws, and does not pick; tells mypy
        if room is not None:
            logits, took = room.took(logits)
            room.squeezed.copy_(took)
        followed = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        if self._replayable:
            self._sample(logits, here, keys, followed)
        else:
            results = (*(result[here] for result in self.tensors()), followed)
            host_call(self._sample, logits, here, keys, followed, results=results)
        return followed if self.reorders else None

    def _sample(self, logits: Tensor, here: slice, keys: Tensor, followed: Tensor) -> None:
        """Let the sampler choose, and write down what it has chosen, and which rows it has `followed`."""
        before = self._weights[here]
        sampled = self._sampler.step(logits.clone(), before.clone(), keys)  # it may change or keep the clones
        check_sampled(self._sampler, sampled, logits)
        token_ids, ancestors, weights = sampled
        rows = torch.arange(len(logits), device=logits.device)
        samples = self._sampler.samples
        followed.copy_(torch.where(ancestors // samples == rows // samples, ancestors, rows))
        self._token_ids[here] = token_ids
        self._ancestors[here] = ancestors - rows
        self._logprobs[here] = weights - before.index_select(0, followed)
        self._weights[here] = weights

    def tensors(self) -> Iterable[Tensor]:
        return (*self.results, self._weights)


class UserSamplerTexts:
    """The texts of one request's rows, which may go on from one another."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts: Sequence[Text] = texts

    @property
    def ended(self) -> bool:
        """Whether all texts have ended."""
        return all(text.ended for text in self.texts)

    def take(self, results: StepResults, row: int) -> None:
        """See `gen.loop.results.texts.Taker`; if a row is squeezed, all are: the sampler may look at all of them."""
        rows = range(row, row + len(self.texts))
        ancestors = results.search[2]
        sources = [own + ancestors[own] - row for own in rows]
        if any(not 0 <= source < len(self.texts) for source in sources):
            error: GenError = ArgumentError(
                f"the sampler makes rows of a request go on from {sources}; it has rows 0 to {len(self.texts) - 1}."
            )
            for text in self.texts:
                text.error = error
            return
        if sources != [*range(len(self.texts))]:
            self.texts = [self.texts[source].fork(own.seed) for source, own in zip(sources, self.texts, strict=True)]
        squeezed = results.squeezed is not None and any(results.squeezed[row : rows.stop])
        for text, own in zip(self.texts, rows, strict=True):
            text.squeezed = text.squeezed or squeezed
            text.take(results, own)

    def completions(self) -> list[Completion]:
        return [text.completion() for text in self.texts]
