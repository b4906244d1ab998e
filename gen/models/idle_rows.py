"""What a model keeps from call to call: a set of rows that no call uses, with what was recorded on it; an engine; the
prefixes that were read before."""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch

from gen.runtime.forking import new_lock

T = TypeVar("T")


class Idle(Generic[T]):
    """Holds at most one set of rows, one engine, and the prefixes that were read; threads may take and put at any time.

    To take and to put needs no lock, since a finaliser may do so at any point of a thread.

    Attributes:
        token_bytes: how many bytes a row's token takes on each device; None before its first call.
    """

    def __init__(self) -> None:
        self._kept: deque[T] = deque(maxlen=1)
        self._engine: Any = None  # an `EngineThread`
        self._prefixes: Any = None  # a `PrefixTree`
        self._changing = new_lock(RLock)  # for engine and prefixes; no engine is made while it is held
        self.token_bytes: Mapping[torch.device, float] | None = None
        self._refused: tuple[object, dict[Hashable, str]] = None, {}
        with _adding:
            _all.add(self)

    def take(self) -> T | None:
        """Take out what is kept, for the caller alone; None if there is nothing."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def put(self, thing: T) -> None:
        """Keep this, and drop what was kept before."""
        self._kept.append(thing)

    def refusals(self, rests_on: object) -> dict[Hashable, str]:
        """Which kinds of steps cannot be recorded, and why; emptied when what steps depend on has changed."""
        if rests_on != self._refused[0]:
            self._refused = rests_on, {}
        return self._refused[1]

    def engine(self, make: Callable[[], Any]) -> Any:
        """The model's engine; it is made at the first call, and again after it was closed."""
        made = None
        while True:
            with self._changing:
                if made is not None and (self._engine is None or self._engine.closed):
                    self._engine = made
                engine = self._engine
            if engine is not None and not engine.closed:
                if made is not None and made is not engine:  # another thread was first
                    made.close()
                return engine
            made = make()

    def prefixes(self, make: Callable[[], Any]) -> Any:
        """The prefixes that were read before; made at the first call."""
        with self._changing:
            if self._prefixes is None:
                self._prefixes = make()
            return self._prefixes

    def clear(self) -> None:
        """Keep nothing: close the engine, which gives its rows back, then drop the rows and the prefixes."""
        with self._changing:
            engine, self._engine = self._engine, None
            if self._prefixes is not None:
                self._prefixes.forget()
        if engine is not None:
            engine.close()
        self.take()
        self._refused = None, {}


_all: WeakSet[Idle[Any]] = WeakSet()  # of all models
_adding = new_lock()


def let_go(unwanted: Callable[[Any], bool]) -> bool:
    """Drop what models keep from call to call if `unwanted` says so; returns whether anything was dropped."""
    with _adding:
        everything = list(_all)
    found = False
    for idle in everything:
        thing = idle.take()
        if thing is not None and unwanted(thing):
            found = True
        elif thing is not None:
            idle.put(thing)
    return found
