"""Kernels for the dispatch key of CUDA: a tensor that torch's C++ code allocates on "cuda:1" is a virtual one.

They serve functions that take a device and have no substitute: those that were imported before the block, and
compositions such as torch.fft.fftfreq.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gen.testing.machine import issued, machine
from gen.testing.tensors.plain_tensors import as_plain
from gen.testing.tensors.virtual_tensor import on_gpu


def _empty(
    size: Sequence[int],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    with as_plain():
        made = torch.ops.aten.empty.memory_format(
            size, dtype=dtype, layout=layout, device="cpu", memory_format=memory_format
        )
    return _on_gpu(made, device)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    with as_plain():
        made = torch.ops.aten.empty_strided.default(size, stride, dtype=dtype, layout=layout, device="cpu")
    return _on_gpu(made, device)


def _indices(name: str) -> Callable[..., Tensor]:
    """torch.tril_indices and triu_indices, which are kernels of their own."""
    packet = getattr(torch.ops.aten, name)

    def make(row: int, col: int, offset: int = 0, *, device: Any = None, **kwargs: Any) -> Tensor:
        known = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        with as_plain():
            made = packet(row, col, offset, device="cpu", **known)
        return _on_gpu(made, device)

    return make


def _on_gpu(made: Tensor, device: Any) -> Tensor:
    gpu = machine().index(device)
    assert gpu is not None  # the dispatch key says so
    issued[gpu] += 1
    return on_gpu(made, gpu)


def register() -> Callable[[], None]:
    """Register the kernels; returns a function that removes them."""
    torch._C._ensureCUDADeviceGuardSet()
    kernels = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    kernels.impl("empty.memory_format", _empty, "CUDA")  # type: ignore[no-untyped-call]
    kernels.impl("empty_strided", _empty_strided, "CUDA")  # type: ignore[no-untyped-call]
    for name in ("tril_indices", "triu_indices"):
        kernels.impl(name, _indices(name), "CUDA")  # type: ignore[no-untyped-call]
    return kernels._destroy
