"""Which worker does what next, and who is to blame when workers die.

Example: rows 0 to 7 of a shard kill three workers. Then rows 0 to 3 and 4 to 7 become tasks of their own, and the half
that kills a worker is halved again, until row 5 is alone. The row gets an error when it kills a worker that has run
another row to its end: any other worker may have died of its device. A device whose workers die three times without
having run anything gets no more workers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Condition
from typing import Any

from gen.errors import GenError

_LOOK = 64  # how many tasks are searched for one that did not kill the worker before
_KILLS = 3  # deaths until a whole shard is halved, and until a device is left out


@dataclass(frozen=True, kw_only=True)
class Work:
    """Rows of a shard that are to be run.

    Attributes:
        shard: which one.
        first, count: their first row, and how many they are.
        whole: whether these are all rows of the shard.
        kills: how many workers they have killed, since they were halved.
        probe: whether they only show that a worker can run a row.
    """

    shard: int
    first: int
    count: int
    whole: bool = True
    kills: int = 0
    probe: bool = False

    @property
    def suspect(self) -> bool:
        """Whether it is a single row that may kill any worker that runs it."""
        return self.count == 1 and not self.probe and (not self.whole or self.kills >= _KILLS)

    def holds(self, other: "Work") -> bool:
        """Whether this work contains another one, or is the same."""
        return self.shard == other.shard and self.first <= other.first < self.first + self.count


@dataclass
class Seat:
    """A device, and the worker that it has now.

    Attributes:
        name: of the device.
        proven: whether the worker has run a row to its end.
        deaths: how many workers have died here since one has run a row to its end.
        last: the work of the last one that died.
        out: whether the device gets no more workers.
    """

    name: str
    proven: bool = False
    deaths: int = 0
    last: Work | None = None
    out: bool = False


@dataclass
class Schedule:
    """Hands out work to threads, one for each seat.

    Args:
        shards: how many rows each open shard has, by its number.
        seats: the devices.
        joined: called with a shard that was halved, when all of its rows are done.
        blame: called with a row that gets an error, before it counts as done.
        say: called with a line about a worker that dies, or a device that is left out.

    Attributes:
        error: the error that stopped the job before its end.
    """

    shards: dict[int, int]
    seats: Sequence[Seat]
    joined: Callable[[int], object]
    blame: Callable[[Work, str], object]
    say: Callable[[str], object]
    error: Exception | None = None
    _todo: deque[Work] = field(default_factory=deque)
    _left: dict[int, int] = field(default_factory=dict)  # rows of shards that were halved
    _good: Work | None = None  # a row that was run to its end
    _running: int = 0
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        self._todo.extend(Work(shard=number, first=0, count=rows) for number, rows in self.shards.items())

    def take(self, seat: Seat) -> Work | None:
        """The next work for a seat's worker, after a wait if need be; None if nothing is left for it."""
        with self._changed:
            while True:
                if self.error is not None or seat.out or (not self._todo and not self._running):
                    self._changed.notify_all()
                    return None
                if (work := self._next(seat)) is not None:
                    self._running += 1
                    return work
                self._changed.wait()

    def finished(self, seat: Seat, work: Work, good: int | None) -> None:
        """A worker has done its work.

        Args:
            good: a row that it has run to its end; None if all rows have an error.
        """
        if not work.probe and not work.whole:
            self._count(work)
        with self._changed:
            self._running -= 1
            if good is not None:
                self._good = Work(shard=work.shard, first=good, count=1, whole=False, probe=True)
                seat.proven, seat.deaths, seat.last = True, 0, None
            if not self._todo:
                self._changed.notify_all()

    def died(self, seat: Seat, work: Work, reason: str, *, begun: bool = True) -> None:
        """A seat's worker has died; the next one is not proven.

        Args:
            begun: whether the worker had begun with the work.
        """
        proven, seat.proven = seat.proven, False
        blamed = begun and work.suspect and proven
        if blamed:
            self.blame(work, reason)
            self._count(work)
        with self._changed:
            self._running -= 1
            if self.error is not None:  # the job was ended
                return
            seat.deaths += 1
            if not begun:
                self._todo.extend([] if work.probe else [work])
            elif not blamed:
                seat.last = work
                self._todo.extend([] if work.probe else _again(work))
            rows = f", in rows {work.first} to {work.first + work.count - 1} of shard {work.shard}" if begun else ""
            self.say(f"a worker of {seat.name} {reason}{rows}")
            if seat.deaths >= _KILLS:
                seat.out = True
                self.say(f"{seat.name} is left out: {_KILLS} workers died there, one after the other, and ran no row.")
                if all(one.out for one in self.seats):
                    names = ", ".join(one.name for one in self.seats)
                    self.error = GenError(f"no device is left of {names}. The last worker {reason}.")
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End the job."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def _next(self, seat: Seat) -> Work | None:
        """The next work for a seat, if there is one; the lock must be held."""
        if seat.deaths == _KILLS - 1 and (probe := self._probe()) is not None:
            return probe
        ready = [work for work in islice(self._todo, _LOOK) if seat.proven or not work.suspect]
        if not ready and self._todo and (self._good is not None or self._running):
            return self._good  # proves the worker for suspect rows; if None, another seat may find a good row
        if not self._todo:
            return None
        ready = ready or [self._todo[0]]
        others = (work for work in ready if seat.last is None or not seat.last.holds(work))
        work = next(others, ready[0])
        self._todo.remove(work)
        return work

    def _probe(self) -> Work | None:
        """A row that shows whether a device can run rows: one that has been run, or else the last one."""
        if self._good is not None or not self._todo:
            return self._good
        last = self._todo[-1]
        return Work(shard=last.shard, first=last.first + last.count - 1, count=1, whole=False, probe=True)

    def _count(self, work: Work) -> None:
        """Count rows of a halved shard as done."""
        with self._changed:
            left = self._left.get(work.shard, self.shards[work.shard]) - work.count
            self._left[work.shard] = left
        if not left:
            self.joined(work.shard)


def _again(work: Work) -> Iterable[Work]:
    """The work that replaces work which has killed a worker: the same, or its halves."""
    kills = work.kills + 1
    if work.count == 1 or (work.whole and kills < _KILLS):
        return [replace(work, kills=kills)]
    half = work.count // 2
    borders = [(work.first, half), (work.first + half, work.count - half)]
    return [Work(shard=work.shard, first=first, count=count, whole=False) for first, count in borders]


def told(work: Work) -> dict[str, Any]:
    """The work as a worker gets it."""
    count = None if work.whole and not work.probe else work.count
    return {
        "shard": work.shard,
        "first": work.first,
        "count": count,
        "probe": work.probe,
        "attempt": work.kills + 1,
    }
