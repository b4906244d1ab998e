"""Beam search in the loop: the running beams of each prompt and its finished hypotheses, on the device, in place.

Example with two beams and one word a token: "the" and "a" run. The best two of their continuations are "the cat" and
"the dog", so both rows go on from "the". If "the" followed by eos is among the best, it is finished, with its score.
The device only keeps scores; the host gets the tokens and parents of every step, and finds from them the text of each
hypothesis.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from ctypes import c_float
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gen.completions import Completion
from gen.devices import to_device
from gen.loop.results.ring import StepResults, packed
from gen.loop.results.texts import Text, nothing_left
from gen.loop.searches.search import Given, Search
from gen.requests.request import Request
from gen.samplers import BeamSearchSampler


class _Candidates(NamedTuple):
    """Continuations of each prompt's beams, best first, (prompts, count) each: see `BeamSearchSampler.candidates`."""

    token_ids: Tensor
    parents: Tensor
    weights: Tensor

    def running(self, ended: Tensor) -> Tensor:
        """The weights of the candidates that have not ended; -inf for the others."""
        return self.weights.masked_fill(ended, -math.inf)


class Beams(Search):
    """The search of beam search samplers; those of all requests are equal. Each request has a row for each beam, side
    by side.

    Results after the step at which a prompt is done mean nothing. Texts and scores equal those of transformers.
    """

    reorders = scores = True

    def __init__(self, sampler: BeamSearchSampler, count: int, device: torch.device) -> None:
        self._sampler, self._beams, self._device = sampler, sampler.beams, device
        self._to_the_limit = sampler.early_stopping == "never" and sampler.length_penalty > 0

        def row(dtype: torch.dtype, value: float, *more: int) -> Tensor:
            return torch.full((count, *more), value, dtype=dtype, device=device)

        self.results = packed(
            (
                row(torch.int64, 0, 1),
                row(torch.float32, -math.inf),
                row(torch.int64, 0),
                row(torch.bool, True),
                row(torch.float64, -math.inf),  # a penalty may make scores too small for float32
                row(torch.int64, 0),
                row(torch.int64, 0, 2),
            )
        )
        _, self._weights, _, _, self._scores, _, _ = self.results
        self._last_steps, self._limit_factors = row(torch.int64, 0, 1), row(torch.float64, 1, 1)
        self._eos, self._typed = row(torch.int64, -1, 1), row(torch.bool, False, 1)
        self._first = torch.arange(0, count, self._beams, device=device).unsqueeze(1)
        self._one = torch.ones((), dtype=torch.float64, device=device)

    def key(self) -> Hashable:
        return self._eos.shape[1]

    def admit(self, rows: slice, requests: Sequence[Request], weights: Sequence[float]) -> None:
        widest = max(len(request.ends) for request in requests)
        if widest > self._eos.shape[1]:
            wider = 1 << (widest - 1).bit_length()
            self._eos = torch.nn.functional.pad(self._eos, (0, wider - self._eos.shape[1]), value=-1)
        eos = [[*ids, *[-1] * (self._eos.shape[1] - len(ids))] for ids in (one.ends for one in requests)]
        tables = (
            (self._eos, eos),
            (self._last_steps, [[request.limit - 1] for request in requests]),
            (self._limit_factors, [[self._factor_of(request.limit)] for request in requests]),
            (self._typed, [[request.constraint is not None] for request in requests]),
        )
        for table, lines in tables:
            given = to_device(torch.tensor(lines, dtype=table.dtype, device="cpu"), self._device)
            table[rows] = given.repeat_interleave(self._beams, 0)
        for scores in (self._weights, self._scores):
            scores[rows] = -math.inf
        # the beams of a prompt are equal at the start: only one of them is continued
        self._weights[rows.start : rows.stop : self._beams] = 0.0

    def choose(self, given: Given) -> Tensor:
        """See `gen.loop.searches.search.Search.choose`; if a candidate that would go on leaves too little room, the
        candidates are chosen again from the tokens that fit.

        On a GPU it launches 16 kernels beside the sampler's, for any model: each result is written where it belongs,
        without a copy.
        """
        logits, here, _, generated, room, staged = given
        assert isinstance(here, slice)  # it does not pick; tells mypy
        beams, prompts = self._beams, len(logits) // self._beams
        step, first = generated[::beams], self._first[:prompts]  # (prompts, 1): how many tokens there are already
        factor = self._factor(step)
        found = self._candidates(logits, here, staged)
        if room is not None:
            best, kept = found.running(self._ended(found, here, step)[..., :-1].any(-1)).topk(beams)
            fits = room.fits(found.token_ids.gather(1, kept), first + found.parents.gather(1, kept))
            took = (~fits & ~best.isneginf()).any(1, keepdim=True)
            again = self._candidates(room.narrow(None), here, staged)
            found = _Candidates(*(torch.where(took, new, old) for new, old in zip(again, found, strict=True)))
        ends = self._ended(found, here, step)
        if room is not None:
            limit, over = ends[..., -1], self._over_by_itself(here, factor, found, ends[..., :-1].any(-1))
            room.squeezed.view(-1, beams).copy_(took | limit[:, :1] & ~over)
            limit.logical_and_(~(over & self._typed[here][::beams]))
        ended = ends.any(-1)
        token_ids, weights, parents, done, scores, kept, last = (
            one[here].view(prompts, beams, -1).squeeze(2) for one in self.results
        )
        torch.stack((found.token_ids[:, :beams], found.parents[:, :beams]), 2, out=last)
        finished = torch.cat((scores, self._new_scores(found, ended, factor)), 1)
        torch.topk(finished, beams, out=(scores, kept))
        going_on = torch.empty_like(parents)
        torch.topk(found.running(ended), beams, out=(weights, going_on))
        torch.gather(found.token_ids, 1, going_on, out=token_ids)
        torch.gather(found.parents, 1, going_on, out=parents)
        self._over(here, factor, scores[:, -1:].expand_as(done), weights[:, :1], done)
        return (first + parents).view(-1)

    def tensors(self) -> Iterable[Tensor]:
        return (*self.results, self._last_steps, self._limit_factors, self._eos, self._typed)

    def _candidates(self, logits: Tensor, here: slice, staged: bool) -> _Candidates:
        """The best continuations: so many that enough go on, whichever of them end."""
        count = (1 + self._eos.shape[1]) * self._beams
        return _Candidates(*self._sampler.candidates(logits, self._weights[here], count, scored=staged))

    def _ended(self, found: _Candidates, here: slice, step: Tensor) -> Tensor:
        """For each candidate, whether it is each eos, and last whether it reaches the limit: (prompts, count, eos + 1)
        bool.
        """
        eos, last_steps = (table[here][:: self._beams].unsqueeze(1) for table in (self._eos, self._last_steps))
        token_ids, shape = found.token_ids.unsqueeze(2), (*found.token_ids.shape, 1)
        ends = torch.empty((*shape[:2], eos.shape[2] + 1), dtype=torch.bool, device=token_ids.device)
        torch.eq(token_ids, eos, out=ends[..., :-1])
        torch.le(last_steps.expand(shape), step.unsqueeze(2), out=ends[..., -1:])
        return ends

    def _new_scores(self, found: _Candidates, ended: Tensor, factor: Tensor) -> Tensor:
        """The scores of those of the best candidates that have ended; -inf for the others: (prompts, beams)."""
        scores = found.weights[:, : self._beams] / factor
        return torch.where(ended[:, : self._beams], scores, -math.inf)

    def _over(self, here: slice, factor: Tensor, worst: Tensor, best: Tensor, out: Tensor | None = None) -> Tensor:
        """Whether no running beam can improve on what is finished: bool, of the shape of `worst`.

        Args:
            worst: the least of the finished scores, (prompts, ...); -inf if fewer hypotheses than beams are finished.
            best: the weight of the best beam that goes on, (prompts, 1); -inf if none does.
            out: where to write the result.
        """
        if self._sampler.early_stopping is True:
            # inf if `worst` is -inf and `best` is not: too few are finished, and a beam goes on; both are at most 0
            return torch.ne(best - worst, math.inf, out=out)
        length = self._limit_factors[here][:: self._beams] if self._to_the_limit else factor
        return torch.le(best / length, worst, out=out)

    def _over_by_itself(self, here: slice, factor: Tensor, found: _Candidates, by_eos: Tensor) -> Tensor:
        """Whether the search would be done at this step with any limit: (prompts, 1) bool."""
        new = self._new_scores(found, by_eos, factor)
        scores = torch.cat((self._scores[here].view(-1, self._beams), new), 1).topk(self._beams).values
        return self._over(here, factor, scores[:, -1:], found.running(by_eos).amax(1, keepdim=True))

    def _factor(self, step: Tensor) -> Tensor:
        """The number that divides the log-probabilities of texts that end now: (prompts, 1), float64."""
        length = step + self._one
        return length if self._sampler.length_penalty == 1 else length.pow_(self._sampler.length_penalty)

    def _factor_of(self, length: int) -> float:
        return math.pow(length, self._sampler.length_penalty)


