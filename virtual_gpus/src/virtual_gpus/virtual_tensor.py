"""A tensor that computes on the CPU and reports a virtual GPU as its device.

It holds its values itself, like an ordinary CPU tensor: views, in-place operations, `out=` and autograd are torch's
own. It adds a place, which every result inherits, and a check of all places before each operation. Where the host reads
it, as numbers, text or a NumPy array, it waits for the device.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MethodWrapperType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter
from torch.overrides import handle_torch_function

from virtual_gpus.call_sites import CallSite, call_site
from virtual_gpus.cuda import memory, races
from virtual_gpus.machine import DEVICES
from virtual_gpus.plain_tensors import as_plain, directly, inside, plain, wrapped
from virtual_gpus.syncs import not_reported, report_sync

_make_subclass = Tensor._make_subclass


class Handlers:
    """The functions that run calls on virtual tensors. `calls.dispatch`, which imports this file, sets them."""

    function: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
    operator: Callable[[OpOverload, Sequence[Any], Mapping[str, Any]], Any]


handlers = Handlers()


class VirtualTensor(Tensor):
    """A tensor on a virtual GPU. `on_gpu` makes one; a call of the class, as in accelerate, makes a parameter."""

    in_host_memory = True  # its values are an ordinary CPU tensor's, see `plain_tensors.is_foreign`
    _gpu: int
    _made_at: CallSite | None

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Any:
        return Parameter(data, bool(requires_grad))

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if type(func) is MethodWrapperType:  # an attribute
            with directly():
                return func(*args, **(kwargs or {}))
        return handlers.function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return handlers.operator(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICES[self._gpu]

    def _is_of(kind: str) -> Any:  # type: ignore[misc]
        return property(lambda self: self.device.type == kind)

    is_cuda, is_xpu, is_mps = _is_of("cuda"), _is_of("xpu"), _is_of("mps")

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return self._gpu

    def is_pinned(self, device: object = None) -> bool:
        return False

    def is_shared(self) -> bool:
        return True

    def record_stream(self, stream: Any) -> None:
        """No memory is freed too early here, but the check of races is told."""
        history = races.history_of(self) if races.state.on else None
        if history is not None:
            history.recorded.add(stream.key)

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is not None:
            return Tensor.type(self, dtype, non_blocking, **kwargs)
        return plain(self).type().replace("torch.", f"torch.{self.device.type}.", 1)

    def tolist(self) -> Any:
        report_sync("tolist")
        races.waited_for(self)
        return self.host_copy().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        report_sync("numpy")
        races.waited_for(self)
        return self.host_copy().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def host_copy(self) -> Tensor:
        """Its values as an ordinary CPU tensor with memory of its own; not reported as a host sync."""
        with torch.no_grad(), as_plain():
            return self.clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        report_sync("printing a tensor")
        races.waited_for(self)
        with not_reported():
            shown = self.host_copy()
            if self.requires_grad and self.is_leaf:
                shown.requires_grad_()
            text = f"{shown!r}"
        kind = "Parameter containing:\n" if isinstance(self, Parameter) else ""
        return f"{kind}{text[:-1]}, device='{self.device}')"

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if self.dim() == 0 else object.__format__(self, format_spec)

    def apply_(self, function: Any) -> Any:
        raise TypeError("apply_ is only implemented on CPU tensors")

    def map_(self, tensor: Any, function: Any) -> Any:
        raise TypeError("map_ is only implemented on CPU tensors")

    def map2_(self, x: Any, y: Any, function: Any) -> Any:
        raise TypeError("map2_ is only implemented on CPU tensors")


class PinnedTensor(Tensor):
    """A CPU tensor in memory that counts as pinned; so are its views."""

    in_host_memory = True

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return handlers.operator(func, args, kwargs or {})

    def is_pinned(self, device: object = None) -> bool:
        return True

    def pin_memory(self, device: object = None) -> Tensor:
        return self

    def numpy(self, *, force: bool = False) -> Any:
        races.read_by_host(self)
        return plain(self).numpy(force=force)

    def tolist(self) -> Any:
        races.read_by_host(self)
        return plain(self).tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        races.read_by_host(self)
        return repr(plain(self))


def on_gpu(tensor: Tensor, gpu: int) -> Tensor:
    """An ordinary CPU tensor as a leaf tensor on a virtual GPU; they share memory. Other tensors are returned as is."""
    if type(tensor) is not Tensor:
        return tensor
    if torch._C._is_torch_function_mode_enabled():
        seen: Tensor = handle_torch_function(on_gpu, (), tensor, gpu)
        return seen
    if wrapped(tensor):  # a constant that was made within torch.func
        with torch._C._DisableFuncTorch():
            return on_gpu(inside(tensor), gpu)
    memory.count(tensor, gpu)
    return _placed(_make_subclass(VirtualTensor, tensor, tensor.requires_grad), gpu)


def _placed(tensor: Any, gpu: int) -> VirtualTensor:
    """A new tensor with its place, and where it was made."""
    tensor._gpu = gpu
    tensor._made_at = call_site()
    made: VirtualTensor = tensor
    return made


def pinned(tensor: Tensor) -> PinnedTensor:
    """An ordinary CPU tensor as one in pinned memory; they share memory."""
    made: PinnedTensor = _make_subclass(PinnedTensor, tensor)
    return made


def adopt(out: Any, home: int) -> Any:
    """Put ordinary tensors that torch made itself on a GPU; they share memory."""
    if type(out) is Tensor:
        if wrapped(out) or out.is_meta:
            return out
        memory.count(out, home)
        if out.layout is not torch.strided and not out.requires_grad:
            return _placed(_make_subclass(VirtualTensor, out), home)  # sparse tensors have no alias
        return _placed(out.as_subclass(VirtualTensor), home)
    if type(out) is tuple or type(out) is list:
        items = type(out)(adopt(item, home) for item in out)
        same = all(item is given for item, given in zip(items, out, strict=True))
        return out if same else items  # an in-place call returns the list that it was given
    return out


def mark(out: Any, home: int) -> Any:
    """Put an operator's new tensors on a GPU."""
    kind = type(out)
    if kind is Tensor:
        memory.count(out, home)
        return _placed(_make_subclass(VirtualTensor, out), home)
    if kind is tuple or kind is list:
        return kind(mark(item, home) for item in out)
    return out
