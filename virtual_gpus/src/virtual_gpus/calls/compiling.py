"""Runs code as it is instead of compiling or tracing it, since compiled code runs only on real devices."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.jit._builtins import _get_builtin_table
from torch.utils._pytree import tree_leaves

from virtual_gpus.errors import DeviceError
from virtual_gpus.syncs.reports import not_reported
from virtual_gpus.tensors.virtual_tensor import VirtualTensor

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
