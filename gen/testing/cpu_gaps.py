"""What CUDA computes and the CPU does not: kernels that lack a dtype there."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

Run = Callable[..., Any]


def stand_in(name: str, run: Run) -> Run:
    """What to run for an operator: what stands in for it if the CPU lacks a kernel, else `run`, the operator itself."""
    stand_in = _STAND_INS.get(name)
    return run if stand_in is None else partial(stand_in, run)


def _histc(run: Run, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Counts of whole numbers, which the CPU has for floating numbers only."""
    if tensor.is_floating_point():
        counts: Tensor = run(tensor, *args, **kwargs)
        return counts
    counts = run(tensor.double(), *args, **kwargs)
    return counts.to(tensor.dtype)


_STAND_INS: dict[str, Callable[..., Tensor]] = {"histc": _histc}
