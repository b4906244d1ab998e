"""A place where a model keeps one set of rows that no call uses, with what was recorded on it."""

from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Idle(Generic[T]):
    """Holds at most one thing; threads may take and put at any time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: T | None = None

    def take(self) -> T | None:
        """What is kept, which is then the caller's alone; None if there is nothing."""
        with self._lock:
            kept, self._kept = self._kept, None
        return kept

    def put(self, thing: T) -> None:
        """Keep this, instead of what was there."""
        with self._lock:
            self._kept = thing

    def clear(self) -> None:
        """Keep nothing."""
        self.take()
