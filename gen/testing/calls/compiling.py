"""What torch would compile or trace, run as it is: what it would generate runs on real devices only."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.jit._builtins import _get_builtin_table
from torch.utils._pytree import tree_leaves

from gen.errors import DeviceError
from gen.testing.syncs.reports import not_reported
from gen.testing.tensors.virtual_tensor import VirtualTensor

_EAGER = torch._C.DispatchKey.CompositeExplicitAutograd


def not_compiled(model: Any = None, **options: object) -> Any:
    """torch.compile that leaves functions as they are; a module gets its usual wrapper, which has `_orig_mod`."""
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
    """Have TorchScript compile what stands for a function of torch to the operator that the function is."""
    # by id, and filled at the first call with what torch has then
    operators = _get_builtin_table()  # type: ignore[no-untyped-call]
    operator = operators.get(id(original))
    if operator is not None:
        operators[id(substitute)] = operator


def compile_as_itself(substitute: object) -> None:
    """Undo `compile_alike`: another object may get its id."""
    _get_builtin_table().pop(id(substitute), None)  # type: ignore[no-untyped-call]


def eagerly(original: Callable[..., Any]) -> Callable[..., Any]:
    """`HigherOrderOperator.__call__` that runs torch.cond, flex_attention and their kin without tracing them."""

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
