"""Other names for devices: torch.device(1), which means a CUDA device as in a torch that was built for CUDA; and
torch.FloatTensor, torch.cuda.FloatTensor and the like, classes that stand for a dtype and a kind of device.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.calls.factories import report_reads
from virtual_gpus.calls.tensor_to import to
from virtual_gpus.machine import DEVICES, device_type, gpu_count, machine

_TorchDevice = torch.device


class _AnyDevice(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if len(args) == 1 and isinstance(args[0], int) and not kwargs and 0 <= args[0] < gpu_count():
            return DEVICES[args[0]]
        return _TorchDevice(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchDevice)

    def __eq__(cls, other: object) -> bool:  # torch.fx asks whether a class is torch.device
        return other is _TorchDevice or other is cls

    def __hash__(cls) -> int:
        return hash(_TorchDevice)


class Device(metaclass=_AnyDevice):
    """Stands for torch.device if a bare index is not a CUDA device there; it makes torch's own devices."""


def index_is_cuda() -> bool:
    """Whether torch's own torch.device(0) is cuda:0."""
    try:
        return torch.device(0).type == "cuda"
    except RuntimeError:
        return False


DTYPES = {
    "BFloat16": torch.bfloat16, "Bool": torch.bool, "Byte": torch.uint8, "Char": torch.int8, "Double": torch.float64,
    "Float": torch.float32, "Half": torch.float16, "Int": torch.int32, "Long": torch.int64, "Short": torch.int16,
}  # fmt: skip
_type = Tensor.type
_set_default_tensor_type = torch.set_default_tensor_type
_new = {name: getattr(torch, f"{name}Tensor") for name in DTYPES}


class _Typed(type):
    """The metaclass of these classes."""

    dtype: torch.dtype
    is_cuda: bool
    is_sparse = False
    layout = torch.strided
    letters: str

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if bases:
            of = bases[0]
            raise TypeError(f"type '{of.__module__}.{of.__name__}' is not an acceptable base type")
        return super().__new__(mcs, name, bases, namespace)

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.dtype == cls.dtype
            and instance.device.type == ("cuda" if cls.is_cuda else "cpu")
        )

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        report_reads(list(args))
        made: Tensor = _new[cls.letters](*args)
        if not cls.is_cuda:
            return made
        moved = to(made, DEVICES[machine().current] if device is None else device)
        return moved


def _make(name: str, is_cuda: bool) -> Any:
    module = "torch.cuda" if is_cuda else "torch"
    made = _Typed(f"{name}Tensor", (), {"__module__": module})
    made.dtype, made.is_cuda, made.letters = DTYPES[name], is_cuda, name
    return made


HOST = {f"{name}Tensor": _make(name, False) for name in DTYPES}
CUDA = {f"{name}Tensor": _make(name, True) for name in DTYPES}


def typed(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type`, which takes the classes above and their names."""

    @wraps(original)
    def convert(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith("torch."):
            *module, name = dtype.removeprefix("torch.").split(".")
            dtype = (CUDA if module == ["cuda"] else HOST).get(name, dtype)
        if type(dtype) is not _Typed:
            return original(self, dtype, non_blocking, **kwargs) if dtype is not None else original(self)
        if not dtype.is_cuda:
            return to(self, "cpu", dtype.dtype, non_blocking=non_blocking)
        device = self.device if self.is_cuda else DEVICES[machine().current]
        return to(self, device, dtype.dtype, non_blocking=non_blocking)

    return convert


def with_default_type(original: Callable[..., None]) -> Callable[..., None]:
    """`torch.set_default_tensor_type`, which sets a dtype and a device."""

    @wraps(original)
    def set_default(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        of_gpu = name.startswith("torch.cuda.")
        original(_new.get(name.rpartition(".")[2].removesuffix("Tensor"), kind))
        torch.set_default_device(DEVICES[machine().current] if of_gpu else None)

    return set_default


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value)."""
    return [
        *([] if index_is_cuda() else [(torch, "device", Device)]),
        *((torch, name, made) for name, made in HOST.items()),
        *((torch.cuda, name, made) for name, made in CUDA.items() if device_type() == "cuda"),
        (Tensor, "type", typed(_type)),
        (torch, "set_default_tensor_type", with_default_type(_set_default_tensor_type)),
    ]
