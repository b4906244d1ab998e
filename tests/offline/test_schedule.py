"""Which step runs next, and which row is blamed: only one that, alone, kills workers that have run another row."""

import random
from typing import Any

import pytest

from gen.offline.executors.schedule import Schedule, Slot, Step, Task


class Play:
    """A schedule whose workers die where a test says; the slots take turns in a random order.

    Attributes:
        runs: how often the result of each row was written.
        blamed: the rows that got an error.
        careful: the parts whose rows were run one by one.
    """

    def __init__(self, parts: dict[int, int], slots: int, poison: set[tuple[int, int]], dead: set[int]) -> None:
        self.rows = {(part, row) for part, count in parts.items() for row in range(count)}
        self.poison, self.dead = poison, dead
        self.runs: dict[tuple[int, int], int] = dict.fromkeys(self.rows, 0)
        self.blamed: list[tuple[int, int]] = []
        self.careful: list[int] = []
        self.said: list[str] = []
        self.deaths = 0
        self.slots = [Slot(f"cuda:{number}") for number in range(slots)]
        self.schedule = Schedule(
            parts=parts, slots=self.slots, write=self._write, blame=self._blame, say=self.said.append
        )

    def _blame(self, task: Task, row: int, reason: str) -> dict[str, Any]:
        self.blamed.append((task.part, row))
        return {"error": reason}

    def _write(self, task: Task) -> None:
        assert sorted(task.results) == [*range(task.count)]
        self.careful.append(task.part)
        for row, result in task.results.items():
            self.runs[task.part, row] += "error" not in result

    def run(self, draw: random.Random, chance: float = 0.0) -> None:
        """Run until nothing is left; `chance` is the probability of a kill from outside."""
        waiting: dict[int, Step] = {}
        for _ in range(100_000):
            for number, slot in enumerate(self.slots):
                may = self.schedule.over or slot.out or self.schedule._todo  # it waits otherwise
                if number not in waiting and may and (step := self.schedule.take(slot)) is not None:
                    waiting[number] = step
            if not waiting:
                assert self.schedule.over
                return
            number = draw.choice([*waiting])
            self._end(number, waiting.pop(number), draw.random() < chance)
        raise AssertionError("it does not end")

    def _end(self, number: int, step: Step, killed: bool) -> None:
        slot, part = self.slots[number], step.task.part
        rows = range(step.task.count) if step.row is None else [step.row]
        if number in self.dead or self.poison & {(part, row) for row in rows} or killed:
            self.deaths += 1
            self.schedule.died(slot, step, "was killed by SIGKILL")
            return
        if step.row is None:
            for row in rows:
                self.runs[part, row] += 1
        self.schedule.finished(slot, step, rows[0], None if step.row is None else {"text": "x"})


@pytest.mark.parametrize("seed", range(50))
def test_whatever_kills_workers_every_row_is_run_once_and_those_that_kill_alone_are_blamed(seed: int) -> None:
    draw = random.Random(seed)
    parts = {number: draw.choice([1, 2, 7, 8, 33]) for number in draw.sample(range(20), draw.randint(1, 6))}
    rows = [(part, row) for part, count in parts.items() for row in range(count)]
    poison = set(draw.sample(rows, min(draw.choice([0, 1, 1, 3]), len(rows) - 1)))
    slots = draw.randint(1, 4)
    dead = set(draw.sample(range(slots), draw.randint(0, slots - 1)))
    play = Play(parts, slots, poison, dead)
    play.run(draw)
    if play.schedule.error is None:
        assert sorted(play.blamed) == sorted(poison)
        assert {row: count for row, count in play.runs.items() if count != 1} == dict.fromkeys(poison, 0)
        assert {part for part, _ in poison} <= set(play.careful)
    else:  # a probe may have met a deadly row; only rows that kill a proven worker are blamed
        assert set(play.blamed) <= poison
        assert all(slot.out for slot in play.slots)


def test_a_row_that_is_the_whole_job_is_not_blamed_for_its_device() -> None:
    play = Play({0: 1}, 1, {(0, 0)}, set())
    play.run(random.Random(1))
    assert play.schedule.error is not None
    assert not play.blamed


@pytest.mark.parametrize("seed", range(10))
def test_kills_from_outside_blame_no_row(seed: int) -> None:
    draw = random.Random(seed)
    play = Play({number: 16 for number in range(400)}, 2, set(), set())
    play.run(draw, chance=0.02)
    assert play.deaths > 1
    assert play.schedule.error is None
    assert not play.blamed
    assert set(play.runs.values()) == {1}


@pytest.mark.parametrize("row", [0, 3, 7])
def test_a_row_costs_the_workers_that_its_part_and_the_row_itself_kill(row: int) -> None:
    play = Play({0: 8, 1: 8}, 1, {(0, row)}, set())
    play.run(random.Random(1))
    assert play.blamed == [(0, row)]
    assert play.careful == [0]
    assert play.deaths == 2 + 2


def test_a_worker_that_has_died_takes_another_part_first() -> None:
    said: list[Any] = []
    slot = Slot("cpu")
    schedule = Schedule(parts={0: 4, 1: 4}, slots=[slot], write=said.append, blame=lambda *_: {}, say=said.append)
    first = schedule.take(slot)
    assert first is not None and (first.task.part, first.row) == (0, None)
    schedule.died(slot, first, "was killed")
    assert said == ["a worker of cpu was killed, in part 0"]
    second = schedule.take(slot)
    assert second is not None and (second.task.part, second.row) == (1, None)
    schedule.finished(slot, second, 0)
    third = schedule.take(slot)
    assert third is not None and (third.task, third.row, third.task.kills) == (first.task, None, 1)


def test_no_more_workers_start_than_there_are_parts_for() -> None:
    slots = [Slot("a"), Slot("b")]
    schedule = Schedule(parts={0: 4}, slots=slots, write=print, blame=lambda *_: {}, say=print)
    assert schedule.may_start(slots[0])
    schedule.started(slots[0])
    step = schedule.take(slots[0])
    assert step is not None and not schedule.over
    schedule.finished(slots[0], step, 0)
    assert schedule.over and not schedule.may_start(slots[1])
    assert schedule.take(slots[0]) is None


def test_workers_that_die_while_they_load_count_as_deaths_of_their_device() -> None:
    said: list[str] = []
    slot = Slot("cuda:0")
    schedule = Schedule(parts={0: 4}, slots=[slot], write=print, blame=lambda *_: {}, say=said.append)
    for _ in range(3):
        assert schedule.may_start(slot)
        schedule.started(slot, "ended with exit code 1")
    assert not schedule.may_start(slot)
    assert "The last worker ended with exit code 1." in str(schedule.error)
