"""`nn.Module.to` and the like, which read their arguments in C++, and modules of TorchScript."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from virtual_gpus.machine import DEVICES, machine
from virtual_gpus.rules.same_device import device_of
from virtual_gpus.tensors.virtual_tensor import VirtualTensor


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
        (torch._C._nn, "_parse_to", parse_to(torch._C._nn._parse_to)),
        (torch.jit.RecursiveScriptModule, "_apply", apply_to_script),  # type: ignore[attr-defined]
    ]
