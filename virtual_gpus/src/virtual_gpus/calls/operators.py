"""Operators that run in Python: kernels that users wrote, which run on the virtual tensors, so that every call is seen;
and `torch._foreach_*` and optimizers over tensors of several devices, like CUDA's slow path one tensor at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload
from torch.optim.optimizer import _foreach_supported_types as _by_optimizers
from torch.utils._foreach_utils import _foreach_supported_types as _by_utilities

from virtual_gpus import DeviceMismatchError
from virtual_gpus.call_sites import current_call
from virtual_gpus.machine import BACKENDS, CPU, device_type
from virtual_gpus.rules.op_rule import OpRule
from virtual_gpus.rules.same_device import device_of, place_of
from virtual_gpus.virtual_tensor import VirtualTensor

_EVERYWHERE = "CompositeExplicitAutograd"


def run_in_python(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the kernel for CUDA, or the one for all devices.

    Raises:
        NotImplementedError: there is only a kernel for the CPU, and a tensor is on a GPU.
    """
    on_gpu = any(place_of(tensor) != CPU for _, _, tensor in rule.tensors(args, kwargs))
    kernel = _kernel(rule.func, device_type() if on_gpu else "cpu")
    outer = current_call.given
    current_call.given = CPU, ()  # torch makes no tensor of its own in a user's kernel
    try:
        return kernel(*args, **kwargs)
    finally:
        current_call.given = outer


def _kernel(func: OpOverload, kind: str) -> Callable[..., Any]:
    definition: Any = OPDEFS.get(f"{func.namespace}::{func._schema.name.split('::')[1]}")
    if definition is not None:
        kernels = definition._backend_fns
        found = kernels.get(kind, kernels.get(None))
        if found is not None:
            return partial(_with_torch_functions, found)
    name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    for key in (BACKENDS.get(kind, "CPU"), _EVERYWHERE):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return partial(func._op_dk, getattr(DispatchKey, key))
    raise NotImplementedError(
        f"Could not run '{name}' with arguments from the '{kind.upper()}' backend: it has no kernel for it. "
        f"Register one with device_types='{kind}'."
    )


