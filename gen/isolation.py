"""Keeps the caller's settings of torch out of what gen computes: a text must not depend on settings around the call.

Settings that belong to the thread are changed for as long as gen computes, and are as they were when it gives something
back, between two pieces of a stream too. Settings of the whole process, such as the default dtype and deterministic
algorithms, are not touched: other threads would see it. The code gives every dtype itself.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def own_settings() -> Iterator[None]:
    """No autocast, whose numbers and dtypes are others than the model's, and no default device but the CPU."""
    with ExitStack() as stack:
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def settings_of_the_process() -> Hashable:
    """Settings that a recorded or captured step depends on: with others it would run other kernels."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
    )


def isolated(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function, or each step of a generator function, with `own_settings`."""
    if not isgeneratorfunction(function):
        return own_settings()(function)

    @wraps(function)
    def steps(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        with closing(function(*args, **kwargs)) as generator:
            while True:
                with own_settings():
                    try:
                        item = next(generator)
                    except StopIteration:
                        return
                yield item

    return cast(Callable[P, R], steps)
