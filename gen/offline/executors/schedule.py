"""Which worker does what next, and who is to blame when workers die.

Example: a part of rows 0 to 7 kills two workers. From then on its rows run one by one. Row 5 kills its worker, and
comes again after all others. When it has killed two workers that had run another row before, it gets an error: any
other worker may have died of its device. So a new worker first runs a row that is known to run. A device whose workers
die three times without having run a row gets no more of them.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from gen.errors import GenError

Result = dict[str, Any]

_KILLS = 2  # deaths until a part runs row by row, and until a row gets an error
_DEATHS = 3  # of workers of a device, one after the other, until it is left out


@dataclass(eq=False, kw_only=True)
class Task:
    """A part that is to be made.

    Attributes:
        part: its number.
        count: how many rows it has.
        kills: how many workers it has killed as a whole.
        todo: the rows that are to be run one by one; None if the part runs as a whole.
        deaths: how many proven workers each row has killed alone.
        results: those of rows that were run one by one.
    """

    part: int
    count: int
    kills: int = 0
    todo: deque[int] | None = None
    deaths: Counter[int] = field(default_factory=Counter)
    results: dict[int, Result] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a worker is asked for.

    Attributes:
        task: the part that it is of.
        row: the only row that is run; None for the whole part, which the worker writes.
        probe: whether it only shows that a worker can run a row.
    """

    task: Task
    row: int | None = None
    probe: bool = False

    def __str__(self) -> str:
        return f"part {self.task.part}" if self.row is None else f"row {self.row} of part {self.task.part}"


@dataclass
class Slot:
    """A device, and the worker that it has now.

    Attributes:
        name: of the device.
        proven: whether the worker has run a row to its end.
        deaths: how many workers have died here since one has run a row to its end.
        out: whether the device gets no more workers.
    """

    name: str
    proven: bool = False
    deaths: int = 0
    out: bool = False


@dataclass
class Schedule:
    """Hands out steps to threads, one for each slot.

    Args:
        parts: how many rows each open part has, by its number.
        slots: the devices.
        write: called with a task whose rows were run one by one, when it has all results.
        blame: gives the result of a row of a task that has killed workers, and how it did.
        say: called with a line about a worker that dies, or a device that is left out.

    Attributes:
        error: the error that stopped the job before its end.
    """

    parts: dict[int, int]
    slots: Sequence[Slot]
    write: Callable[[Task], object]
    blame: Callable[[Task, int, str], Result]
    say: Callable[[str], object]
    error: Exception | None = None
    _todo: deque[Task] = field(default_factory=deque)
    _good: Step | None = None  # a row that was run to its end
    _running: int = 0
    _starting: int = 0
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        self._todo.extend(Task(part=number, count=count) for number, count in self.parts.items())

    @property
    def over(self) -> bool:
        """Whether no step is left, or an error has ended the job."""
        return self.error is not None or (not self._todo and not self._running)

    def may_start(self, slot: Slot) -> bool:
        """Whether a worker is needed for a slot, after a wait if need be; `started` must follow."""
        with self._changed:
            while not self.over and not slot.out:
                if len(self._todo) > self._starting:
                    self._starting += 1
                    return True
                self._changed.wait()
            self._changed.notify_all()
            return False

    def started(self, slot: Slot, reason: str = "") -> None:
        """A worker is ready, or has died, for a reason, while it loaded the model."""
        with self._changed:
            self._starting -= 1
            if reason:
                self._count_death(slot, reason)
                self._changed.notify_all()

    def take(self, slot: Slot) -> Step | None:
        """The next step for a slot's worker, after a wait if need be; None if nothing is left for it."""
        with self._changed:
            while not self.over and not slot.out:
                if self._todo:
                    self._running += 1
                    return self._next(slot)
                self._changed.wait()
            self._changed.notify_all()
            return None

    def finished(self, slot: Slot, step: Step, good: int | None, result: Result | None = None) -> None:
        """A worker has done a step.

        Args:
            good: a row of the part that it has run to its end; None if all rows have an error.
            result: that of the only row.
        """
        with self._changed:
            if good is not None:
                self._good = Step(task=step.task, row=good, probe=True)
                slot.proven, slot.deaths = True, 0
            if step.row is not None and result is not None and not step.probe:
                self._note(step.task, step.row, result)
            self._end_step()

    def died(self, slot: Slot, step: Step, reason: str) -> None:
        """A slot's worker has died in a step; the next one is not proven."""
        task, row = step.task, step.row
        with self._changed:
            proven, slot.proven = slot.proven, False
            if self.error is not None:
                return
            if step.probe:
                pass
            elif row is None:
                task.kills += 1
                if task.kills == _KILLS:
                    task.todo = deque(range(task.count))
                self._todo.append(task)
            else:
                task.deaths[row] += proven
                if task.deaths[row] == _KILLS:
                    self._note(task, row, self.blame(task, row, reason))
                else:
                    assert task.todo is not None  # it has rows that run one by one; tells mypy
                    task.todo.rotate(-1)
                    self._todo.append(task)
            self._count_death(slot, f"{reason}, in {step}")
            self._end_step()

    def fail(self, error: Exception) -> None:
        """End the job."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    # For all that follows the lock must be held.

    def _next(self, slot: Slot) -> Step:
        """The next step for a slot; there must be a task."""
        if slot.deaths == _DEATHS - 1:  # before the device is left out
            last = self._todo[-1]
            return self._good or Step(task=last, row=last.count - 1, probe=True)
        if self._todo[0].todo is not None and not slot.proven and self._good is not None:
            return self._good
        task = self._todo.popleft()
        return Step(task=task, row=None if task.todo is None else task.todo[0])

    def _note(self, task: Task, row: int, result: Result) -> None:
        """Keep the result of a row, and have the part written if it is the last one."""
        assert task.todo is not None  # tells mypy
        task.todo.remove(row)
        task.results[row] = result
        if task.todo:
            self._todo.appendleft(task)
        else:
            self.write(task)

    def _end_step(self) -> None:
        self._running -= 1
        self._changed.notify_all()

    def _count_death(self, slot: Slot, reason: str) -> None:
        """Count the death of a slot's worker."""
        slot.deaths += 1
        self.say(f"a worker of {slot.name} {reason}")
        if slot.deaths < _DEATHS:
            return
        slot.out = True
        self.say(f"{slot.name} is left out: {_DEATHS} workers died there, one after the other, and ran no row.")
        if all(one.out for one in self.slots) and self.error is None:
            names = ", ".join(one.name for one in self.slots)
            self.error = GenError(f"no device is left of {names}. The last worker {reason}.")
