"""What a model keeps from call to call: a set of rows that no call uses, with what was recorded on it; an engine; what
was read before."""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import torch

from gen.forking import new_lock

T = TypeVar("T")


class Closable(Protocol):
    """An engine, as far as a model needs to know it."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


class Forgetful(Protocol):
    """What was read before, as far as a model needs to know it."""

    def forget(self) -> None: ...


E = TypeVar("E", bound=Closable)
F = TypeVar("F", bound=Forgetful)


class Idle(Generic[T]):
    """Holds at most one thing, and one engine, and what was read before; threads may take and put at any time.

    Taking and putting need no lock: finalisers do it, wherever a thread is.

    Attributes:
        token_bytes: what a token of a row takes on each device; None until rows have been filled.
    """

    def __init__(self) -> None:
        self._kept: deque[T] = deque(maxlen=1)
        self._engine: Closable | None = None
        self._prefixes: Forgetful | None = None
        self._changing = new_lock(RLock)  # of the engine; nothing is made while it is held
        self.token_bytes: Mapping[torch.device, float] | None = None
        self._refused: tuple[object, dict[Hashable, str]] = None, {}
        with _adding:
            _all.add(self)

    def take(self) -> T | None:
        """What is kept, which is then the caller's alone; None if there is nothing."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def put(self, thing: T) -> None:
        """Keep this, and drop what was kept before."""
        self._kept.append(thing)

    def refusals(self, rests_on: object) -> dict[Hashable, str]:
        """Which kinds of steps cannot be recorded, and why: none, once what steps rest on is another than before."""
        if rests_on != self._refused[0]:
            self._refused = rests_on, {}
        return self._refused[1]

    def engine(self, make: Callable[[], E]) -> E:
        """The model's engine, which is made at the first call, and anew when it has closed."""
        made: E | None = None
        while True:
            with self._changing:
                if made is not None and (self._engine is None or self._engine.closed):
                    self._engine = made
                engine = self._engine
            if engine is not None and not engine.closed:
                if made is not None and made is not engine:  # another thread was first
                    made.close()
                return engine  # type: ignore[return-value]  # engines are of one kind
            made = make()

    def prefixes(self, make: Callable[[], F]) -> F:
        """What was read before, which is made at the first call."""
        with self._changing:
            if self._prefixes is None:
                self._prefixes = make()
            return self._prefixes  # type: ignore[return-value]  # there is one kind

    def clear(self) -> None:
        """Keep nothing: close the engine, which gives its rows back, and drop those, and what was read before."""
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
    """Drop what models keep from call to call, where `unwanted` says so of it; whether there was anything."""
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
