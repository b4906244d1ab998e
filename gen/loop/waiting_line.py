"""Which requests wait for a row of an engine, and which is next."""

from collections import OrderedDict
from collections.abc import Iterator

from gen.loop.feed import Feed
from gen.models.base import Model

PATIENCE = 60.0  # seconds after which a request is next, whatever its priority


class WaitingLine:
    """Waiting requests: the lowest priority comes first, among equals the first that came. A request that has waited
    long is next, whatever its priority.
    """

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[Feed, tuple[Model, float, int]]] = {}  # by priority, none of them empty
        self._priorities: dict[Feed, int] = {}
        self._came = 0  # how many have come

    def __len__(self) -> int:
        return len(self._priorities)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._priorities)

    def add(self, feed: Feed, model: Model, priority: int, now: float) -> None:
        """Let a request wait, from `now` on, in seconds of any clock."""
        self._lines.setdefault(priority, OrderedDict())[feed] = model, now, self._came
        self._priorities[feed] = priority
        self._came += 1

    def pop(self, now: float) -> tuple[Feed, Model]:
        """Take the next request out of the line."""
        heads = [(priority, next(iter(line.values()))) for priority, line in self._lines.items()]
        patient = [(came, priority) for priority, (_, since, came) in heads if now - since >= PATIENCE]
        priority = min(patient)[1] if patient else min(self._lines)
        feed, (model, _, _) = next(iter(self._lines[priority].items()))
        self.remove(feed)
        return feed, model

    def remove(self, feed: Feed) -> bool:
        """Take a request out of the line; whether it was in it."""
        priority = self._priorities.pop(feed, None)
        if priority is None:
            return False
        line = self._lines[priority]
        del line[feed]
        if not line:
            del self._lines[priority]
        return True
