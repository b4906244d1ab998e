"""What CUDA computes and the CPU does not: kernels that lack a dtype there."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

Run = Callable[..., Any]


def stand_in(name: str) -> Run | None:
    """What to run in the place of an operator, with the operator before its arguments; None for itself."""
    return _STAND_INS.get(name)


def _histc(func: OpOverload, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Counts of whole numbers, which the CPU has for floating numbers only."""
    if tensor.is_floating_point():
        counts: Tensor = func(tensor, *args, **kwargs)
        return counts
    counts = func(tensor.double(), *args, **kwargs)
    return counts.to(tensor.dtype)


_STAND_INS: dict[str, Run] = {"histc": _histc}
