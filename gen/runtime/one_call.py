"""Functions that are one call to whoever watches torch's calls, whatever they do inside, as reading numbers on a CPU.

Example: a greedy step's recording makes one call, `most_likely(logits)`, and not the twenty calls of torch in it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

P = ParamSpec("P")
T = TypeVar("T")


def one_call(function: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Show a function to torch's function modes as one torch function; `is_one_call` tells them.

    It must do the same whenever it gets the same tensors and numbers, and keep no tensors of a GPU from call to call:
    captured steps would not know of them. If it changes its arguments, its name ends in "_".
    """

    @wraps(function)
    def called(tensor: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if has_torch_function_unary(tensor):
            made: T = handle_torch_function(called, (tensor,), tensor, *args, **kwargs)
            return made
        return function(tensor, *args, **kwargs)

    called.is_one_call = True  # type: ignore[attr-defined]
    return called


def is_one_call(function: Any) -> bool:
    """Whether a function is `one_call`."""
    return getattr(function, "is_one_call", False) is True