class _Finished(NamedTuple):
    """A hypothesis: its score, its last token and the beam that it continues, and how many tokens are before it."""

    score: float
    end: Sequence[int]
    step: int


class BeamTexts:
    """One prompt's search on the host: its steps, and the hypotheses that it finds.

    Args:
        beginning: a text of the request that has taken no token yet.
    """

    def __init__(self, beginning: Text) -> None:
        self._beginning, self._request = beginning, beginning.request
        self._beams = self._request.sampler.samples
        sampler = self._request.sampler
        # whether a text can still become better is judged by the limit; with a larger limit, running beams would go on
        self._ends_by_limit = (
            isinstance(sampler, BeamSearchSampler) and sampler.early_stopping == "never" and sampler.length_penalty > 0
        )
        self._squeezed = False
        self._steps: list[tuple[Sequence[int], Sequence[int], Sequence[float]]] = []  # tokens, parents, weights of each
        self._finished: list[_Finished] = []
        self._hypotheses: list[_Finished] | None = [] if beginning.ended else None
        self._best: Text | None = None

    @property
    def texts(self) -> Sequence[Text]:
        """The best text once the search is done, or the one that has failed; before, none is known."""
        if self._best is None and self._hypotheses:
            self._best = self._trace(self._hypotheses[0])
        return () if self._best is None else (self._best,)

    @property
    def ended(self) -> bool:
        """Whether the search is done."""
        return self._hypotheses is not None

    def take(self, results: StepResults, row: int) -> None:
        if self.ended:
            return
        rows = slice(row, row + self._beams)
        token_ids, weights, parents, done, scores, kept, ends = (result[rows] for result in results.search)
        step = len(self._steps)
        self._finished = [
            self._finished[place] if place < self._beams else _Finished(score, ends[place - self._beams], step)
            for score, place in zip(scores, kept, strict=True)
            if score > -math.inf
        ]
        self._steps.append(([token_id for [token_id] in token_ids], parents, weights))
        if results.squeezed is not None and results.squeezed[row]:
            self._squeezed = True
        if done[0]:
            self._squeezed = self._squeezed or (self._ends_by_limit and max(weights) > -math.inf)
            self._hypotheses = self._finished
            if not self._hypotheses:
                self._best, name = self._beginning, f"prompt {self._request.number}"
                self._best.error = nothing_left(self._request, name, len(self._steps) - 1)

    def completions(self) -> list[Completion]:
        """The finished hypotheses, best first; fewer than beams if there are fewer possible texts.

        Under a constraint, several beams may spell the same text with different tokens: only the best of them is kept.

        Raises:
            GenError: the search has failed.
        """
        assert self._hypotheses is not None  # the loop runs until the search is done; tells mypy
        made = [self._trace(hypothesis).completion(hypothesis.score) for hypothesis in self._hypotheses]
        if not made:  # it has failed, or was to take no token
            made = [self._beginning.completion() for _ in range(self._beams)]
        if self._request.constraint is None:
            return made
        best: dict[str, Completion] = {}
        for completion in made:
            best.setdefault(completion.text, completion)
        return [*best.values()]

    def _trace(self, hypothesis: _Finished) -> Text:
        """Follow a hypothesis back from its last token to the prompt."""
        score, (token_id, beam), step = hypothesis
        length_penalty = getattr(self._request.sampler, "length_penalty", 1.0)
        weight = c_float(score * math.pow(step + 1, length_penalty)).value  # the float32 that was divided
        token_ids, weights = [token_id], [weight]
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
        return text
