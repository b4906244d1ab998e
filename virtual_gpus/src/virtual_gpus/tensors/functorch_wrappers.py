"""torch.func's wrappers around tensors: vmap, grad and jvp compute on the inner tensor, and have its device."""

from typing import Any

import torch
from torch import Tensor

_functorch = torch._C._functorch
_device: Any = torch._C.TensorBase.device


def wrapped(tensor: Any) -> bool:
    """Whether a tensor is one of torch.func's wrappers."""
    return type(tensor) is Tensor and (
        _functorch.is_functorch_wrapped_tensor(tensor) or _functorch.is_legacy_batchedtensor(tensor)
    )


def inside(tensor: Tensor) -> Tensor:
    """The innermost tensor of torch.func's wrappers."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def device(tensor: Tensor) -> torch.device:
    """`Tensor.device` in the block: a wrapper has the device of its inner tensor."""
    if type(tensor) is Tensor and _functorch.is_functorch_wrapped_tensor(tensor):
        return inside(tensor).device
    found: torch.device = _device.__get__(tensor)
    return found
