"""Kernels for the dispatch keys of CUDA: a tensor that torch's C++ code allocates on "cuda:1" is a virtual one.

All factories end here: torch.zeros allocates with `empty`, and fills what it gets.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.cuda import memory
from virtual_gpus.machine import issued, machine
from virtual_gpus.tensors.plain_tensors import as_plain
from virtual_gpus.tensors.virtual_tensor import on_gpu

_LARGE = 2**20  # bytes


def _kernel(overload: Any) -> Callable[..., Tensor]:
    """A kernel that makes the tensor on the CPU."""

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        gpu = machine().index(device)
        assert gpu is not None  # the dispatch key says so
        _check_memory(args, kwargs.get("dtype"), gpu)
        with as_plain():
            made = overload(*args, device="cpu", **kwargs)
        if "empty" not in overload.name():
            issued[gpu] += 1
        return on_gpu(made, gpu)

    return make


def _check_memory(sizes: Sequence[Any], dtype: torch.dtype | None, gpu: int) -> None:
    """Raise OutOfMemoryError before the host takes the memory of a large tensor."""
    if not sizes or not isinstance(sizes[0], list | tuple):
        return
    elements = prod(sizes[0])
    if len(sizes) > 1 and elements:  # strides, too
        elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes[0], sizes[1], strict=True))
    size = elements * (dtype or torch.get_default_dtype()).itemsize
    if size > _LARGE:
        memory.check(size, gpu)


def register() -> Callable[[], None]:
    """Register the kernels; returns a function that removes them."""
    torch._C._ensureCUDADeviceGuardSet()
    kernels = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    aten = torch.ops.aten
    for overload, *keys in (
        (aten.empty.memory_format, "CUDA", "SparseCUDA", "SparseCsrCUDA"),
        (aten.empty_strided.default, "CUDA"),
        (aten._efficientzerotensor.default, "CUDA"),
        (aten._empty_affine_quantized.default, "CUDA", "QuantizedCUDA"),
        (aten._empty_per_channel_affine_quantized.default, "CUDA", "QuantizedCUDA"),
        (aten.tril_indices.default, "CUDA"),
        (aten.triu_indices.default, "CUDA"),
    ):
        for key in keys:
            kernels.impl(overload, _kernel(overload), key)  # type: ignore[no-untyped-call]
    return kernels._destroy