def _with_torch_functions(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a kernel like any other code of the user's, with torch functions dispatched to its tensors' class."""
    with torch._C._EnableTorchFunction():
        return kernel(*args, **kwargs)


_ONE: dict[str, Callable[..., Any]] = {
    "norm": lambda self, ord=2, dtype=None: torch.linalg.vector_norm(self, ord, dtype=dtype),
    "powsum": lambda self, ord=2, dtype=None: self.abs().pow(ord).sum(dtype=dtype),
    "maximum.Scalar": torch.clamp_min,
    "minimum.Scalar": torch.clamp_max,
    "maximum.ScalarList": torch.clamp_min,
    "minimum.ScalarList": torch.clamp_max,
    "maximum_.Scalar": torch.clamp_min_,
    "minimum_.Scalar": torch.clamp_max_,
    "maximum_.ScalarList": torch.clamp_min_,
    "minimum_.ScalarList": torch.clamp_max_,
    "maximum_.List": lambda self, other: self.copy_(torch.maximum(self, other)),
    "minimum_.List": lambda self, other: self.copy_(torch.minimum(self, other)),
    "addcmul": lambda self, first, second, value=1: torch.addcmul(self, first, second, value=_number(value)),
    "addcdiv": lambda self, first, second, value=1: torch.addcdiv(self, first, second, value=_number(value)),
    "addcmul_": lambda self, first, second, value=1: self.addcmul_(first, second, value=_number(value)),
    "addcdiv_": lambda self, first, second, value=1: self.addcdiv_(first, second, value=_number(value)),
    "copy": lambda self, src, non_blocking=False: self.clone().copy_(src, non_blocking),
}


_CHECKED_ONE_BY_ONE = ("_foreach_mm",)  # CUDA refuses integers here, as in each product


def check_scalars(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the numbers that a call takes as a tensor. Source: ForeachUtils.h and cuda/ForeachBinaryOpScalarTensor.cu.

    Raises:
        DeviceMismatchError: numbers for each tensor are not on the CPU, or the number to add is not on the list's GPU.
    """
    named = rule.named(args, kwargs)
    for name in rule.host_arguments & named.keys():
        numbers = named[name]
        if isinstance(numbers, Tensor) and place_of(numbers) >= 0:
            raise DeviceMismatchError(f"Expected scalars to be on CPU, got {device_of(numbers)} instead.")
    if rule.name.endswith(".Tensor") and isinstance(named.get("other"), Tensor) and named["other"].dim():
        number = named["other"]
        raise RuntimeError(
            f"scalar tensor expected to be 0 dim but it has {number.dim()} dimensions and {number.numel()} elements."
        )
    if rule.name in ("_foreach_add.Tensor", "_foreach_add_.Tensor") and named["self"]:
        first, number = named["self"][0], named["other"]
        in_one_kernel = all(
            place_of(item) == place_of(first) >= 0 and item.dtype == number.dtype and item.is_contiguous()
            for item in named["self"]
        )
        if in_one_kernel and place_of(number) != place_of(first):
            raise DeviceMismatchError(
                f"scalar tensor expected to be on {device_of(first)} but is on {device_of(number)}"
            )


def in_one_piece(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call runs as a whole: all tensors are on one device, and none needs a check of its own."""
    return rule.name not in _CHECKED_ONE_BY_ONE and on_one_device(rule, args, kwargs)


def on_one_device(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all tensors in the lists of a call are on one device."""
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    return len({place_of(item) for values in lists for item in values if isinstance(item, Tensor)}) <= 1


def one_by_one(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the plain operator of a `_foreach_` operator's name on each tensor in turn, with a check for each."""
    name = rule.name.removeprefix("_foreach_")
    base = name.split(".")[0]
    run = _ONE.get(name) or _ONE.get(base) or getattr(torch.ops.aten, base)
    count = max(len(value) for value in (*args, *kwargs.values()) if isinstance(value, list | tuple))

    def at(value: Any, index: int) -> Any:
        packed = isinstance(value, Tensor) and value.dim() == 1  # one number for each tensor, on the CPU
        return value[index] if packed or isinstance(value, list | tuple) else value

    results = [
        run(*(at(value, index) for value in args), **{key: at(value, index) for key, value in kwargs.items()})
        for index in range(count)
    ]
    return None if rule.written else results


def group_by_device_and_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch._C._group_tensors_by_device_and_dtype, which optimizers and clip_grad_norm_ call."""

    @wraps(original)
    def group(lists: Sequence[Sequence[Tensor | None]], with_indices: bool = False) -> Any:
        if all(place_of(item) < 0 for items in lists for item in items if item is not None):
            return original(lists, with_indices)
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[list[Tensor | None]], list[int]]] = {}
        for index, first in enumerate(lists[0]):
            assert first is not None  # as torch demands
            key = device_of(first), first.dtype
            members, indices = groups.setdefault(key, ([[] for _ in lists], []))
            for kept, items in zip(members, lists, strict=True):
                item = items[index] if items else None
                if item is not None and device_of(item) != key[0] and not _is_step(item):
                    raise DeviceMismatchError(
                        "Tensors of the same index must be on the same device and the same dtype except `step` tensors "
                        f"that can be CPU and float32/64 notwithstanding: got {key[0]} and {device_of(item)}"
                    )
                if items:
                    kept.append(item)
            if with_indices:
                indices.append(index)
        return groups

    return group


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _is_step(tensor: Tensor) -> bool:
    return place_of(tensor) < 0 and tensor.numel() == 1 and tensor.dtype in (torch.float32, torch.float64)


def support_groups() -> Callable[[], None]:
    """Have optimizers and clip_grad_norm_ take virtual tensors in groups by default; returns a function to undo it."""
    supported: tuple[list[Any], list[Any]] = (_by_optimizers, _by_utilities)
    for kinds in supported:
        kinds.append(VirtualTensor)

    def undo() -> None:
        for kinds in supported:
            kinds.remove(VirtualTensor)

    return undo


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module, name, value)."""
    group = torch._C._group_tensors_by_device_and_dtype
    return [(torch._C, "_group_tensors_by_device_and_dtype", group_by_device_and_dtype(group))]
