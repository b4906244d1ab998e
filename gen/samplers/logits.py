"""Checks logits, which may have any floating type, and converts them to one that the backends compute with."""

import math

import torch
from torch import Tensor

from gen.errors import ArgumentError

_NATIVE = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max


def check_logits(logits: Tensor) -> None:
    """Raise an ArgumentError unless these are floating logits (rows, vocab), where vocab is at least 1."""
    if logits.dim() != 2 or not logits.is_floating_point() or logits.shape[1] == 0:
        raise ArgumentError(
            f"logits must be a floating tensor (rows, vocab), got {tuple(logits.shape)} of {logits.dtype}"
        )


def log_probabilities(logits: Tensor) -> Tensor:
    """The log-probabilities of logits (rows, vocab), float32; NaN counts as -inf, and all are NaN if no logit is above
    -inf. Host sync: none.
    """
    return cleaned(native(logits).float()).log_softmax(-1)


def cleaned(values: Tensor) -> Tensor:
    """A copy of numbers in float32, with -inf for NaN, and the largest number for +inf."""
    return values.nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)


def native(logits: Tensor) -> Tensor:
    """Logits in float32, or in half precision if they came so; copied only if the type changes.

    If the best logit of a float64 row is beyond float32, the row is converted relative to that logit: its neighbours
    stay distinct. Host sync: none.
    """
    if logits.dtype in _NATIVE:
        return logits
    if logits.dtype != torch.float64:
        return logits.float()
    top = logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax(-1, keepdim=True)
    near = (top.abs() <= _LARGEST) | top.isinf()
    return (logits - top.masked_fill(near, 0)).float()
