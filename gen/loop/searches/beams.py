"""Beam search in the loop: the running beams of each prompt and its finished hypotheses, on the device, in place.

Example, two beams, one letter a token: "the" and "a" run; "the cat" and "the dog" are the best two of their
continuations, so both rows go on from "the", and "the" followed by eos, if it is among the best, is finished with its
score. What a hypothesis says is not kept: the host follows it back through the tokens and parents of every step.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gen.completions import Completion
from gen.devices import to_device
from gen.errors import GenError
from gen.loop.results.ring import StepResults, packed
from gen.loop.results.texts import Text, nothing_left
from gen.requests.request import Request
from gen.samplers import BeamSearchSampler
from gen.stages.room import Room


class _Candidates(NamedTuple):
    """Continuations of each prompt's beams, best first, (prompts, count) each: see `BeamSearchSampler.candidates`.

    Attributes:
        ended: whether the token ends the text.
    """

    token_ids: Tensor
    parents: Tensor
    weights: Tensor
    ended: Tensor

    @property
    def running(self) -> Tensor:
        """The weights of those that have not ended; -inf for the others."""
        return self.weights.masked_fill(self.ended, -math.inf)


class Beams:
    """The search of a beam search sampler; all requests have equal ones. Each has as many rows as beams, side by side.

    What is finished is frozen: further steps change nothing. The texts and scores are those of transformers.
    """

    reorders, draws = True, False

    def __init__(self, sampler: BeamSearchSampler, count: int, device: torch.device) -> None:
        self._sampler, self._beams, self._device = sampler, sampler.beams, device
        self._count = count

        def row(dtype: torch.dtype, value: float) -> Tensor:
            return torch.full((count,), value, dtype=dtype, device=device)

        self.results = packed(
            (
                torch.zeros((count, 1), dtype=torch.int64, device=device),
                row(torch.float32, -math.inf),
                row(torch.int64, 0),
                row(torch.bool, True),
                row(torch.float64, -math.inf),  # a penalty may make scores small
                row(torch.float32, -math.inf),
                *(row(torch.int64, 0) for _ in range(3)),
            )
        )
        self._token_ids, self._weights, self._parents, self._done, self._scores, *ends = self.results
        self._ends, self._last_tokens, self._last_parents, self._steps = ends
        self._limits = torch.ones((count, 1), dtype=torch.int64, device=device)
        self._eos = torch.full((count, 1), -1, dtype=torch.int64, device=device)
        self._typed = torch.zeros((count, 1), dtype=torch.bool, device=device)

    def begin(self) -> None:
        """See `gen.loop.searches.search.Search.begin`."""

    def key(self) -> Hashable:
        """See `gen.loop.searches.search.Search.key`."""
        return self._eos.shape[1]

    def warm_up(self, logits: Sequence[Tensor], requests: Sequence[Request]) -> None:
        """See `gen.loop.searches.search.Search.warm_up`: it has no kernels of its own."""

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        """See `gen.loop.searches.search.Search.admit`."""
        widest = max(len(request.ends) for request in requests)
        if widest > self._eos.shape[1]:
            wider = 1 << (widest - 1).bit_length()
            self._eos = torch.nn.functional.pad(self._eos, (0, wider - self._eos.shape[1]), value=-1)
        eos = [[*ids, *[-1] * (self._eos.shape[1] - len(ids))] for ids in (one.ends for one in requests)]
        limits = [[request.limit] for request in requests]
        typed = [[request.constraint is not None] for request in requests]
        for table, lines in ((self._eos, eos), (self._limits, limits), (self._typed, typed)):
            given = to_device(torch.tensor(lines, dtype=table.dtype, device="cpu"), self._device)
            table[rows] = given.repeat_interleave(self._beams, 0)
        self._done[rows] = False
        for table in (self._weights, self._scores, self._ends):
            table[rows] = -math.inf
        # the beams of a prompt are equal at the start: one is continued
        self._weights[rows.start : rows.stop : self._beams] = 0.0

    def choose(
        self, logits: Tensor, here: slice, keys: Tensor | None, generated: Tensor, room: Room | None = None
    ) -> Tensor:
        """See `gen.loop.searches.search.Search.choose`; where the search would go on with what does not fit, it goes on
        from the candidates that do.
        """
        beams = self._beams
        step = generated[::beams]  # (prompts, 1): how many tokens there are already
        first = torch.arange(0, len(logits), beams, device=logits.device).unsqueeze(1)
        last = self._limits[here][::beams] <= step + 1
        found = self._candidates(logits, here)
        if room is not None:
            best, kept = found.running.topk(beams)
            fits = room.fits(found.token_ids.gather(1, kept), first + found.parents.gather(1, kept))
            took = (~fits & ~best.isneginf()).any(1, keepdim=True)
            again = self._candidates(room.logits, here)
            found = _Candidates(*(torch.where(took, new, old) for new, old in zip(again, found, strict=True)))
            over = self._over_by_itself(here, step, found)
            room.squeezed.view(-1, beams).copy_(took | last & ~over)
            last = last & ~(over & self._typed[here][::beams])
        ended = found.ended | last
        self._finish(here, step, found, ended)
        best, kept = found.weights.masked_fill(ended, -math.inf).topk(beams)
        parents = found.parents.gather(1, kept)
        self._close(here, step, best[:, :1])
        self._token_ids[here] = found.token_ids.gather(1, kept).view(-1, 1)
        self._weights[here] = best.view(-1)
        self._parents[here] = parents.view(-1)
        return (first + parents).view(-1)

    def tensors(self) -> Iterable[Tensor]:
        """See `gen.loop.searches.search.Search.tensors`."""
        return (*self.results, self._limits, self._eos)

    def _candidates(self, logits: Tensor, here: slice) -> _Candidates:
        """The best continuations, so many that enough go on whichever of them end."""
        eos = self._eos[here][:: self._beams]
        count = (1 + eos.shape[1]) * self._beams
        token_ids, parents, weights = self._sampler.candidates(logits, self._weights[here], count)
        return _Candidates(token_ids, parents, weights, (token_ids.unsqueeze(-1) == eos.unsqueeze(1)).any(-1))

    def _new_scores(self, here: slice, step: Tensor, found: _Candidates, ended: Tensor) -> Tensor:
        """The scores of candidates that have ended; -inf for those that are there to go on with: (prompts, count)."""
        may_end = ended & ~self._done[here][:: self._beams].unsqueeze(1)
        may_end[:, self._beams :] = False
        return torch.where(may_end, found.weights.double() / self._length_factor(step + 1), -math.inf)

    def _finish(self, here: slice, step: Tensor, found: _Candidates, ended: Tensor) -> None:
        """Merge the candidates that have ended, (prompts, count) bool, into what is finished, and keep the best."""
        scores = self._new_scores(here, step, found, ended)
        new = (scores, found.weights, found.token_ids, found.parents, step.expand_as(scores))
        pools = (self._scores, self._ends, self._last_tokens, self._last_parents, self._steps)
        old = [pool[here].view(-1, self._beams) for pool in pools]
        both = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)]
        best, kept = both[0].topk(self._beams)
        old[0].copy_(best)
        for pool, values in zip(old[1:], both[1:], strict=True):
            pool.copy_(values.gather(1, kept))

    def _close(self, here: slice, step: Tensor, best_running: Tensor) -> None:
        """Mark the prompts that are done; the best beam that goes on has the weight best_running, (prompts, 1)."""
        at_limit = self._limits[here][:: self._beams] <= step + 1
        over = self._over(here, step, self._scores[here].view(-1, self._beams), best_running)
        self._done[here].view(-1, self._beams).logical_or_(over | at_limit)

    def _over(self, here: slice, step: Tensor, scores: Tensor, best_running: Tensor) -> Tensor:
        """Whether no running beam can improve on what is finished, whose scores these are: (prompts, 1) bool."""
        early = self._sampler.early_stopping
        full = ~scores.isneginf().any(1, keepdim=True)
        to_the_limit = early == "never" and self._sampler.length_penalty > 0
        length = self._limits[here][:: self._beams] if to_the_limit else step + 1
        hopeless = best_running.double() / self._length_factor(length) <= scores.amin(1, keepdim=True)
        over = full & hopeless | best_running.isneginf()
        return over | full if early is True else over

    def _over_by_itself(self, here: slice, step: Tensor, found: _Candidates) -> Tensor:
        """Whether the search would be done at this step with any limit: (prompts, 1) bool."""
        new = self._new_scores(here, step, found, found.ended)
        scores = torch.cat((self._scores[here].view(-1, self._beams), new), 1).topk(self._beams).values
        return self._over(here, step, scores, found.running.amax(1, keepdim=True))

    def _length_factor(self, length: Tensor) -> Tensor:
        """length ** length_penalty, float64."""
        return length.double().pow(self._sampler.length_penalty)


class BeamTexts:
    """What one prompt's search finds, on the host: its steps, and the hypotheses that they end in.

    Args:
        beginning: a text of the request's that has taken nothing yet.
    """

    texts: Sequence[Text] = ()  # they are known at the end alone

    def __init__(self, beginning: Text) -> None:
        self._beginning, self._request = beginning, beginning.request
        self._beams = self._request.sampler.samples
        self._error: GenError | None = None
        sampler = self._request.sampler
        # how good a text can yet become is reckoned with the limit: with a larger one a search with beams left goes on
        self._ends_by_limit = (
            isinstance(sampler, BeamSearchSampler) and sampler.early_stopping == "never" and sampler.length_penalty > 0
        )
        self._squeezed = False
        self._steps: list[tuple[Sequence[int], Sequence[int], Sequence[float]]] = []  # tokens, parents, weights of each
        self._hypotheses: list[tuple[float, float, int, int, int]] | None = [] if beginning.ended else None

    @property
    def ended(self) -> bool:
        """Whether the search is done."""
        return self._hypotheses is not None

    def take(self, results: StepResults, row: int) -> None:
        """See `gen.loop.results.taker.Taker`."""
        if self.ended:
            return
        rows = slice(row, row + self._beams)
        token_ids, weights, parents, done, *pools = (result[rows] for result in results.search)
        self._steps.append(([token_id for [token_id] in token_ids], parents, weights))
        if results.squeezed is not None and results.squeezed[row]:
            self._squeezed = True
        if done[0]:
            self._squeezed = self._squeezed or (self._ends_by_limit and max(weights) > -math.inf)
            self._hypotheses = [pool for pool in zip(*pools, strict=True) if pool[0] > -math.inf]
            if not self._hypotheses:
                self._error = nothing_left(f"prompt {self._request.number}", len(self._steps) - 1)

    def completions(self) -> list[Completion]:
        """The finished hypotheses, best first; fewer than beams where fewer texts can be.

        Held to a constraint, beams may spell one text in several ways: then the best of these is there alone.

        Raises:
            GenError: what went wrong.
        """
        if self._error is not None:
            raise self._error
        assert self._hypotheses is not None  # the loop ends when it has; tells mypy
        made = [self._trace(*hypothesis) for hypothesis in self._hypotheses]
        if not self._steps:
            made = [self._beginning.completion()] * self._beams
        if self._request.constraint is None:
            return made
        best: dict[str, Completion] = {}
        for completion in made:
            best.setdefault(completion.text, completion)
        return [*best.values()]

    def _trace(self, score: float, weight: float, last_token: int, parent: int, step: int) -> Completion:
        """Follow a hypothesis back from its last token to the prompt."""
        token_ids, weights, beam = [last_token], [weight], parent
        for tokens_at, parents_at, weights_at in reversed(self._steps[:step]):
            token_ids.append(tokens_at[beam])
            weights.append(weights_at[beam])
            beam = parents_at[beam]
        weights.append(0.0)
        logprobs = [later - earlier for later, earlier in pairwise(weights)]
        text = self._beginning.fork(self._beginning.seed)
        text.squeezed = self._squeezed and self._request.constraint is not None
        for token_id, logprob in zip(token_ids[::-1], logprobs[::-1], strict=True):
            text.push(token_id, logprob)
        return text.completion(score)
