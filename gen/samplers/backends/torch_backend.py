"""Sampling in torch operations, on any device, without a host sync and without shapes that depend on data.

Operations on small tensors of a device all cost about the same, so there are few of them, and a sort finds the cuts.

Example: tokens a, b, c, d have the logits log 4, log 8, log 2, log 2. In sorted order b, a, c, d have the masses 1,
1/2, 1/4, 1/4, and the masses before them add up to 0, 1, 3/2, 7/4. A top-p of 0.7 keeps the tokens with less than
0.7 x 2 = 1.4 before them: b and a. In the unsorted row, b and a keep their masses and the others' become 0; then the
race is run.
"""

import math

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, whole_blocks
from gen.samplers.backends.race import LOG2_E, counters, log_probability, mass_of, running_sum, winner
from gen.samplers.backends.random import log_uniform
from gen.samplers.logits import native
from gen.samplers.parameters import LARGEST, SMALLEST, Column

_LARGEST = torch.finfo(torch.float32).max


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's most likely token, the lowest index among equals, and its log-probability.

    Args:
        logits: (rows, vocab), floating.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none.
    """
    values = _numbers(logits)
    best, token_ids = values.max(-1, keepdim=True)  # the first one among equals
    mass = mass_of(values, best, LOG2_E)
    return token_ids, log_probability(mass.gather(1, token_ids), _total(_by_block(mass)))


def likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each row's n most likely tokens, best first; any of those that are equally likely.

    Args:
        logits: (rows, vocab), floating.
        n: at most vocab.
    Returns:
        (rows, n) float32: log-probabilities, -inf for tokens that cannot be chosen; (rows, n) int64: the tokens, or
        any tokens where the log-probability is -inf. Host sync: none.
    """
    values = _numbers(logits)
    best, token_ids = values.topk(n)
    top = best[:, :1]
    logprobs = best - top - _total(_by_block(mass_of(values, top, LOG2_E))).log()
    return logprobs.float().nan_to_num_(nan=-math.inf, neginf=-math.inf), token_ids.clamp_(max=logits.shape[1] - 1)


def highest(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """As `likeliest`, for numbers that are given back as they are, in float32. Host sync: none."""
    best, token_ids = _numbers(values).topk(n)
    return best, token_ids.clamp_(max=values.shape[1] - 1)


def draw(
    logits: Tensor, keys: Tensor, temperature: Column, top_k: Column | int, top_p: Column, min_p: Column
) -> tuple[Tensor, Tensor]:
    """Draw each row's token; returns it and its log-probability under the distribution that was drawn from.

    Args:
        logits: (rows, vocab), floating.
        keys: (rows,), int64, on the same device.
        temperature, top_k, top_p, min_p: see `gen.samplers.parameters.Parameters.for_rows`; top_k may be a number too.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none.
    """
    values = _numbers(logits)
    ranking = _ranked(values, top_k, top_p)
    mass, cold = _weigh(values, temperature, ranking)
    kept = _kept(ranking, mass, cold, top_k, top_p, min_p)
    if kept is not None:
        mass.mul_(kept)
    blocks = _by_block(mass)
    places, distances = counters(blocks.shape[1], logits.device)
    noise = log_uniform(keys.unsqueeze(1), distances)
    token_ids = torch.add(places, winner(noise[:, BLOCK:], blocks), alpha=BLOCK)  # the tokens of the block that won
    token_ids = token_ids.gather(1, winner(noise[:, :BLOCK], mass.gather(1, token_ids)))
    if cold is not None:
        token_ids = torch.where(cold, values.argmax(-1, keepdim=True), token_ids)
    return token_ids, log_probability(mass.gather(1, token_ids), _total(blocks))


def keeps(logits: Tensor, temperature: Column, top_k: Column | int, top_p: Column, min_p: Column) -> Tensor:
    """Which tokens `draw` chooses from: (rows, vocab), bool; never logits of -inf or NaN. Arguments: as for `draw`.

    Host sync: none.
    """
    values = _numbers(logits)
    ranking = _ranked(values, top_k, top_p)
    mass, cold = _weigh(values, temperature, ranking)
    alive = values.isfinite() & ~mass.isnan()
    kept = _kept(ranking, mass, cold, top_k, top_p, min_p)
    if kept is not None:
        alive &= kept
    if cold is not None:
        places = torch.arange(values.shape[1], device=values.device)
        alive &= ~cold | (places == values.argmax(-1, keepdim=True))
    return alive[:, : logits.shape[1]]


def _ranked(values: Tensor, top_k: Column | int, top_p: Column) -> tuple[Tensor, Tensor] | None:
    """Each row in falling order, and the tokens in that order; None if no cut needs the order."""
    if top_k is None and top_p is None:
        return None
    ranked, order = values.sort(dim=-1, descending=True, stable=True)
    return ranked, order


def _weigh(values: Tensor, temperature: Column, ranking: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor | None]:
    """The masses, and which rows (rows, 1) have a temperature of 0."""
    scale, cold = LOG2_E, None
    if temperature is not None:
        column = temperature
        if temperature.dim():  # a tensor without dimensions stands for a number, which is in range
            column = temperature.view(-1, 1)
            cold = column <= 0
            column = column.masked_fill(cold, 1).clamp(SMALLEST, LARGEST).float()
        scale = LOG2_E / column
    best = values.amax(-1, keepdim=True) if ranking is None else ranking[0][:, :1]
    return mass_of(values, best, scale), cold


def _kept(
    ranking: tuple[Tensor, Tensor] | None,
    mass: Tensor,
    cold: Tensor | None,
    top_k: Column | int,
    top_p: Column,
    min_p: Column,
) -> Tensor | None:
    """What top-k, top-p and min-p keep, bool; None for everything."""
    kept = None
    if ranking is not None:  # top-k and top-p each keep the first tokens of the sorted row
        ranked, order = ranking
        first = None
        if top_k is not None and (isinstance(top_k, int) or not top_k.dim()):
            place = min(int(top_k), ranked.shape[1]) - 1
            first = ranked >= ranked[:, place : place + 1]
        elif top_k is not None:
            places = (top_k.view(-1, 1).clamp(1, ranked.shape[1]) - 1).expand(len(ranked), 1)
            first = ranked >= ranked.gather(1, places)
        if top_p is not None:
            share = mass.gather(1, order)
            if first is not None:
                share.mul_(first)
            reached = running_sum(share)
            # tokens that top-k has dropped come after all of the mass, so top-p drops them too
            first = reached - share < reached[:, -1:] * _column(top_p).clamp(min=SMALLEST)
        assert first is not None  # one of them is given; tells mypy
        kept = torch.empty_like(first).scatter_(1, order, first)
    if min_p is not None:
        likely = mass >= _column(min_p).clamp(max=1)
        kept = likely if kept is None else kept.logical_and_(likely)
    return kept if kept is None or cold is None else kept.logical_or_(cold)


def _column(value: Tensor) -> Tensor:
    """(rows, 1), or a number for all rows."""
    return value.view(-1, 1) if value.dim() else value


def _numbers(logits: Tensor) -> Tensor:
    """A copy in whole blocks (rows, blocks * 128), float32: -inf for NaN and past the end, no +inf."""
    return whole_blocks(native(logits)).nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)


def _by_block(mass: Tensor) -> Tensor:
    """The mass of each block (rows, blocks)."""
    return torch.unflatten(mass, 1, (-1, BLOCK)).sum(-1)


def _total(blocks: Tensor) -> Tensor:
    return blocks.sum(-1, keepdim=True, dtype=torch.float64)
