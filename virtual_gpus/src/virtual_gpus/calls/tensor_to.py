"""Moves tensors between the CPU and virtual GPUs: `to`, `cuda`, `cpu`, `pin_memory`, and `.data =`.

Of parameters and buffers of lazy modules, only their later device is kept until they have a shape.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin  # type: ignore[attr-defined]

from virtual_gpus import DeviceError, faults
from virtual_gpus.cuda import races
from virtual_gpus.cuda.races import report_transfer
from virtual_gpus.machine import CPU, DEVICES, active_machine, device_type, machine
from virtual_gpus.plain_tensors import as_plain, directly, is_foreign, plain, remember, wrapped
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.virtual_tensor import PinnedTensor, VirtualTensor, on_gpu, pinned

_to: Callable[..., Tensor] = Tensor.to
_data = Tensor.data
_FLAGS = {"non_blocking"}  # makes no difference to a tensor that stays
_Device = torch.device  # which may have a substitute in a block
_grad: Any = torch._C.TensorBase.grad


class Transfer(NamedTuple):
    """What a call of `Tensor.to` asks for.

    Attributes:
        device: None to leave the tensor where it is.
        dtype: None to leave it.
    """

    device: Any = None
    dtype: torch.dtype | None = None
    non_blocking: bool = False
    copy: bool = False
    memory_format: torch.memory_format = torch.preserve_format


def read_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Transfer:
    """The arguments of `Tensor.to` in all its forms: (device, dtype), (dtype), or (other tensor), then the flags."""
    rest = list(args)
    wanted: dict[str, Any] = {}
    if rest and isinstance(rest[0], torch.dtype):
        wanted["dtype"] = rest.pop(0)
    elif rest and isinstance(rest[0], Tensor):
        other = rest.pop(0)
        wanted |= {"device": other.device, "dtype": other.dtype}
    elif rest:
        wanted["device"] = rest.pop(0)
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            wanted["dtype"] = rest.pop(0)
    wanted |= dict(zip(("non_blocking", "copy"), rest, strict=False))
    other = kwargs.get("other")
    if other is not None:
        wanted |= {"device": other.device, "dtype": other.dtype}
    wanted |= {name: value for name, value in kwargs.items() if name != "other"}
    if wanted.get("memory_format", 0) is None:
        del wanted["memory_format"]
    return Transfer(**wanted)


def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to`, also to and from virtual GPUs."""
    if type(tensor) is VirtualTensor and len(args) == 1 and kwargs.keys() <= _FLAGS and _stays(tensor, args[0]):
        return tensor
    wanted = read_to(args, kwargs)
    if isinstance(tensor, UninitializedTensorMixin) and wanted.device is not None:
        lazy: Tensor = placed_later(tensor, wanted.device)
        return lazy
    place = place_of(tensor)
    target = place if wanted.device is None else machine_index(wanted.device)
    if is_foreign(tensor):
        target = None if target is None else place
    if target is None:  # no virtual GPU, but for example the CPU or meta
        if place == CPU:
            return _to(tensor, *args, **kwargs)
        if torch.device(wanted.device).type != "cpu":
            return _to(plain(tensor), *args, **kwargs)
        target = CPU
    if target == place:
        stays = {"non_blocking": wanted.non_blocking, "copy": wanted.copy, "memory_format": wanted.memory_format}
        return _to(tensor, wanted.dtype or tensor.dtype, **stays)
    if tensor.requires_grad and torch.is_grad_enabled():
        moved: Tensor = _Move.apply(tensor, target, wanted)  # type: ignore[no-untyped-call]
        return moved
    return _move(tensor, target, wanted)


def _stays(tensor: VirtualTensor, wanted: Any) -> bool:
    """Whether a tensor has the device, or the dtype, that it is asked to have, so that `to` gives it back as it is."""
    if torch._C._is_torch_function_mode_enabled():  # it is told of all calls
        return False
    if type(wanted) is torch.dtype:
        return tensor.dtype is wanted
    return isinstance(wanted, str | _Device) and machine_index(wanted) == tensor._gpu


def machine_index(device: Any) -> int | None:
    """The virtual GPU that a device names, see `Machine.index`; the CPU needs no open block."""
    if device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu"):
        return None
    return machine().index(device)


def _move(tensor: Tensor, target: int, wanted: Transfer) -> Tensor:
    """Copy a tensor to another device. As in torch, a non-blocking copy to the CPU makes a pinned tensor."""
    if place_of(tensor) == CPU and tensor.device.type != "cpu":
        if tensor.is_meta:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        raise DeviceError(
            f"a tensor on the real {tensor.device} cannot go to a virtual GPU: copy it to the CPU before."
        )
    if wrapped(tensor):
        raise DeviceError(
            "virtual GPUs do not move tensors within vmap, grad or jvp of torch.func: move them before the transform."
        )
    source = place_of(tensor)
    if faults.active and faults.leaves_placeholder(source, target):
        return torch.empty_like(plain(tensor), dtype=wanted.dtype or tensor.dtype, device="meta")
    into_pinned = wanted.non_blocking and target == CPU
    active, dtype = active_machine(), wanted.dtype or tensor.dtype
    if active is not None and active.captured is not None:  # a graph keeps operators
        device = "cpu" if target == CPU else DEVICES[target]
        made = torch.empty_like(tensor, dtype=dtype, device=device, pin_memory=into_pinned)
        return made.copy_(tensor, wanted.non_blocking)
    with as_plain():
        copied = _to(tensor, dtype=dtype, copy=True, memory_format=wanted.memory_format)
        copied = copied if type(copied) is Tensor else copied.as_subclass(Tensor)
    copied = pinned(copied) if into_pinned else copied
    report_transfer(tensor, target, wanted.non_blocking, races.pinned(tensor, copied))
    if faults.active:
        faults.arrive(copied, source, target)
    moved = on_gpu(copied, target) if target != CPU else copied
    if moved is copied:
        remember(copied)
    if races.state.on:
        races.copied(tensor, moved, wanted.non_blocking)
    return moved


