"""Operators that are called directly, like torch.ops.aten.zeros.default in exported programs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from gen.testing.calls import tensor_to
from gen.testing.calls.factories import check_generator
from gen.testing.cuda.generators import drawing_from
from gen.testing.machine import issued, machine
from gen.testing.tensors.plain_tensors import as_plain
from gen.testing.tensors.virtual_tensor import on_gpu

torch_device = torch.device
_MOVES = ("aten::to", "aten::_to_copy")


def taking_virtual_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    """An `OpOverload.__call__` that takes virtual GPUs as devices."""

    def __call__(self: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            kind = type(value)
            if (kind is torch_device and value.type == "cuda") or (kind is str and value.startswith("cuda")):
                return _call_on_gpu(original, self, args, kwargs)
        return original(self, *args, **kwargs)

    return __call__


def _call_on_gpu(
    original: Callable[..., Any], func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Run a factory or a copy that names a virtual GPU."""
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    gpu = machine().index(named.pop("device"))
    assert gpu is not None  # there is such a device among the arguments
    if func._schema.name in _MOVES:
        tensor = named.pop("self")
        known = ("dtype", "non_blocking", "copy", "memory_format")
        wanted = {name: value for name, value in named.items() if name in known and value is not None}
        return tensor_to.to(tensor, torch.device("cuda", gpu), **wanted)
    named.pop("pin_memory", None)
    check_generator(named.get("generator"), gpu)
    issued[gpu] += 1
    drawn = torch.Tag.nondeterministic_seeded in func.tags and named.get("generator") is None
    takes = any(argument.name == "generator" for argument in func._schema.arguments)
    with as_plain():
        if drawn:
            with drawing_from(gpu, takes) as own:
                return on_gpu(original(func, **(named | own), device=torch.device("cpu")), gpu)
        return on_gpu(original(func, **named, device=torch.device("cpu")), gpu)
