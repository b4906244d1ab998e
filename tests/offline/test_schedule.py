"""Which task runs next, and which row is blamed: only one that, alone, kills a worker that has run another row."""

import random
from typing import Any

import pytest

import gen
from gen.offline.engines.schedule import Schedule, Seat, Work


class Play:
    """A schedule whose workers die where a test says; the seats take turns in a random order.

    Attributes:
        runs: how often each row was run to its end, and written.
        blamed: the rows that got an error.
        joined: the shards that were halved and done.
    """

    def __init__(self, shards: dict[int, int], seats: int, poison: set[tuple[int, int]], dead: set[int]) -> None:
        self.rows = {(shard, row) for shard, count in shards.items() for row in range(count)}
        self.poison, self.dead = poison, dead
        self.runs: dict[tuple[int, int], int] = dict.fromkeys(self.rows, 0)
        self.blamed: list[tuple[int, int]] = []
        self.joined: list[int] = []
        self.said: list[str] = []
        self.deaths = 0
        self.seats = [Seat(f"cuda:{number}") for number in range(seats)]
        self.schedule = Schedule(
            shards=shards, seats=self.seats, joined=self.joined.append, blame=self._blame, say=self.said.append
        )

    def _blame(self, work: Work, reason: str) -> None:
        assert work.count == 1
        self.blamed.append((work.shard, work.first))

    def run(self, draw: random.Random, chance: float = 0.0) -> None:
        """Run until nothing is left; `chance` is the probability of a kill from outside."""
        waiting: dict[int, Work] = {}
        for _ in range(100_000):
            for number, seat in enumerate(self.seats):
                if number not in waiting and self._may_take(seat, bool(waiting)):
                    work = self.schedule.take(seat)
                    if work is not None:
                        waiting[number] = work
            if not waiting:
                return
            number = draw.choice([*waiting])
            self._end(number, waiting.pop(number), draw.random() < chance)
        raise AssertionError("it does not end")

    def _may_take(self, seat: Seat, others: bool) -> bool:
        """Whether `take` would return at once; it must, since the test has one thread."""
        schedule = self.schedule
        if schedule.error is not None or seat.out or not others:
            return True
        return bool(schedule._todo) and any(seat.proven or not work.suspect for work in schedule._todo)

    def _end(self, number: int, work: Work, killed: bool) -> None:
        seat, rows = self.seats[number], {(work.shard, work.first + index) for index in range(work.count)}
        if number in self.dead or rows & self.poison or killed:
            self.deaths += 1
            self.schedule.died(seat, work, "was killed by SIGKILL")
            return
        if not work.probe:
            for row in rows:
                self.runs[row] += 1
        self.schedule.finished(seat, work, work.first)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_kills_workers_every_row_is_run_once_and_those_that_kill_alone_are_blamed(seed: int) -> None:
    draw = random.Random(seed)
    shards = {number: draw.choice([1, 2, 7, 8, 33]) for number in draw.sample(range(20), draw.randint(1, 6))}
    rows = [(shard, row) for shard, count in shards.items() for row in range(count)]
    poison = set(draw.sample(rows, min(draw.choice([0, 1, 1, 3]), len(rows) - 1)))
    seats = draw.randint(1, 4)
    dead = set(draw.sample(range(seats), draw.randint(0, seats - 1)))
    play = Play(shards, seats, poison, dead)
    play.run(draw)
    if play.schedule.error is None:
        assert sorted(play.blamed) == sorted(poison)
        assert {row: count for row, count in play.runs.items() if count != 1} == dict.fromkeys(poison, 0)
        halved = {shard for shard, _ in poison if shards[shard] > 1}
        assert halved <= set(play.joined)
    else:  # a probe may have met a deadly row; only rows that kill a proven worker are blamed
        assert set(play.blamed) <= poison
        assert all(seat.out for seat in play.seats)


def test_one_device_that_always_dies_beside_a_sound_one_costs_no_row_its_text() -> None:
    play = Play({0: 8, 1: 8, 2: 8}, 2, set(), {0})
    play.run(random.Random(1))
    assert play.schedule.error is None
    assert set(play.runs.values()) == {1}
    assert not play.blamed
    assert play.said[-1] == "cuda:0 is left out: 3 workers died there, one after the other, and ran no row."


def test_where_no_device_is_left_the_job_ends_and_no_row_is_blamed() -> None:
    play = Play({0: 8, 1: 8}, 2, set(), {0, 1})
    play.run(random.Random(1))
    assert isinstance(play.schedule.error, gen.GenError)
    assert "no device is left of cuda:0, cuda:1" in str(play.schedule.error)
    assert not play.blamed
    assert play.deaths <= 6


def test_a_row_that_is_the_whole_job_is_not_blamed_for_its_device() -> None:
    play = Play({0: 1}, 1, {(0, 0)}, set())
    play.run(random.Random(1))
    assert play.schedule.error is not None
    assert not play.blamed


@pytest.mark.parametrize("seed", range(10))
def test_kills_from_outside_blame_no_row(seed: int) -> None:
    draw = random.Random(seed)
    play = Play({number: 16 for number in range(40)}, 2, set(), set())
    play.run(draw, chance=0.2)
    assert play.deaths > 1
    assert play.schedule.error is None
    assert not play.blamed
    assert set(play.runs.values()) == {1}


def test_a_worker_that_has_died_takes_other_work_first() -> None:
    said: list[Any] = []
    seat = Seat("cpu")
    schedule = Schedule(shards={0: 4, 1: 4}, seats=[seat], joined=said.append, blame=print, say=said.append)
    first = schedule.take(seat)
    assert first == Work(shard=0, first=0, count=4)
    schedule.died(seat, first, "was killed")
    second = schedule.take(seat)
    assert second == Work(shard=1, first=0, count=4)
    schedule.finished(seat, second, 0)
    assert schedule.take(seat) == Work(shard=0, first=0, count=4, kills=1)
