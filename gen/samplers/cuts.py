"""Where a row's tokens are cut: top-k, top-p and min-p each keep the largest logits down to a threshold.

A cut is found on the logits as they came, whose order and ties neither temperature nor rounding has touched.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gen.samplers.logits import native

Setting = float | Tensor  # one number for all rows, or (rows, 1) on the logits' device

ALL = 2**62
_SMALLEST, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
LOG2_E = 1 / math.log(2)


class Cut(NamedTuple):
    """What is kept of each row: the logits above a threshold, and the first few of those equal to it.

    Attributes:
        threshold: (rows, 1), float32.
        quota: (rows, 1), int64: how many of the tokens at the threshold are kept, lower indices first.
    """

    threshold: Tensor
    quota: Tensor


def keep_from(threshold: Tensor) -> Cut:
    """The cut that keeps everything from a threshold on, ties included."""
    return Cut(threshold, torch.full_like(threshold, ALL, dtype=torch.int64))


def log_weight(values: Tensor, top: Tensor, temperature: Setting | None) -> Tensor:
    """Tempered log-weights, 0 at the row's maximum: (values - top) / temperature, float32, a new tensor."""
    difference = values - top
    return difference if temperature is None else difference.div_(temperature)


def mass_of(values: Tensor, top: Tensor, temperature: Setting | None, out: Tensor | None = None) -> Tensor:
    """exp of the log-weights of blocks (rows, n, 128), float32; written to `out`, which may be the values.

    As a power of two: on some CPUs torch's exp2 takes a third of the time of its exp.
    """
    scale: Setting = LOG2_E if temperature is None else LOG2_E / temperature
    scale = scale.unsqueeze(-1) if isinstance(scale, Tensor) else scale
    return torch.sub(values, top.unsqueeze(-1), out=out).mul_(scale).exp2_()


def min_p_threshold(top: Tensor, temperature: Setting | None, min_p: Setting) -> Tensor:
    """The smallest float32 whose token is at least min_p times as likely as the row's best: (rows, 1).

    Source: Nguyen et al. 2024, arXiv:2407.01082. In float64 and rounded up, so that every float32 is on its true side.
    """
    share = min_p.double() if isinstance(min_p, Tensor) else torch.full_like(top, min_p, dtype=torch.float64)
    exact = top + share.log() * (1 if temperature is None else temperature)
    rounded = exact.float()
    return torch.where(rounded < exact, torch.nextafter(rounded, torch.full_like(rounded, math.inf)), rounded)


def head_mass(head: Tensor, top: Tensor, temperature: Setting | None) -> Tensor:
    """The masses of a few values (rows, n), where the row's best token has a mass of 1: float64."""
    return log_weight(head, top, temperature).double().exp_()


def nucleus_in_head(head: Tensor, mass: Tensor, goal: Tensor) -> tuple[Cut, Tensor]:
    """Cut a row where the mass of its largest values reaches a goal.

    Args:
        head: (rows, n), float32: the row's largest values in falling order. More tokens may equal the last one.
        mass: (rows, n), float64: see `head_mass`.
        goal: (rows, 1), float64: a mass, where the row's best token has a mass of 1.
    Returns:
        The cut, and (rows, 1) bool: whether the head's own mass reaches the goal. Where it does not, the cut is at the
        head's last value, and right only if what is left of the mass is that of tokens equal to it.
    """
    reached = running_sum(mass)
    last = (reached < goal).sum(-1, keepdim=True).clamp_(max=head.shape[1] - 1)
    threshold = head.gather(-1, last)
    above = (mass * (head > threshold)).sum(-1, keepdim=True)
    return Cut(threshold, tie_quota(goal - above, mass.gather(-1, last))), reached[:, -1:] >= goal


def running_sum(mass: Tensor) -> Tensor:
    """The cumulative sum of each row (rows, n).

    In torch's deterministic mode by doubling: on CUDA there is no cumsum of floating numbers then.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return mass.cumsum(-1)
    step = 1
    while step < mass.shape[1]:
        mass = mass + torch.nn.functional.pad(mass[:, :-step], (step, 0))
        step *= 2
    return mass


def tie_quota(missing: Tensor, mass: Tensor) -> Tensor:
    """How many tokens of one mass it takes to make up a missing mass, at least one: (rows, 1), int64."""
    return (missing / mass.double().clamp(min=_SMALLEST)).ceil().clamp(1, 2.0**53).long()


def tighter(cut: Cut | None, threshold: Tensor) -> Cut:
    """The cut that keeps what a cut keeps and is at or above a threshold too."""
    if cut is None:
        return keep_from(threshold)
    return Cut(torch.maximum(cut.threshold, threshold), cut.quota.masked_fill(threshold > cut.threshold, ALL))


def nucleus_goal(top_p: Setting, total: Tensor) -> Tensor:
    """The mass that top-p asks for: more than nothing and at most all, (rows, 1) float64."""
    return (total.double() * top_p).clamp(min=_SMALLEST)


def within(nucleus: Cut, cut: Cut | None, top_p: Setting) -> Cut:
    """A nucleus that keeps nothing that the cut before it dropped, and where a row's top-p is 1 all that it kept.

    Both are for the sake of sums in float32, which lose small tokens.
    """
    threshold = torch.full_like(nucleus.threshold, -math.inf) if cut is None else cut.threshold
    if isinstance(top_p, Tensor):
        nucleus = Cut(nucleus.threshold.masked_fill(top_p >= 1, -math.inf), nucleus.quota)
    return tighter(nucleus, threshold)


def is_kept(logits: Tensor, cut: Cut | None) -> Tensor:
    """Which tokens a cut keeps: (rows, vocab), bool; never one of -inf or NaN."""
    logits = native(logits)
    alive = logits > -math.inf
    if cut is None:
        return alive
    numbers = logits.float().clamp(max=_LARGEST)
    tie = numbers == cut.threshold
    return alive & ((numbers > cut.threshold) | (tie & (tie.cumsum(-1) <= cut.quota)))
