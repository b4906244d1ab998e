"""What logits may be: any floating type, in the three that the backends compute with."""

import math

import torch
from torch import Tensor

from gen.errors import ArgumentError

_NATIVE = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max


def check_logits(logits: Tensor) -> None:
    """Raise an ArgumentError unless these are floating logits (rows, vocab) of one token at least."""
    if logits.dim() != 2 or not logits.is_floating_point() or logits.shape[1] == 0:
        raise ArgumentError(
            f"logits must be a floating tensor (rows, vocab), got {tuple(logits.shape)} of {logits.dtype}"
        )


def native(logits: Tensor) -> Tensor:
    """float32 and half precision as they are, other floating types in float32; copied only where the type changes.

    Rows of float64 whose best logit is beyond float32 are taken relative to it, which keeps what is near it apart.
    Host sync: none.
    """
    if logits.dtype in _NATIVE:
        return logits
    if logits.dtype != torch.float64:
        return logits.float()
    top = logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax(-1, keepdim=True)
    near = (top.abs() <= _LARGEST) | top.isinf()
    return (logits - top.masked_fill(near, 0)).float()
