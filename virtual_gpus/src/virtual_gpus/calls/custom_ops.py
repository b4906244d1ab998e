"""Operators with kernels that users wrote in Python: these run on the virtual tensors, so every call is seen."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from virtual_gpus.calls.current_call import current_call
from virtual_gpus.machine import CPU
from virtual_gpus.rules.op_rule import OpRule
from virtual_gpus.rules.same_device import place_of

_EVERYWHERE = "CompositeExplicitAutograd"


def run_in_python(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the kernel for CUDA, or the one for all devices.

    Raises:
        NotImplementedError: there is only a kernel for the CPU, and a tensor is on a GPU.
    """
    on_gpu = any(place_of(tensor) != CPU for _, _, tensor in rule.tensors(args, kwargs))
    kernel = _kernel(rule.func, "cuda" if on_gpu else "cpu")
    outer = current_call.given
    current_call.given = CPU, ()  # torch makes no tensor of its own in a user's kernel
    try:
        return kernel(*args, **kwargs)
    finally:
        current_call.given = outer


def _kernel(func: OpOverload, device_type: str) -> Callable[..., Any]:
    definition: Any = OPDEFS.get(f"{func.namespace}::{func._schema.name.split('::')[1]}")
    if definition is not None:
        kernels = definition._backend_fns
        found = kernels.get(device_type, kernels.get(None))
        if found is not None:
            return partial(_with_torch_functions, found)
    name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    for key in (device_type.upper(), _EVERYWHERE):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return partial(func._op_dk, getattr(DispatchKey, key))
    raise NotImplementedError(
        f"Could not run '{name}' with arguments from the '{device_type.upper()}' backend: it has no kernel for it. "
        f"Register one with device_types='{device_type}'."
    )


def _with_torch_functions(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a kernel like any other code of the user's, with torch functions dispatched to its tensors' class."""
    with torch._C._EnableTorchFunction():
        return kernel(*args, **kwargs)
