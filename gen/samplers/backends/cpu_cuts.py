"""Cuts rows on the CPU, where the host may read values: most cuts are found among the few largest values.

Example: in falling order the masses of tokens a, b, c, d are 1, 1/2, 1/4, 1/4, and their running sums 1, 3/2, 7/4, 2.
A top-p of 0.7 needs 0.7 x 2 = 1.4, which b reaches: a and b are kept. A top-p of 0.8 needs 1.6, which c reaches; but d
equals c, so the order of the two matters, and the row is processed as a whole: it keeps c, which has the lower index. A
top-k of 3 ends between c and d too, and keeps both. A min-p of 0.3 keeps a and b.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gen.samplers.backends.cpu_settings import Settings
from gen.samplers.backends.race import running_sum

_SLICES, _DEPTH = 4096, 46  # slices of likelihood, see `_in_wide_nucleus`; from the best token down to 2**-46 of it
_HEAD, _SHORT = 128, 32  # how many of the largest logits are read first for top-p, and for min-p alone
_LOWEST = -torch.finfo(torch.float32).max
_PAIR = torch.tensor([0, 1], device="cpu")
_OF_LAST = torch.tensor([1, 1, 0, 0], device="cpu")  # which of `Settings.edges` count from the last value kept


def rank(values: Tensor, settings: Settings, *, wide: bool) -> tuple[Tensor, Tensor | None]:
    """The largest values in falling order, as many as `cut_` needs, and their places.

    Args:
        values: (rows, vocab), float32.
        wide: whether top-p is known to keep many tokens.
    Returns:
        Both (rows, n); or the unsorted values and None if `cut_` needs no order.
    """
    depth = settings.deepest
    if settings.top_p is not None and not wide:  # if all rows have a top-k, top-p ends among its tokens
        depth = depth + 1 if depth and settings.no_top_k is None else max(depth, _HEAD)
    if not depth:
        return values, None
    head, index = values.topk(min(depth, values.shape[1]))
    return head, index


def cut_(
    mass: Tensor, values: Tensor, ranked: tuple[Tensor, Tensor | None], settings: Settings, *, wide: bool, alive: bool
) -> None:
    """Set the mass of tokens that are cut to 0.

    Args:
        mass, values: (rows, vocab), float32; values are -inf where there is no token.
        ranked: from `rank`.
        wide: whether top-p is known to keep many tokens.
        alive: whether every row has a token that can be chosen.
    """
    at_once = alive and not wide and settings.edges is not None
    if not (at_once and _cut_at_once_(mass, values, ranked, settings)):
        _cut_in_turn_(mass, values, ranked, settings, wide=wide)
    if settings.min_p is not None:
        mass.mul_(mass >= settings.min_p)


def _cut_at_once_(mass: Tensor, values: Tensor, ranked: tuple[Tensor, Any], settings: Settings) -> bool:
    """Cut by top-k and top-p, if all rows have both; if a cut would part equal values, cut nothing and return False."""
    head, index = ranked
    last, around = _edges_of(mass.gather(1, index), head, settings)
    if any(map(_tied, around)):
        return False
    mass.mul_(values >= head.gather(1, last))
    return True


def _edges_of(share: Tensor, head: Tensor, settings: Settings) -> tuple[Tensor, list[list[float]]]:
    """Where rows with top-k and top-p end.

    Args:
        share, head: (rows, n), float32: the masses of the largest values, and these values, in falling order.
    Returns:
        The place of the last value that is kept, (rows, 1) int64; and for each row four values: that last one, the one
        after it, the k-th and the one after the k-th.
    """
    edges: Any = settings.edges
    top_p: Any = settings.top_p
    reached = running_sum(share)
    place = settings.place
    total = reached.gather(1, place) if isinstance(place, Tensor) else reached[:, place : place + 1]
    last = torch.searchsorted(reached, total * top_p)
    return last, head.gather(1, torch.addcmul(edges, last, _OF_LAST)).tolist()


def _tied(around: list[float]) -> bool:
    """Whether a cut parts equal values; `around` has the four values that `_edges_of` gives for a row."""
    inside, beyond, kth, next_one = around
    return inside == beyond > -math.inf or kth == next_one > -math.inf


def _cut_in_turn_(
    mass: Tensor, values: Tensor, ranked: tuple[Tensor, Tensor | None], settings: Settings, *, wide: bool
) -> None:
    """Cut by top-k, then by top-p."""
    head, index = ranked
    if settings.deepest:
        mass.mul_(values >= _kth_value(head, settings))
    if settings.top_p is not None:
        goal = mass.sum(-1, keepdim=True, dtype=torch.float64) * settings.top_p
        rows = list(range(len(mass)))
        if index is not None and not wide:
            _, threshold, rows = _nucleus(head, mass.gather(1, index), goal, settings, ordered=False)
            for row in rows:
                threshold[row] = -math.inf
            mass.mul_(values >= threshold)
        for row in rows:
            scale = settings.scale[row] if isinstance(settings.scale, Tensor) else settings.scale
            mass[row].mul_(_in_wide_nucleus(values[row], mass[row], scale, goal[row]))


def cut_head_(
    mass: Tensor, head: Tensor, settings: Settings, *, half: bool, all_mass: Callable[[], Tensor]
) -> list[int]:
    """Set the masses of those of the largest values that are cut to 0; all rows have the same kind of cut.

    Args:
        mass, head: (rows, n), float32: as many of the largest values as `depth_of` says, in falling order.
        half: whether the logits are in half precision; equal ones are then in the order of their tokens.
        all_mass: returns the mass of all blocks (rows, blocks).
    Returns:
        The rows for which the largest values are not enough: more values, or others, may be kept there. Which rows
        these are depends neither on n nor on the other rows.
    """
    if settings.edges is not None and not half:
        whole = _cut_head_at_once_(mass, head, settings)
        if settings.min_p is not None:
            mass.mul_(mass >= settings.min_p)
        return whole
    wide: list[int] = []
    if settings.deepest:
        hits = head >= _kth_value(head, settings).clamp(min=_LOWEST)
        mass.mul_(hits)
        beyond = hits.sum(-1, keepdim=True) > _most(settings.place + 1, half)
    if settings.top_p is not None:
        total = mass if settings.deepest else all_mass()
        goal = total.sum(-1, keepdim=True).double() * settings.top_p
        last, _, wide = _nucleus(head, mass, goal, settings, ordered=half)
        mass.mul_(_places(head.shape[1]) <= last)
    if settings.min_p is not None:
        mass.mul_(mass >= settings.min_p)
    if not settings.deepest:
        beyond = mass[:, -1:] > 0
    return [row for row, [more] in enumerate(beyond.tolist()) if more or row in wide]


def _cut_head_at_once_(mass: Tensor, head: Tensor, settings: Settings) -> list[int]:
    """`cut_head_` for top-k and top-p, if all rows have both; returns the rows in which a cut parts equal values."""
    last, around = _edges_of(mass, head, settings)
    mass.mul_(_places(mass.shape[1]) <= last)
    return [row for row, values in enumerate(around) if _tied(values)]


def depth_of(settings: Settings, vocab: int, *, half: bool) -> int:
    """How many of the largest values of large logits are read."""
    if settings.deepest:
        return min(int(_most(settings.deepest, half)) + 1, vocab)
    return _SHORT if settings.top_p is None else _HEAD


def _most(k: Any, half: bool) -> Any:
    """How many tokens top-k may keep before the row is processed as a whole; in half precision many are equal."""
    return 2 * k + _HEAD // 2 if half else k


def _kth_value(head: Tensor, settings: Settings) -> Tensor:
    """The k-th largest value of each row, (rows, 1); -inf in rows that top-k leaves alone."""
    place = settings.place
    kth = head.gather(1, place) if isinstance(place, Tensor) else head[:, place : place + 1]
    return kth if settings.no_top_k is None else kth.masked_fill(settings.no_top_k, -math.inf)


def _nucleus(
    head: Tensor, share: Tensor, goal: Tensor, settings: Settings, *, ordered: bool
) -> tuple[Tensor, Tensor, list[int]]:
    """Find where the mass of the largest values reaches a goal.

    Args:
        head, share: (rows, n), float32: the largest values in falling order, and their masses.
        goal: (rows, 1), float64.
        ordered: whether equal values are in the order of their tokens.
    Returns:
        The place of the last value needed to reach the goal, (rows, 1) int64, or n if top-p is 1; this value, (rows, 1)
        float32, or -inf if top-p is 1; and the rows in which these may be wrong: the n values do not reach the goal, or
        values outside them may equal the last one needed. Without `ordered`, also rows in which an equal value follows
        the last one needed.
    """
    length = head.shape[1]
    last = torch.searchsorted(running_sum(share), goal)
    pair = (last + _PAIR).clamp_(max=length - 1)
    if ordered:
        pair[:, 1] = length - 1
    pair = head.gather(1, pair)
    wide = [row for row, (one, other) in enumerate(pair.tolist()) if not other < one]
    threshold = pair[:, :1]
    if settings.no_top_p is not None:
        free = settings.no_top_p.squeeze(1).tolist()
        wide = [row for row in wide if not free[row]]
        last = last.masked_fill(settings.no_top_p, length)
        threshold.masked_fill_(settings.no_top_p, -math.inf)
    return last, threshold, wide


def _in_wide_nucleus(values: Tensor, mass: Tensor, scale: float | Tensor, goal: Tensor) -> Tensor:
    """Top-p of one row with many likely tokens: add up the mass of slices of likelihood, then sort the last slice.

    Args:
        values, mass: (vocab,), float32.
        scale: see `race.mass_of`.
        goal: (1,), float64.
    Returns:
        (vocab,), bool: which tokens are kept; among equals, those with the lower indices.
    """
    depth = (values - values.amax()).mul_(scale).mul_(-_SLICES / _DEPTH)
    slices = depth.nan_to_num_(0).clamp_(max=_SLICES - 1).short()
    shares = torch.zeros(_SLICES, dtype=torch.float64, device="cpu").scatter_add_(0, slices.long(), mass.double())
    reached = shares.cumsum(0)
    last = (reached < goal).sum().clamp_(max=int(slices.amax()))
    inside = (slices == last).nonzero().squeeze(1)
    inside = inside[values[inside].sort(descending=True, stable=True).indices]
    before = running_sum(mass[inside].unsqueeze(0)) + (reached[last] - shares[last])
    kept = slices < last
    kept[inside[: int((before < goal).sum()) + 1]] = True
    return kept


@lru_cache(maxsize=64)
def _places(count: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count, device="cpu")
