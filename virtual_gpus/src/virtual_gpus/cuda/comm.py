"""Copies of one tensor to several GPUs and back: the C++ functions that torch.cuda.comm and nn.DataParallel call."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.calls.tensor_to import to
from virtual_gpus.errors import DeviceMismatchError
from virtual_gpus.machine import DEVICES, machine


def _device(device: Any) -> torch.device:
    if device == -1:
        return torch.device("cpu")
    index = machine().index(device)
    return torch.device("cpu") if index is None else DEVICES[index]


def broadcast(tensor: Tensor, devices: Sequence[Any]) -> list[Tensor]:
    return [to(tensor, _device(device), non_blocking=True) for device in devices]


def broadcast_out(tensor: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    return [output.copy_(tensor, non_blocking=True) for output in outputs]


def broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[Any], buffer_size: int) -> list[list[Tensor]]:
    """The list of copies for each device.

    Raises:
        DeviceMismatchError: a tensor is not on the first device.
    """
    first = _device(devices[0])
    for tensor in tensors:
        if tensor.device != first:
            raise DeviceMismatchError(
                f"All tensors must be on devices[0]: {first.index}, got one on {tensor.device}: move it there."
            )
    return [[to(tensor, _device(device), non_blocking=True) for tensor in tensors] for device in devices]


def scatter(
    tensor: Tensor, devices: Sequence[Any], chunk_sizes: Sequence[int] | None, dim: int, streams: Any = None
) -> list[Tensor]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)  # type: ignore[no-untyped-call]
    return [to(chunk, _device(device), non_blocking=True) for chunk, device in zip(chunks, devices, strict=False)]


def scatter_out(tensor: Tensor, outputs: Sequence[Tensor], dim: int, streams: Any = None) -> list[Tensor]:
    chunks = tensor.split([output.shape[dim] for output in outputs], dim)  # type: ignore[no-untyped-call]
    return [output.copy_(chunk, non_blocking=True) for output, chunk in zip(outputs, chunks, strict=True)]


def gather(tensors: Sequence[Tensor], dim: int, destination: Any = None) -> Tensor:
    place = _device(machine().current if destination is None else destination)
    return torch.cat([to(tensor, place, non_blocking=True) for tensor in tensors], dim)


def gather_out(tensors: Sequence[Tensor], output: Tensor, dim: int) -> Tensor:
    return output.copy_(torch.cat([to(tensor, output.device) for tensor in tensors], dim))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_broadcast": broadcast,
    "_broadcast_out": broadcast_out,
    "_broadcast_coalesced": broadcast_coalesced,
    "_scatter": scatter,
    "_scatter_out": scatter_out,
    "_gather": gather,
    "_gather_out": gather_out,
}
