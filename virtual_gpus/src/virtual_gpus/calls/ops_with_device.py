"""Operators that are called directly, like torch.ops.aten.zeros.default in exported programs, and name a device."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from virtual_gpus.calls.factories import LIKE, NEW, check_generator, make
from virtual_gpus.calls.tensor_to import machine_index, to
from virtual_gpus.machine import CPU
from virtual_gpus.rules.same_device import device_of, place_of
from virtual_gpus.tensors.plain_tensors import as_plain
from virtual_gpus.tensors.virtual_tensor import VirtualTensor, on_gpu

torch_device = torch.device
_MOVES = {"aten::to", "aten::_to_copy", "prims::device_put"}
_WITH_MODEL = {f"aten::{name}" for name in (*LIKE, *NEW)}
_OF_COPIES = ("dtype", "non_blocking", "copy", "memory_format")


def of_overloads(original: Callable[..., Any]) -> Callable[..., Any]:
    """An `OpOverload.__call__` that tells a device that the program names from one that torch's own code fills in."""

    def __call__(self: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
        if _names_device(args, kwargs) and _takes_device(self):
            return _call(partial(original, self), self, args, kwargs)
        return original(self, *args, **kwargs)

    return __call__


def of_packets(original: Callable[..., Any]) -> Callable[..., Any]:
    """An `OpOverloadPacket.__call__` that calls the overload where a device is named."""

    def __call__(self: OpOverloadPacket, /, *args: Any, **kwargs: Any) -> Any:
        if _names_device(args, kwargs) and _some_takes_device(self):
            name = torch._C._jit_resolve_packet(self._qualified_op_name, *args, **kwargs)
            return getattr(self, name or "default")(*args, **kwargs)
        return original(self, *args, **kwargs)

    return __call__


def _names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(type(value) is torch_device or type(value) is str for value in (*args, *kwargs.values()))


@cache
def _takes_device(func: OpOverload) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


@cache
def _some_takes_device(packet: OpOverloadPacket) -> bool:
    return any(_takes_device(getattr(packet, name)) for name in packet.overloads())  # type: ignore[no-untyped-call]


def _call(original: Callable[..., Any], func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    name = func._schema.name
    if name in _WITH_MODEL:
        return make(original, args, kwargs, with_model=True)
    device = named.pop("device")
    if name in _MOVES:
        wanted = {key: value for key, value in named.items() if key in _OF_COPIES and value is not None}
        if name == "aten::_to_copy":
            wanted["copy"] = True
        moves = machine_index(device) is not None or place_of(tensors[0]) != CPU
        return to(tensors[0], device, **wanted) if moves else original(*args, **kwargs)
    if name == "aten::_assert_tensor_metadata":
        return _check_metadata(original, named, device)
    target = machine_index(device)
    if target is None or not any(type(tensor) is VirtualTensor for tensor in tensors):
        check_generator(named.get("generator"), target)
        return original(*args, **kwargs)
    with as_plain():
        return on_gpu(original(**named, device=torch_device("cpu")), target)


def _check_metadata(original: Callable[..., Any], named: dict[str, Any], device: torch.device | None) -> Any:
    """Check a tensor's device, as torch's own check would on CUDA, and all else by torch's check."""
    tensor = named.pop("a")
    found = device_of(tensor)
    if device is not None and found != torch_device(device):
        raise RuntimeError(f"Tensor device mismatch! Expected: {device}, Got: {found}")
    return original(tensor, **named)
