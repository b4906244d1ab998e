"""Sampling in torch operations, on any device.

There are two ways, which choose the same tokens. `reads` says whether the host may read values, as it may on a CPU, at
no cost: then large logits are passed over once or twice, and most cuts are found among the few largest values; a row in
which more of them may be kept is done as a whole. Otherwise there is no host sync, no shape depends on data, and a sort
finds the cuts: on a GPU, operations on small tensors all cost about the same, so there are few of them. A row's result
does not depend on the other rows of the batch, to the last bit.

Example, with blocks of 2 instead of 128: tokens a, b, c, d have the logits log 8, log 4, log 2, log 2. The blocks'
maxima are log 8 and log 2, so the best token is in the first block: a. Relative to a, the masses are 1, 1/2, 1/4, 1/4.
The blocks have 3/2 and 1/2, together 2, so a has the log-probability -log 2. With a top-k of 2, only the two largest
logits are used: their masses are 1 and 1/2, and a is drawn with the probability 2/3.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, block_maxima, largest, take_blocks, whole_blocks
from gen.samplers.backends.cuts import Column, depths_of, kept_of_ranked, kept_of_row, ranked, uncut, unranked
from gen.samplers.backends.race import (
    LOG2_E,
    PIECE,
    block_masses,
    by_block,
    log_probability,
    mass_of,
    none_of_dead_,
    race,
    winner,
)
from gen.samplers.backends.random import log_uniform, weyl
from gen.samplers.logits import cleaned, native

_LARGEST = torch.finfo(torch.float32).max
Drawn = tuple[Tensor, Tensor]


def most_likely(logits: Tensor, *, reads: bool = False) -> Drawn:
    """Each row's most likely token, the lowest index among equals, and its log-probability.

    Args:
        logits: (rows, vocab), floating.
        reads: whether the host may read values.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none, unless it `reads`.
    """
    if reads:
        values, token_ids, top = _best(native(logits))
        share = _total(block_masses(values, top, LOG2_E)).reciprocal_()  # the best token's mass is 1
        return token_ids, none_of_dead_(share.log_().float().squeeze(1))
    values = _numbers(logits)
    top, token_ids = values.max(-1, keepdim=True)  # the first one among equals
    masses = mass_of(values, top, LOG2_E)
    return token_ids, log_probability(masses.gather(1, token_ids), _total(by_block(masses)))


def likeliest(logits: Tensor, n: int, *, reads: bool = False) -> tuple[Tensor, Tensor]:
    """Each row's n most likely tokens, best first; any of those that are equally likely.

    Args:
        logits: (rows, vocab), floating.
        n: at most vocab.
        reads: whether the host may read values.
    Returns:
        (rows, n) float32: log-probabilities, -inf for tokens that cannot be chosen; (rows, n) int64: the tokens, or
        any tokens where the log-probability is -inf. Host sync: none, unless it `reads`.
    """
    values, best, token_ids = _largest(logits, n, reads)
    top = best[:, :1].clamp(min=-_LARGEST)
    blocks = block_masses(values, top, LOG2_E) if reads else by_block(mass_of(values, top, LOG2_E))
    logprobs = best - top - _total(blocks).log_()
    return logprobs.float().nan_to_num_(nan=-math.inf, neginf=-math.inf), token_ids


def highest(values: Tensor, n: int, *, reads: bool = False) -> tuple[Tensor, Tensor]:
    """As `likeliest`, for numbers that are given back as they are, in float32."""
    _, best, token_ids = _largest(values, n, reads)
    return best, token_ids


def draw(
    logits: Tensor,
    keys: Tensor,
    scale: Tensor,
    cold: Column,
    top_k: Column,
    top_p: Column,
    min_p: Column,
    wanted: Column = None,
    *,
    reads: bool = False,
) -> Drawn:
    """Draw each row's token; returns it and its log-probability under the distribution that was drawn from.

    Args:
        logits: (rows, vocab), floating.
        keys: (rows,), int64, on the same device.
        scale, cold, top_k, top_p, min_p: see `gen.samplers.parameters.Table`.
        wanted: (rows,), bool: if the host may read values, the other rows get token 0 and log-probability 0.
        reads: whether the host may read values.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none, unless it `reads`.
    """
    columns = (scale, cold, top_k, top_p, min_p)
    if not reads:
        return _draw_whole(_numbers(logits), keys, *columns)
    if wanted is not None:
        token_ids = torch.zeros((len(keys), 1), dtype=torch.int64, device=keys.device)
        logprobs = torch.zeros(len(keys), dtype=torch.float32, device=keys.device)
        if len(rows := wanted.nonzero().squeeze(1)):
            token_ids[rows], logprobs[rows] = draw(logits[rows], keys[rows], *_of(rows, *columns), reads=True)
        return token_ids, logprobs
    if top_k is None and top_p is None and min_p is None:
        values, (token_ids, logprobs) = _draw_from_blocks(native(logits), keys, scale)
        whole = cold
    else:
        values, (token_ids, logprobs), whole = _draw_from_largest(native(logits), keys, scale, top_k, top_p, min_p)
        whole = whole if cold is None else whole.logical_or_(cold)
    if whole is not None and len(rows := whole.squeeze(1).nonzero().squeeze(1)):
        own = _of(rows, *columns)
        token_ids[rows], logprobs[rows] = _draw_whole(whole_blocks(values[rows]), keys[rows], *own, reads=True)
    return token_ids, logprobs


def keeps(logits: Tensor, scale: Tensor, cold: Column, top_k: Column, top_p: Column, min_p: Column) -> Tensor:
    """Which tokens `draw` chooses from: (rows, vocab), bool; never logits of -inf or NaN. Host sync: none."""
    values = _numbers(logits)
    in_order, mass, kept, order = ranked(values, scale, top_k, top_p, min_p)
    alive = in_order.isfinite() & ~mass.isnan()
    alive = unranked(alive if kept is None else alive & kept, order)
    if cold is not None:
        places = torch.arange(values.shape[1], device=values.device)
        alive &= ~cold | (places == values.argmax(-1, keepdim=True))
    return alive[:, : logits.shape[1]]


def _draw_whole(
    values: Tensor,
    keys: Tensor,
    scale: Tensor,
    cold: Column,
    top_k: Column,
    top_p: Column,
    min_p: Column,
    *,
    reads: bool = False,
) -> Drawn:
    """A draw from all tokens; values are float32, in whole blocks."""
    cuts = (top_k, top_p, min_p)
    if not reads:
        _, mass, kept, order = ranked(values, scale, *cuts)
        mass = unranked(mass if kept is None else mass.mul_(kept), order)
    else:
        mass = mass_of(values, values.amax(-1, keepdim=True), scale)
        for row in (slice(row, row + 1) for row in range(len(values))):
            mass[row].mul_(kept_of_row(values[row], mass[row], *_of(row, scale, *cuts)))
    drawn = _draw_masses(mass, keys)
    if cold is None:
        return drawn
    best = values.argmax(-1, keepdim=True)
    token_ids = torch.where(cold, best, drawn[0])
    return token_ids, log_probability(mass.gather(1, token_ids), _total(by_block(mass)))


def _draw_masses(mass: Tensor, keys: Tensor) -> Drawn:
    """A draw from the masses of all tokens, in whole blocks."""

    def inside(block: Tensor) -> Tensor:
        return torch.unflatten(mass, 1, (-1, BLOCK)).gather(1, block.unsqueeze(2).expand(-1, 1, BLOCK)).squeeze(1)

    return _draw_blocks(by_block(mass), keys, inside)


def _draw_from_blocks(logits: Tensor, keys: Tensor, scale: Tensor) -> tuple[Tensor, Drawn]:
    """The logits without NaN and +inf, and a draw without cuts, for which only the masses of blocks are kept."""
    values, _, top = _best(logits)
    if values.numel() <= PIECE:
        return values, _draw_masses(mass_of(whole_blocks(values), top, scale), keys)

    def inside(block: Tensor) -> Tensor:
        return mass_of(take_blocks(values, block).squeeze(1), top, scale)

    return values, _draw_blocks(block_masses(values, top, scale), keys, inside)


def _draw_from_largest(
    logits: Tensor, keys: Tensor, scale: Tensor, top_k: Column, top_p: Column, min_p: Column
) -> tuple[Tensor, Drawn, Tensor]:
    """As `_draw_from_blocks`, for draws with cuts; and in which rows (rows, 1) more tokens, or others, may be kept.

    That adds up the masses in another order, so which rows these are depends on nothing but the row.
    """
    vocab = logits.shape[1]
    values, maxima, top = _survey(logits if logits.numel() > PIECE else whole_blocks(logits))
    depths = depths_of(top_k, top_p, vocab, half=logits.dtype != torch.float32)
    head, tokens = _in_order(*largest(values, maxima, int(depths.max())))
    mass = mass_of(head, top, scale)
    last = head.gather(1, depths.expand(len(head), 1) - 1)
    tied, total = torch.zeros_like(last, dtype=torch.bool), None
    if top_k is not None:
        tied = (head.gather(1, top_k.clamp(max=head.shape[1]) - 1) <= last) & (top_k < vocab)
    if top_p is not None:
        of_all = top_p < 1 if top_k is None else (top_p < 1) & (top_k >= vocab)
        if bool(of_all.any()):
            total = _total(block_masses(values, top, scale)).masked_fill_(~of_all, math.nan)
    kept = kept_of_ranked(head, mass, top_k, top_p, min_p, total)
    mass = mass if kept is None else mass.mul_(kept)
    tied |= ((mass > 0) & (head == last)).any(1, keepdim=True)
    block = tokens // BLOCK
    blocks = torch.zeros_like(maxima, dtype=torch.float32).scatter_add_(1, block, mass)
    noise = log_uniform(keys.unsqueeze(1), weyl(torch.cat((tokens % BLOCK, block + BLOCK), 1)))
    inside, among = noise.chunk(2, 1)
    first = block.gather(1, winner(among, blocks.gather(1, block)))
    chosen = winner(inside, mass * (block == first))
    logprobs = log_probability(mass.gather(1, chosen), _total(blocks))
    token_ids = tokens.gather(1, chosen).masked_fill_(logprobs.isneginf().unsqueeze(1), 0)
    return values, (token_ids, logprobs), tied.logical_and_(last > -math.inf) | uncut(top_k, top_p, min_p)


def _in_order(head: Tensor, tokens: Tensor) -> Drawn:
    """Largest values in whole blocks; of equals, the lower token first."""
    if bool((head.diff() == 0).any()):
        tokens, order = tokens.sort(-1)
        head, order = head.gather(1, order).sort(dim=-1, descending=True, stable=True)
        tokens = tokens.gather(1, order)
    padding = -head.shape[1] % BLOCK
    return whole_blocks(head), torch.nn.functional.pad(tokens, (0, padding)) if padding else tokens


def _draw_blocks(blocks: Tensor, keys: Tensor, inside: Callable[[Tensor], Tensor]) -> Drawn:
    """A draw from the masses of blocks; for `inside` see `race`."""
    token_ids, mass = race(keys, blocks, inside)
    return token_ids, log_probability(mass, _total(blocks))


def _survey(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits without NaN and +inf, their blocks' maxima, and each row's largest, (rows, 1) float32."""
    maxima = block_maxima(logits)
    top = maxima.amax(-1, keepdim=True).float()
    if not all(map(math.isfinite, top.flatten().tolist())):
        logits = cleaned(logits.float())
        maxima = block_maxima(logits)
        top = maxima.amax(-1, keepdim=True).clamp_(min=-_LARGEST)
    return logits, maxima, top


