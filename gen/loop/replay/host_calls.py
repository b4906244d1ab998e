"""Functions of users that are not recorded with a step: they run at every step, between its recorded parts.

Example: a step computes logits, lets a user's function change them, and draws. Its recording computes logits, calls the
function that is there at that time, and draws.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

from torch import Tensor

Handler = Callable[[Callable[..., object], Sequence[object], Sequence[Tensor]], None]


class _Current(local):
    handler: Handler | None = None  # of the thread; None while a function runs, whose own calls of gen have others


_current = _Current()


def host_call(function: Callable[..., object], *args: object, results: Sequence[Tensor]) -> None:
    """Run a function as a part of a step that is never recorded: it runs whenever the step does, replayed or not.

    Args:
        function: writes what it gives to the rest of the step into `results`. Equal steps have equal functions.
        results: tensors that are among its arguments, or that it keeps.
    """
    run(function, args, results) if _current.handler is None else _current.handler(function, args, results)


def run(function: Callable[..., object], args: Sequence[object], results: Sequence[Tensor]) -> None:
    """Run the function. Steps of calls of gen that it makes are none of this step."""
    with on_host_call(None):
        function(*args)


def leave_out(function: Callable[..., object], args: Sequence[object], results: Sequence[Tensor]) -> None:
    """Write zeros into the results, and do not run the function."""
    for result in results:
        result.zero_()


@contextmanager
def on_host_call(handler: Handler | None) -> Iterator[Handler]:
    """In the block, `handler` runs this thread's host calls; None: nothing else. Yields the one that did it before."""
    before = _current.handler
    _current.handler = handler
    try:
        yield before or run
    finally:
        _current.handler = before


class RepeatResults:
    """A handler for one step that runs more than once: it runs each function once, and then repeats its results."""

    def __init__(self) -> None:
        self._given: dict[Any, list[Tensor]] = {}

    def __call__(self, function: Callable[..., object], args: Sequence[object], results: Sequence[Tensor]) -> None:
        if function not in self._given:
            run(function, args, results)
            self._given[function] = [result.clone() for result in results]
        else:
            for result, given in zip(results, self._given[function], strict=True):
                result.copy_(given)
