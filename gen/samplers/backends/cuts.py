"""Which tokens top-k, top-p and min-p keep: of values in order, or of one row that the host reads.

Example: tokens a, b, c, d have the logits log 8, log 4, log 2, log 2, and so the masses 1, 1/2, 1/4, 1/4. In falling
order the masses before each of them add up to 0, 1, 3/2, 7/4. A top-p of 0.7 keeps the tokens with less than 0.7 x 2 =
1.4 before them: a and b. A top-p of 0.8 keeps c too, and not d: of equals, the lower index comes first. A top-k of 3
ends between c and d, and keeps both. A min-p of 0.3 keeps a and b.

Parameters are columns (rows, 1), see `gen.samplers.parameters.Table`; values have no NaN.
"""

import math
from functools import reduce

import torch
from torch import Tensor

from gen.samplers.backends.race import mass_of, running_sum
from gen.samplers.parameters import ALL

Column = Tensor | None
_SHORT, _LONG = 32, 128  # how many of the largest values are looked at for min-p alone, and for top-p
_SLICES, _DEPTH = 4096, 46  # slices of likelihood, see `_in_nucleus`; from the best token down to 2**-46 of it


def kept_of_ranked(
    ranked: Tensor, mass: Tensor, top_k: Column, top_p: Column, min_p: Column, total: Column = None
) -> Column:
    """What is kept of a row's largest values: (rows, n) bool; None for all.

    Args:
        ranked, mass: (rows, n), float32: the values in falling order, of equals the lower index first; their masses.
        total: (rows, 1), float64: what top-p is a share of; None, or NaN in a row, for the mass that top-k keeps.
    """
    kept = None
    if top_k is not None:
        kept = ranked >= ranked.gather(1, top_k.clamp(max=ranked.shape[1]) - 1)
    if top_p is not None:
        reached = running_sum(mass if kept is None else mass * kept)
        whole = reached[:, -1:] if total is None else torch.where(total.isnan(), reached[:, -1:], total)
        kept = torch.ones_like(ranked, dtype=torch.bool) if kept is None else kept
        # tokens that top-k has dropped come after all of the mass, so top-p drops them too
        torch.lt(reached[:, :-1], whole * top_p, out=kept[:, 1:])
    if min_p is not None:
        likely = mass >= min_p
        kept = likely if kept is None else kept.logical_and_(likely)
    return kept


def ranked(
    values: Tensor, scale: Tensor, top_k: Column, top_p: Column, min_p: Column
) -> tuple[Tensor, Tensor, Column, Column]:
    """All values of rows in the order that the cuts need; their masses, NaN in a row without any; what is kept, None
    for all; and the tokens in this order, None if it is their own. Host sync: none.
    """
    order, top = None, None
    if top_k is None and top_p is None:
        top = values.amax(-1, keepdim=True)
    else:
        values, order = values.sort(dim=-1, descending=True, stable=True)
        top = values[:, :1]
    mass = mass_of(values, top, scale)
    return values, mass, kept_of_ranked(values, mass, top_k, top_p, min_p), order


def unranked(values: Tensor, order: Column) -> Tensor:
    """The opposite of `ranked`, for values in its order."""
    return values if order is None else torch.empty_like(values).scatter_(1, order, values)


def kept_of_row(values: Tensor, mass: Tensor, scale: Tensor, top_k: Column, top_p: Column, min_p: Column) -> Tensor:
    """Which of all tokens are kept in one row on a CPU, (1, vocab) each: at most a slice of likelihood is sorted."""
    kept = values > -math.inf
    if top_k is not None and (k := int(top_k)) < values.shape[1]:
        kept.logical_and_(values >= values.topk(k).values[:, -1:])
    if top_p is not None and float(top_p) < 1:
        kept.logical_and_(_in_nucleus(values[0], (mass * kept)[0], scale[0], top_p[0]))
    return kept if min_p is None else kept.logical_and_(mass >= min_p)


def _in_nucleus(values: Tensor, mass: Tensor, scale: Tensor, top_p: Tensor) -> Tensor:
    """Top-p of one row with many likely tokens: add up the mass of slices of likelihood, then sort the last slice.

    Args:
        values, mass: (vocab,), float32.
        scale, top_p: (1,).
    Returns:
        (vocab,), bool: which tokens are kept; among equals, those with the lower indices.
    """
    depth = (values - values.amax()).mul_(scale).mul_(-_SLICES / _DEPTH)
    slices = depth.nan_to_num_(0).clamp_(max=_SLICES - 1).short()
    shares = torch.zeros(_SLICES, dtype=torch.float64, device=mass.device).scatter_add_(0, slices.long(), mass.double())
    reached = shares.cumsum(0)
    goal = reached[-1:] * top_p
    last = (reached < goal).sum().clamp_(max=_SLICES - 1)
    inside = (slices == last).nonzero().squeeze(1)
    inside = inside[values[inside].sort(descending=True, stable=True).indices]
    share = mass[inside].unsqueeze(0)
    before = running_sum(share) - share + (reached[last] - shares[last])
    kept = slices < last
    kept[inside] = (before < goal).squeeze(0)
    return kept


def depths_of(top_k: Column, top_p: Column, vocab: int, *, half: bool) -> Tensor:
    """How many of its largest values a row is looked for in first, (rows, 1): more than top-k keeps.

    Args:
        half: whether the logits are in half precision, in which many are equal.
    """
    depths = torch.full((1, 1), _SHORT, device="cpu")
    if top_p is not None:
        depths = torch.where(top_p < 1, _LONG, depths)
    if top_k is not None:
        depths = torch.where(top_k <= vocab // 4, 2 * top_k + _LONG // 2 if half else top_k + 1, depths)
    return depths.clamp_(max=vocab)


def uncut(top_k: Column, top_p: Column, min_p: Column) -> Tensor:
    """The rows (rows, 1) without a cut, among others; at least one parameter is given."""
    neutral = ((top_k, ALL), (top_p, 1), (min_p, 0))
    return reduce(torch.logical_and, (column == value for column, value in neutral if column is not None))