def _best(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits without NaN and +inf, and each row's best token and its logit, (rows, 1): the lowest index of equals.

    In float32 NumPy finds it, in a tenth of torch's time.
    """
    if logits.dtype == torch.float32:
        best = np.array([row.argmax() for row in logits.detach().numpy()])  # rows may lie apart
        token_ids = torch.from_numpy(best).unsqueeze(1)
        top = logits.gather(1, token_ids)
        if all(map(math.isfinite, top.flatten().tolist())):
            return logits, token_ids, top
    logits, maxima, top = _survey(logits)
    block = maxima.argmax(-1, keepdim=True)
    place = take_blocks(logits, block).squeeze(1).argmax(-1, keepdim=True)
    return logits, place.add_(block, alpha=BLOCK), top


def _largest(logits: Tensor, n: int, reads: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The logits without NaN and +inf, their n largest in falling order, and the tokens of these."""
    if reads:
        values, maxima, _ = _survey(native(logits))
        return values, *largest(values, maxima, n)
    values = _numbers(logits)
    best, token_ids = values.topk(n)
    return values, best, token_ids.clamp_(max=logits.shape[1] - 1)


def _numbers(logits: Tensor) -> Tensor:
    """A copy in whole blocks (rows, blocks * 128), float32: -inf for NaN and past the end, no +inf."""
    return cleaned(whole_blocks(native(logits)))


def _of(rows: slice | Tensor, *columns: Column) -> Iterator[Any]:
    return (None if column is None else column[rows] for column in columns)


def _total(blocks: Tensor) -> Tensor:
    return blocks.sum(-1, keepdim=True, dtype=torch.float64)
