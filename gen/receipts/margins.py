"""How far a token was from being chosen, and how far numbers move that should be equal.

Example: a step's key lets "cat" arrive at 0.050 and "dog" at 0.051. The dog's margin is ln(0.051 / 0.050) = 0.0198: if
its logit were larger by that much, it would have won. The logits of a model in float32 move by 0.0001 between a step of
one token and a reading of many, so the dog is no near tie; in bfloat16 they move by 0.1, and it is one.
"""

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gen.models.base import Model, Rows
from gen.models.checks import new_rows
from gen.receipts.digests import weights_version
from gen.requests.prompts import vocabulary
from gen.runtime.isolation import settings_of_the_process
from gen.samplers import MultinomialSampler
from gen.samplers.backends.blocks import BLOCK
from gen.samplers.backends.random import log_uniform, weyl
from gen.samplers.base import Sampler

_MEASURED = 24  # tokens of a text
_PLAUSIBLE = 8.0  # only tokens whose log-probability is at most this far below the best one are compared
_SAFETY = 4.0  # the measured tokens are few, and the largest differences are rare
_kept: WeakKeyDictionary[Model, tuple[object, float]] = WeakKeyDictionary()


def margin(logits: Tensor, key: int, sampler: Sampler, expected: Sequence[int], found: int) -> float:
    """How far the nearest of the expected tokens was from being chosen in the place of the found one.

    It is in units of logits, after a temperature: the log ratio of the two arrival times at the level of the race where
    they part; or, where a cut has taken a token, the distance from the cut, if that is larger. Greedy: the difference
    of the logits.

    Args:
        logits: (vocab,), of one place, as the search got them.
        key: of the draw.
    Returns:
        At least 0; inf for a token that is ruled out, and for none. Host sync: some.
    """
    if not isinstance(sampler, MultinomialSampler) or sampler.temperature == 0:
        values = logits.double()
        return max(0.0, min((_number(values[found] - values[token]) for token in expected), default=math.inf))
    race = _Race(logits, key, sampler)
    return max(0.0, min((race.margin(token, found) for token in expected), default=math.inf))


def scale(sampler: Sampler) -> float:
    """By how much a step of this sampler enlarges differences of the model's own logits."""
    temperature = getattr(sampler, "temperature", None)
    penalty = 1.0 if sampler.penalties is None else sampler.penalties.repetition_penalty
    return max(penalty, 1 / penalty) / (temperature or 1.0)


def tolerance(model: Model, tokens: Sequence[int], recorded: str | None = None) -> float:
    """How far the difference of two logits may be from that of the same logits in another batch, or another dtype.

    It is measured on the model, once for its weights and torch's settings: the same tokens are read one by one, side by
    side, and in four equal rows, and the largest difference among the log-probabilities of likely tokens counts, four
    times.

    Args:
        tokens: of a prompt and its text.
        recorded: the dtype of the model that made the text; if it is coarser, the differences are as much larger.
    """
    dtype, known = model.placement.dtype, _kept.get(model)
    rests_on = weights_version(model), dtype, settings_of_the_process()
    if known is None or known[0] != rests_on:
        known = _kept[model] = rests_on, _measure(model, tokens)
    theirs = getattr(torch, recorded or "", None)
    coarser = torch.finfo(theirs).eps / torch.finfo(dtype).eps if isinstance(theirs, torch.dtype) else 1.0
    return known[1] * max(1.0, coarser)