class _Move(torch.autograd.Function):
    """A copy to another device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, target: int, wanted: Transfer) -> Tensor:
        ctx.source, ctx.dtype = place_of(tensor), tensor.dtype
        return _move(tensor, target, wanted)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _move(gradient, ctx.source, Transfer(dtype=ctx.dtype)), None, None


def cuda(
    tensor: Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """`Tensor.cuda`, or the method of the block's type of devices."""
    target = machine().index(device_type() if device is None else device)
    if target is None:
        raise RuntimeError(f"Invalid device, must be {device_type()} device, got {device!r}")
    return to(tensor, DEVICES[target], non_blocking=non_blocking, memory_format=memory_format)


def cpu(tensor: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
    """`Tensor.cpu`. Host sync: waits for a tensor on a GPU."""
    return to(tensor, "cpu", memory_format=memory_format)


def type_as(tensor: Tensor, other: Tensor) -> Tensor:
    """`Tensor.type_as`."""
    return to(tensor, other)


def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    """`Tensor.pin_memory`: a copy that counts as pinned."""
    if place_of(tensor) != CPU:
        raise RuntimeError("cannot pin 'torch.cuda.Tensor': only dense CPU tensors can be pinned")
    if type(tensor) is PinnedTensor:
        return tensor
    machine().refuse_capture("pin_memory")
    copied = tensor.clone()
    return copied.as_subclass(PinnedTensor) if copied.requires_grad else pinned(copied)


def set_data(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`, if either may be on a virtual GPU: the object stays, so tied weights stay tied."""
    if type(tensor) is type(data) or (not _special(tensor) and not _special(data)):
        with as_plain():
            _data.__set__(tensor, data)  # type: ignore[attr-defined]
        if type(tensor) is VirtualTensor:
            tensor._gpu = place_of(data)
        return
    with directly():
        gradient = _grad.__get__(tensor)
    fresh = data.detach()
    if isinstance(tensor, Parameter):
        fresh = Parameter(fresh, tensor.requires_grad)
    else:
        fresh.requires_grad_(tensor.requires_grad)
    # like torch.utils.swap_tensors, which refuses tensors with weak references
    tensor.__class__, fresh.__class__ = type(fresh), type(tensor)
    tensor.__dict__, fresh.__dict__ = fresh.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, fresh)
    if gradient is not None:  # nn.Module.to moves it next
        with directly():
            _grad.__set__(tensor, gradient)


def delete_data(tensor: Tensor) -> NoReturn:
    """`del tensor.data`, which torch refuses."""
    raise RuntimeError("Deleting tensor data is not allowed. Delete tensor instead!")


def _special(tensor: Tensor) -> bool:
    return type(tensor) is VirtualTensor or type(tensor) is PinnedTensor


LAZY = (UninitializedParameter, UninitializedBuffer)


def placed_later(lazy: Any, device: Any) -> Any:
    """The lazy parameter or buffer itself, with the virtual GPU that it will be on; torch handles other devices."""
    lazy._later = machine().index(device)
    return lazy


def materialize(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UninitializedParameter.materialize`."""

    @wraps(original)
    def make(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        gpu = getattr(self, "_later", None) if device is None else machine().index(device)
        if gpu is None:
            return original(self, shape, device, dtype)  # type: ignore[no-any-return]
        vars(self).pop("_later", None)
        values = torch.empty(shape, device=DEVICES[gpu], dtype=self.data.dtype if dtype is None else dtype)
        self.__class__ = self.cls_to_become
        self.data = values
        return None

    return make


def new(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UninitializedParameter.__new__` and the buffer's, for a device that may be a virtual GPU."""

    @wraps(original)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        if device is None or machine().index(device) is None:
            return original(cls, *args, **kwargs)
        given = dict(zip(("requires_grad", "device", "dtype"), args, strict=False))
        return placed_later(original(cls, **{**given, **kwargs, "device": "cpu"}), device)

    return make


_BY_TYPE = ("cuda", "xpu", "hpu", "npu")
METHODS: dict[str, Callable[..., Any]] = {
    "to": to, "cpu": cpu, "type_as": type_as, "pin_memory": pin_memory, **dict.fromkeys(_BY_TYPE, cuda),
}  # fmt: skip

for _name in ("to", "cpu", "type_as", "pin_memory"):  # for good, so that tensors left over from a block can be read
    setattr(VirtualTensor, _name, METHODS[_name])


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (class, name, value)."""
    return [
        *((Tensor, name, METHODS[name]) for name in METHODS if name not in _BY_TYPE or name == device_type()),
        (Tensor, "data", property(_data.__get__, set_data, delete_data)),  # type: ignore[attr-defined]
        (UninitializedTensorMixin, "materialize", materialize(UninitializedTensorMixin.materialize)),
        *((kind, "__new__", staticmethod(new(kind.__new__))) for kind in LAZY),
    ]
