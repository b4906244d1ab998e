"""A threshold found by bisection: for any number of tokens, in a fixed number of rounds and without sorting.

The logits' bit patterns, ordered as integers, are what is halved: 32 rounds for float32 and 16 for half precision find
the exact value.
"""

import math
from typing import Any

import torch
from torch import Tensor

from gen.samplers.cuts import Cut, Setting, log_weight, tie_quota

_HALF = (torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max


def search_threshold(logits: Tensor, mass: Tensor | None, goal: Tensor) -> Tensor:
    """The largest value such that the tokens at or above it have a mass of at least `goal`; -inf if none is.

    Args:
        logits: (rows, vocab), float32, bfloat16 or float16; NaN is never at or above anything.
        mass: (rows, vocab), float32, not negative; None counts tokens.
        goal: (rows, 1), of any type.
    Returns:
        (rows, 1), float32, the largest number for +inf. Host sync: none. Memory: (rows, vocab / 2) float32.
    """
    return _search(logits, mass, goal).float().clamp_(max=_LARGEST)


def search_nucleus(logits: Tensor, mass: Tensor, top: Tensor, temperature: Setting | None, goal: Tensor) -> Cut:
    """Cut each row where the mass of its largest values reaches a goal.

    Args:
        logits: (rows, vocab), float32, bfloat16 or float16.
        mass: (rows, vocab), float32: exp of the log-weights, 0 for NaN; see `cuts.log_weight`.
        goal: (rows, 1), float64.
    Returns:
        The cut. Host sync: none. Memory: (rows, vocab / 2) float32.
    """
    threshold = _search(logits, mass, goal)
    missing = goal - _mass_where(torch.gt, logits, mass, threshold)
    number = threshold.float().clamp_(max=_LARGEST)
    return Cut(number, tie_quota(missing, log_weight(number, top, temperature).exp_()))


def mass_from(logits: Tensor, mass: Tensor, threshold: Tensor) -> Tensor:
    """The mass of the tokens at or above a threshold (rows, 1): (rows, 1), float32."""
    return _mass_where(torch.ge, logits, mass, threshold.to(logits.dtype))


def _search(logits: Tensor, mass: Tensor | None, goal: Tensor) -> Tensor:
    """As `search_threshold`, in the logits' own type."""
    lowest, highest = (_key(logits.new_full((len(logits), 1), end)) for end in (-math.inf, math.inf))
    for _ in range(16 if logits.dtype in _HALF else 32):
        middle = (lowest + highest + 1) >> 1
        enough = _mass_where(torch.ge, logits, mass, _value(middle, logits.dtype)) >= goal
        lowest = torch.where(enough, middle, lowest)
        highest = torch.where(enough, highest, middle - 1)
    return _value(lowest, logits.dtype)


def _mass_where(compare: Any, logits: Tensor, mass: Tensor | None, threshold: Tensor) -> Tensor:
    """The mass of the tokens whose logits compare with a threshold (rows, 1), or their number: (rows, 1), float32."""
    half = -(-logits.shape[1] // 2)  # of the row at a time, to hold half of it
    total = torch.zeros(threshold.shape, dtype=torch.float32, device=logits.device)
    for columns in (slice(0, half), slice(half, None)):
        part = logits[:, columns]
        hits = compare(part, threshold, out=torch.empty(part.shape, dtype=torch.float32, device=part.device))
        total += (hits if mass is None else hits.mul_(mass[:, columns])).sum(-1, keepdim=True)
        del hits  # before the next are made
    return total


def _key(values: Tensor) -> Tensor:
    """Numbers as int64 in the same order."""
    half, integer = (2**15, torch.int16) if values.dtype in _HALF else (2**31, torch.int32)
    pattern = values.view(integer).long()
    return torch.where(pattern < 0, -1 - pattern, pattern + half)


def _value(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of these keys."""
    half, integer = (2**15, torch.int16) if dtype in _HALF else (2**31, torch.int32)
    return torch.where(keys < half, -1 - keys, keys - half).to(integer).view(dtype)
