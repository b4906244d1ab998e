"""Which requests wait for a row of an engine, and which is next."""

from collections.abc import Iterator
from typing import NamedTuple

from gen.loop.feed import Feed
from gen.models.base import Model

PATIENCE = 60.0  # seconds after which a request is next, whatever its priority


class _Place(NamedTuple):
    model: Model
    priority: int
    since: float


class WaitingLine:
    """Waiting requests: the lowest priority comes first, among equals the first that came. A request that has waited
    long is next, whatever its priority.
    """

    def __init__(self) -> None:
        self._places: dict[Feed, _Place] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._places)

    def add(self, feed: Feed, model: Model, priority: int, now: float) -> None:
        """Let a request wait, from `now` on, in seconds of any clock."""
        self._places[feed] = _Place(model, priority, now)

    def pop(self, now: float) -> tuple[Feed, Model]:
        """Take the next request out of the line."""
        feed, first = next(iter(self._places.items()))
        if now - first.since < PATIENCE:  # nobody has waited longer
            feed = min(self._places, key=lambda one: self._places[one].priority)  # the first among equals
        return feed, self._places.pop(feed).model

    def remove(self, feed: Feed) -> bool:
        """Take a request out of the line; whether it was in it."""
        return self._places.pop(feed, None) is not None
