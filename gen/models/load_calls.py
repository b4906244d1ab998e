"""What all functions that load models share: one thread at a time, and dtypes as users write them."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

import torch

from gen.errors import ArgumentError, show
from gen.runtime.forking import new_lock, renew_threads

_LOADING = new_lock(RLock)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def one_at_a_time(load: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let one thread load at a time.

    transformers replaces some of its own functions while it loads; two threads at once would leave them replaced, and
    every later model of the process would lack its tied weights.
    """

    @wraps(load)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _LOADING:
            renew_threads()
            return load(*args, **kwargs)

    return alone


def read_dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    """A floating dtype, or "auto" for the checkpoint's."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None:
        return "auto"
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ArgumentError(f"dtype must be a floating type such as 'float32' or 'bfloat16', got {show(dtype)}")
    return found