class _Race:
    """The race of one place, in float64; see `gen.samplers.backends.race`."""

    def __init__(self, logits: Tensor, key: int, sampler: MultinomialSampler) -> None:
        temperature = 1.0 if sampler.temperature is None else float(sampler.temperature)
        self._values = logits.double().nan_to_num(-math.inf) / temperature
        self._kept = ~sampler.warp(logits.unsqueeze(0))[0].isneginf()
        self._sampler = sampler
        self._best: Tensor | None = None  # what top-k keeps, and one more
        top_k = sampler.top_k
        if top_k is not None and top_k < len(logits):
            self._best = self._values.topk(int(top_k) + 1).values
        blocks = -(-len(logits) // BLOCK)
        seed = torch.tensor(key, dtype=torch.int64, device=logits.device)
        noise = (-log_uniform(seed, weyl(torch.arange(BLOCK + blocks, device=logits.device)))).log()
        self._places, self._blocks = noise[:BLOCK], noise[BLOCK:]

    def margin(self, token: int, found: int) -> float:
        """See `margin`."""
        if self._values[token].isneginf():
            return math.inf
        if not self._kept[token]:
            return max(self._edge(token), self._late(token, added=token))
        without = max(self._edge(found), self._late(token, removed=found))
        return min(self._late(token), without)

    def _late(self, token: int, *, added: int | None = None, removed: int | None = None) -> float:
        """By how much the token is later: its block than the first one, or the token than the first of its block."""
        kept = self._kept.clone()
        if added is not None:
            kept[added] = True
        if removed is not None:
            kept[removed] = False
        mass = torch.where(kept, self._values, -math.inf)
        mass = torch.nn.functional.pad(mass, (0, -len(mass) % BLOCK), value=-math.inf).view(-1, BLOCK)
        blocks, block = self._blocks - mass.logsumexp(-1), token // BLOCK
        places = self._places - mass[block]
        return _number(torch.maximum(blocks[block] - blocks.min(), places[token % BLOCK] - places.min()))

    def _edge(self, token: int) -> float:
        """How far the token is from the cut: from all cuts that have taken it, or else from the nearest one."""
        ways = self._from_top_k(token), self._from_top_p(token), self._from_min_p(token)
        if self._kept[token]:
            return min(map(abs, ways))
        return max(0.0, -min(ways))

    # By how much a token's value is above a cut, below 0 if the cut has taken it; inf without the cut.

    def _from_top_k(self, token: int) -> float:
        if self._best is None:
            return math.inf
        own, (least, next_one) = self._values[token], self._best[-2:]
        if own < least:
            return _number(own - least)
        return _number(own - next_one)

    def _from_min_p(self, token: int) -> float:
        min_p = self._sampler.min_p
        if not min_p:
            return math.inf
        relative = _number(self._values[token] - self._values.max())
        return relative - math.log(min_p)

    def _from_top_p(self, token: int) -> float:
        """From the mass before it, or from the nearest token on the other side, whichever is nearer."""
        top_p, own = self._sampler.top_p, self._values[token]
        larger = self._values > own
        if top_p is None or top_p >= 1 or not larger.any():
            return math.inf
        above = self._values if self._best is None else self._values[self._values >= self._best[-2]]
        total = above.logsumexp(0)
        before = self._values[larger].logsumexp(0)
        over = _number(before - total) - math.log(float(top_p))
        taken = over >= 0
        others = self._values[self._kept == taken]
        nearest = (others - own).abs().min() if len(others) else total.new_tensor(math.inf)
        distance = min(abs(over), _number(nearest))
        return -distance if taken else distance


def _measure(model: Model, tokens: Sequence[int]) -> float:
    read = list(tokens[: 1 + _MEASURED])
    rows = new_rows(model, 4, len(read) + 2)
    known = vocabulary(model)
    try:
        one_by_one = _by_steps(rows, [read])[:, :known]
        if rows.reads_places:
            places = range(len(read))
            alone = rows.prefill(slice(0, 1), [read], [0], places)[0]
            together = rows.prefill(slice(0, 4), [read] * 4, [0] * 4, places)[3]
            others = [alone, together]
        else:
            others = [_by_steps(rows, [read] * 4)]
        base = one_by_one.double().log_softmax(-1)
        likely = base > base.amax(-1, keepdim=True) - _PLAUSIBLE
        moved = 0.0
        for other in others:
            differences = other[:, :known].double().log_softmax(-1) - base
            moved = max(moved, _number(differences[likely].abs().max()))
        # where nothing was measured to move, a logit may still be off by its last place
        largest = _number(one_by_one.abs().max())
        last_place = largest * torch.finfo(model.placement.dtype).eps / 2
    finally:
        rows.give_back()
    return _SAFETY * max(moved, last_place)


def _by_steps(rows: Rows, texts: Sequence[Sequence[int]]) -> Tensor:
    """The logits (tokens, vocab_size) after each token of equal texts, which are read in steps."""
    firsts = [text[:1] for text in texts]
    found = [rows.prefill(slice(0, len(texts)), firsts)]
    for token_id in texts[0][1:]:
        newest = torch.full((len(texts), 1), token_id, device=found[0].device)
        found.append(rows.step(newest, rows.length))
    return torch.stack([logits[-1] for logits in found])


def _number(value: Tensor) -> float:
    """A number of the device. Host sync: one."""
    return float(value)
