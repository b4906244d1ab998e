"""What a model keeps from call to call: one set of rows that no call uses, with what was recorded on it; an engine."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch

T = TypeVar("T")


class Closable(Protocol):
    """An engine, as far as a model needs to know it."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


E = TypeVar("E", bound=Closable)


class Idle(Generic[T]):
    """Holds at most one thing, and one engine; threads may take and put at any time.

    Attributes:
        token_bytes: what a token of a row takes on each device; None until rows have been filled.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: T | None = None
        self._engine: Closable | None = None
        self.token_bytes: Mapping[torch.device, float] | None = None

    def take(self) -> T | None:
        """What is kept, which is then the caller's alone; None if there is nothing."""
        with self._lock:
            kept, self._kept = self._kept, None
        return kept

    def put(self, thing: T) -> None:
        """Keep this, instead of what was there."""
        with self._lock:
            self._kept = thing

    def engine(self, make: Callable[[], E]) -> E:
        """The model's engine, which is made at the first call, and anew when it has closed."""
        with self._lock:
            if self._engine is None or self._engine.closed:
                self._engine = make()
            return self._engine  # type: ignore[return-value]  # engines are of one kind

    def clear(self) -> None:
        """Keep nothing: close the engine, which gives its rows back, and drop those."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self.take()
