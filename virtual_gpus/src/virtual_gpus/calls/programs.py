"""Programs: compiled ones run as they are, since compiled code runs only on real devices; exported ones call operators
directly, like torch.ops.aten.zeros.default, and name a device; modules, also TorchScript's, are moved by C++ code.
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.jit._builtins import _get_builtin_table
from torch.nn import Parameter
from torch.nn.attention import flex_attention
from torch.utils._pytree import tree_leaves

from virtual_gpus import DeviceError
from virtual_gpus.calls.factories import LIKE, NEW, check_generator, make
from virtual_gpus.calls.tensor_to import machine_index, to
from virtual_gpus.machine import CPU, DEVICES, machine
from virtual_gpus.plain_tensors import as_plain
from virtual_gpus.rules.same_device import device_of, place_of
from virtual_gpus.syncs import not_reported
from virtual_gpus.virtual_tensor import VirtualTensor, on_gpu

_EAGER = torch._C.DispatchKey.CompositeExplicitAutograd


def not_compiled(model: Any = None, **options: object) -> Any:
    """A torch.compile that leaves functions as they are; a module gets its usual wrapper, which has `_orig_mod`."""
    if model is None:
        return lambda function: not_compiled(function)
    if not isinstance(model, nn.Module):
        return model
    from torch._dynamo import OptimizedModule

    uncompiled: Any = lambda function: function  # noqa: E731
    return OptimizedModule(model, uncompiled)


def no_export(*args: object, **kwargs: object) -> Any:
    raise DeviceError(
        "torch.export cannot trace virtual GPUs: export on the CPU before the block, and move the program."
    )


def compile_alike(substitute: object, original: object) -> None:
    """Have TorchScript compile the substitute of a torch function to the operator of that function."""
    # a table by id, which torch fills at the first call
    operators = _get_builtin_table()  # type: ignore[no-untyped-call]
    operator = operators.get(id(original))
    if operator is not None:
        operators[id(substitute)] = operator


def compile_as_itself(substitute: object) -> None:
    """Undo `compile_alike`: another object may get its id."""
    _get_builtin_table().pop(id(substitute), None)  # type: ignore[no-untyped-call]


def eagerly(original: Callable[..., Any]) -> Callable[..., Any]:
    """A `HigherOrderOperator.__call__` that runs torch.cond, flex_attention and the like without tracing them."""

    @wraps(original)
    def __call__(self: HigherOrderOperator, /, *args: Any, **kwargs: Any) -> Any:
        eager = self.py_kernels.get(_EAGER)
        if eager is None or not any(type(leaf) is VirtualTensor for leaf in tree_leaves((args, kwargs))):
            return original(self, *args, **kwargs)
        if self.name() != "flex_attention":  # type: ignore[no-untyped-call]
            return eager(*args, **kwargs)
        with not_reported():  # constants of a fused kernel
            return eager(*args, **kwargs)

    return __call__


_torch_device = torch.device
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
    return any(type(value) is _torch_device or type(value) is str for value in (*args, *kwargs.values()))


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
        by_autograd = named.get("layout") is not None and torch._C._current_graph_task_id() >= 0
        moves = not by_autograd and (machine_index(device) is not None or place_of(tensors[0]) != CPU)
        return to(tensors[0], device, **wanted) if moves else original(*args, **kwargs)
    if name == "aten::_assert_tensor_metadata":
        return _check_metadata(original, named, device)
    target = machine_index(device)
    if target is None or not any(type(tensor) is VirtualTensor for tensor in tensors):
        check_generator(named.get("generator"), target)
        return original(*args, **kwargs)
    with as_plain():
        return on_gpu(original(**named, device=_torch_device("cpu")), target)


def _check_metadata(original: Callable[..., Any], named: dict[str, Any], device: torch.device | None) -> Any:
    """Check a tensor's device, as torch's own check would on CUDA, and all else by torch's check."""
    tensor = named.pop("a")
    found = device_of(tensor)
    if device is not None and found != _torch_device(device):
        raise RuntimeError(f"Tensor device mismatch! Expected: {device}, Got: {found}")
    return original(tensor, **named)


def parse_to(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch._C._nn._parse_to, which also takes the index of a GPU, and a tensor on one."""

    @wraps(original)
    def parse(*args: Any, **kwargs: Any) -> Any:
        like = args[0] if args else kwargs.get("tensor", kwargs.get("other"))
        if type(like) is VirtualTensor:
            flags = {name: value for name, value in kwargs.items() if name not in ("tensor", "other")}
            return original(device_of(like), like.dtype, *args[1:], **flags)
        device = args[0] if args else kwargs.get("device")
        if isinstance(device, int) and not isinstance(device, bool):
            index = machine().index(device)
            assert index is not None  # an index names a GPU
            if args:
                return original(DEVICES[index], *args[1:], **kwargs)
            return original(**{**kwargs, "device": DEVICES[index]})
        return original(*args, **kwargs)

    return parse


@torch.no_grad()
def apply_to_script(module: Any, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
    """`ScriptModule._apply`: it sets the tensors in C++, since changes to their Python objects have no effect there."""
    if recurse:
        for child in module.children():
            child._apply(function)
    for name, parameter in list(module._parameters.items()):
        if parameter is not None:
            module._c.setattr(name, Parameter(function(parameter), parameter.requires_grad))
    for name, buffer in list(module._buffers.items()):
        if buffer is not None:
            module._c.setattr(name, function(buffer))
    return module


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value)."""
    return [
        (torch, "compile", not_compiled),
        (torch.export, "export", no_export),
        (HigherOrderOperator, "__call__", eagerly(HigherOrderOperator.__call__)),
        (flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        (OpOverload, "__call__", of_overloads(OpOverload.__call__)),
        (OpOverloadPacket, "__call__", of_packets(OpOverloadPacket.__call__)),
        (torch._C._nn, "_parse_to", parse_to(torch._C._nn._parse_to)),
        (torch.jit.RecursiveScriptModule, "_apply", apply_to_script),  # type: ignore[attr-defined]
    ]
