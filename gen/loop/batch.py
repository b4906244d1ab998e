"""A running batch: requests join it at any step, leave it when they end, and no row waits for another.

Example, two rows and three prompts, one letter a token: A ends after two tokens, and C takes its row at once.

    step    1   2   3   4
    row 0   A   A   C   C
    row 1   B   B   B   B
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gen.errors import ResultError
from gen.loop.ring import Ticket
from gen.loop.row_set import RowSet
from gen.loop.steps import Steps
from gen.models.base import Model, NoRoom
from gen.requests import LogitsProcessor, Request

ADMIT_TOKENS = 4096
_NEAR = 16  # prompts whose lengths differ by less are read together
_AHEAD = 2  # columns by which the counts on the device are ahead of what is written, after a step


class Taker(Protocol):
    """Takes what the rows of one text, or of one search, are given step by step."""

    @property
    def ended(self) -> bool: ...

    def take(self, results: Sequence[Sequence[Any]], row: int) -> None:
        """Take a step's results; its rows begin at `row`. None counts once it has ended."""


class TooLong(NoRoom):
    """The rows would need room for more tokens than they may have.

    Attributes:
        length: how many tokens a row needs room for.
    """

    def __init__(self, length: int) -> None:
        super().__init__(f"rows of {length} tokens are too many.")
        self.length = length


@dataclass(eq=False)
class Job:
    """A request in a batch.

    Attributes:
        takers: what takes its results, each with `width` rows side by side.
        resumed: tokens of its text that were made before, in other rows; they are read like the prompt's.
        weight: their log-probability.
        read: how many tokens of its prompt have been read, where it is read in parts.
        launched: how many tokens of each text have been launched.
        cancelled: whether nobody wants it any more.
        alone: whether its prompt is read by itself, to see which one is to blame.
        error: what went wrong with its prompt.
        done: told once, when nothing more will come.
    """

    request: Request
    takers: Sequence[Taker]
    width: int = 1
    resumed: Sequence[int] = ()
    weight: float = 0.0
    read: int = 0
    launched: int = 0
    cancelled: bool = False
    alone: bool = False
    error: Exception | None = None
    done: Callable[["Job"], object] | None = None

    @property
    def rows(self) -> int:
        """How many rows it needs."""
        return self.width * len(self.takers)

    @property
    def most_tokens(self) -> int:
        """How many tokens a row may come to have."""
        return len(self.request.prompt_ids) + self.request.limit

    @property
    def tokens(self) -> list[int]:
        """What is read before the first token is chosen."""
        return [*self.request.prompt_ids, *self.resumed]

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.cancelled or self.error is not None or all(taker.ended for taker in self.takers)

    def runs(self, functions: Sequence[LogitsProcessor]) -> bool:
        """Whether these are its logits processors."""
        return [*map(id, functions)] == [*map(id, self.request.logits_processors)]

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.error = error
        self.finish()

    def finish(self) -> None:
        """Tell once that nothing more will come."""
        if self.done is not None:
            done, self.done = self.done, None
            done(self)


@dataclass(eq=False)
class _Entry:
    """One taker in its rows, from `row` on."""

    job: Job
    taker: Taker
    row: int

    @property
    def over(self) -> bool:
        """Whether its rows are free for others."""
        job = self.job
        return self.taker.ended or job.cancelled or job.error is not None or job.launched >= job.request.limit


class Batch:
    """Runs requests of one kind of search over one set of rows, in the caller's thread.

    Args:
        rows: a set of rows with nothing in it.
        width: how many rows a search has; 1 where every row is a text.
        tokens: how many tokens all rows may have room for together; None for what memory allows.
        admit_tokens: how many tokens of prompts are read at most before the next step of the rows that go on.
        replay, cuda_graph: see `gen.loop.steps.Steps`.
    """

    def __init__(
        self,
        model: Model,
        rows: RowSet,
        *,
        width: int = 1,
        tokens: int | None = None,
        admit_tokens: int = ADMIT_TOKENS,
        replay: bool = True,
        cuda_graph: bool = True,
    ) -> None:
        self._rows, self._width, self._tokens = rows, width, tokens
        self._admit_tokens = admit_tokens
        self._steps = Steps(rows, type(model).__name__, replay=replay, cuda_graph=cuda_graph)
        self._waiting: deque[Job] = deque()
        self._reading: tuple[Job, int] | None = None  # a job whose prompt has been read in part, and its row
        self._at: list[_Entry | None] = [None] * rows.count
        self._written = [0] * rows.count  # columns of each row that are written, or will be by what is launched
        self._live: list[_Entry] = []  # in the order of their rows
        self._tickets: deque[tuple[Sequence[Ticket], int, Sequence[_Entry]]] = deque()
        self._filled = 0  # rows that were filled together, where they cannot be filled one by one
        rows.begin()

    def add(self, job: Job) -> None:
        """Let a request wait for rows."""
        self._waiting.append(job)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is on its way."""
        return not (self._waiting or self._reading or self._live or self._tickets)

    def advance(self) -> None:
        """Launch a step, admit what waits, and read what has come: texts have grown, jobs may have ended."""
        with self._rows.streams.current():
            self._turn()

    def drain(self) -> None:
        """Advance until nothing is left."""
        with self._rows.streams.current():
            while not self.idle:
                self._turn()

    def _turn(self) -> None:
        """What `advance` says, on the streams of the rows."""
        self._free()
        if not self._waiting and not self._reading and self._rows.rows.refillable:
            self._move_down()
        if self._live:
            self._step()
        self._admit()  # after the step, so that a first token can be read before the second one is launched
        if not self._live:
            self._catch_up(0)

    def give_up(self) -> list[Job]:
        """The jobs that have not ended, in no order; the batch is not to be used any more."""
        jobs = dict.fromkeys(entry.job for _, _, entries in self._tickets for entry in entries)
        jobs |= dict.fromkeys(entry.job for entry in self._live)
        jobs |= dict.fromkeys([*self._waiting, *([self._reading[0]] if self._reading else [])])
        return [job for job in jobs if not job.ended]

    def _free(self) -> None:
        """Free the rows of what is over, and tell jobs that were cancelled."""
        gone = [entry for entry in self._live if entry.over]
        for entry in gone:
            self._at[entry.row : entry.row + entry.job.width] = [None] * entry.job.width
            if entry.job.cancelled:
                entry.job.finish()
        if gone:
            self._live = [entry for entry in self._live if not entry.over]

    def _admit(self) -> None:
        """Fill free rows, reading at most so many tokens, so that running rows do not wait long."""
        budget = self._admit_tokens
        if not self._rows.rows.refillable:
            if self._waiting and not self._live:
                self._fill_all()
            return
        if self._reading is not None:
            budget -= self._read_on(*self._reading, budget)
        if not self._live and not self._tickets:
            self._rows.begin()
        while self._waiting and budget > 0 and self._reading is None:
            head = self._waiting[0]
            if head.ended:
                self._waiting.popleft().finish()
                continue
            first, free = self._free_run(head.rows)
            while not free and self._at.count(None) >= head.rows and self._move_last():
                first, free = self._free_run(head.rows)
            if not free:
                return
            if len(head.tokens) > budget and self._may_cut(head):
                self._at[first] = _Entry(head, head.takers[0], first)
                budget -= self._read_on(self._waiting.popleft(), first, budget)
                continue
            if len(head.tokens) > budget < self._admit_tokens:  # it is read in one piece, the first of a turn
                return
            jobs = [self._waiting.popleft()]
            while self._waiting and (len(jobs) + 1) * head.rows <= free and self._alike(jobs, budget):
                jobs.append(self._waiting.popleft())
            budget -= sum(len(job.tokens) for job in jobs)
            self._fill(jobs, first)

    def _fill_all(self) -> None:
        """Fill as many rows as there are at once, where none can be filled while others go on."""
        jobs: list[Job] = []
        while self._waiting and (not jobs or (len(jobs) + 1) * jobs[0].rows <= self._rows.count):
            job = self._waiting[0]
            if job.ended:
                self._waiting.popleft().finish()
            elif jobs and (job.rows != jobs[0].rows or len(job.takers) != len(jobs[0].takers) or jobs[0].alone):
                break
            else:
                jobs.append(self._waiting.popleft())
        if jobs:
            self._filled = len(jobs) * jobs[0].rows
            self._fill(jobs, 0)

    def _may_cut(self, job: Job) -> bool:
        return not (self._rows.rows.whole_prompts or job.request.inputs or job.rows > 1)

    def _read_on(self, job: Job, row: int, budget: int) -> int:
        """Read the next part of a prompt, and start its text with the last one; how many tokens were read."""
        self._reading = None
        if job.ended:
            self._at[row] = None
            job.finish()
            return 0
        tokens = job.tokens
        left = len(tokens) - job.read
        if left <= budget:
            self._fill([job], row)
            return left
        try:
            self._make_room(job.read + budget)
            self._rows.read_part(row, tokens[job.read : job.read + budget], job.read)
        except Exception as error:
            self._fail([job], row, error)
        else:
            job.read += budget
            self._reading = job, row
        return budget

    def _alike(self, jobs: Sequence[Job], budget: int) -> bool:
        """Whether the prompt of the job that waits first is read together with those of some others."""
        first, job = jobs[0], self._waiting[0]
        longest = max(len(first.tokens), len(job.tokens))
        return (
            not (job.ended or job.alone or first.alone)
            and job.rows == first.rows
            and len(job.takers) == len(first.takers)
            and not first.request.inputs
            and not job.request.inputs
            and abs(len(first.tokens) - len(job.tokens)) <= max(_NEAR, longest // 8)
            and (len(jobs) + 1) * longest <= budget
        )

    def _free_run(self, count: int) -> tuple[int, int]:
        """The first run of free rows with room for `count`: where it begins, how many there are; 0 if there is none."""
        row = 0
        while row < len(self._at):
            end = row
            while end < len(self._at) and self._at[end] is None:
                end += 1
            if end - row >= count:
                return row, end - row
            row = end + 1
        return 0, 0

    def _fill(self, jobs: Sequence[Job], first: int) -> None:
        """Read prompts and choose their first tokens."""
        rows = slice(first, first + len(jobs) * jobs[0].rows)
        tokens = [job.tokens for job in jobs]
        try:
            self._make_room(
                max(min(len(read) + _AHEAD, job.most_tokens) for job, read in zip(jobs, tokens, strict=True))
            )
            weights = [job.weight for job in jobs]
            self._rows.fill(rows, [job.request for job in jobs], tokens, weights=weights, start=jobs[0].read)
        except Exception as error:
            self._fail(jobs, first, error)
            return
        entries = []
        row = first
        for job, read in zip(jobs, tokens, strict=True):
            job.launched = len(job.resumed) + 1
            for taker in job.takers:
                entry = _Entry(job, taker, row)
                entries.append(entry)
                self._at[row : row + job.width] = [entry] * job.width
                self._written[row : row + job.width] = [len(read)] * job.width
                row += job.width
        self._tickets.append((self._rows.send(), rows.stop, entries))
        self._live = sorted([*self._live, *entries], key=lambda entry: entry.row)
        if any(entry.over for entry in entries):
            self._free()
        self._catch_up(self._rows.ring.lag)

    def _fail(self, jobs: Sequence[Job], row: int, error: Exception) -> None:
        """Some prompts could not be read: the one that is to blame ends, the others are read again, one by one."""
        self._at[row] = None  # where a part of the prompt has been read
        failing = self._rows.failing
        others = bool(failing) and not any(job.runs(failing) for job in jobs)  # functions of other rows' requests
        passed_on = others or isinstance(error, ResultError) or is_out_of_memory(error)  # this prompt is not to blame
        if len(jobs) > 1 or passed_on:
            self._waiting.extendleft(reversed(jobs))
        if passed_on:
            raise error
        self._rows.forget_failure()
        if len(jobs) == 1:
            jobs[0].fail(error)
            return
        for job in jobs:
            job.alone = True

    def _step(self) -> None:
        """Launch a step of all rows that go on."""
        last = self._live[-1]
        count = self._bucket(last.row + last.job.width)
        longest = max(self._written[entry.row] for entry in self._live) + 1
        self._make_room(max(min(self._written[entry.row] + 1 + _AHEAD, entry.job.most_tokens) for entry in self._live))
        self._steps.run(count, min(view_bucket(longest), self._rows.length))
        self._tickets.append((self._rows.send(), count, self._live))
        for entry in self._live:
            for own in range(entry.row, entry.row + entry.job.width):
                self._written[own] += 1
        over = False
        for job in dict.fromkeys(entry.job for entry in self._live):
            job.launched += 1
            over = over or job.launched >= job.request.limit
        if over:
            self._free()
        self._catch_up(self._rows.ring.lag)

    def _catch_up(self, lag: int) -> None:
        """Read what has come, but for the newest `lag` results."""
        while len(self._tickets) > lag:
            self._take(*self._tickets.popleft())

    def _take(self, tickets: Sequence[Ticket], count: int, entries: Sequence[_Entry]) -> None:
        """Hand out what a step gave."""
        results = [one for ticket in tickets for one in ticket.read(count)]
        ended = False
        for entry in entries:
            taker, job = entry.taker, entry.job
            if taker.ended or job.error is not None:
                continue
            try:
                taker.take(results, entry.row)
            except Exception as error:  # of a tokenizer
                job.fail(error)
            ended = ended or entry.over
            if job.ended:
                job.finish()
        if ended:
            self._free()

    def _move_down(self) -> None:
        """Move the last rows into free ones, so that a smaller step does."""
        while self._live:
            last = self._live[-1]
            used = sum(entry.job.width for entry in self._live)
            smaller = self._bucket(used) < self._bucket(last.row + last.job.width)
            if not smaller or not self._move_last():
                return

    def _move_last(self) -> bool:
        """Move the last rows into free ones before them; whether there were any."""
        if not self._live:
            return False
        last = self._live[-1]
        target, free = self._free_run(last.job.width)
        if not free or target > last.row:
            return False
        for offset in range(last.job.width):
            self._rows.move(last.row + offset, target + offset, self._written[last.row])
            self._written[target + offset] = self._written[last.row]
        self._at[last.row : last.row + last.job.width] = [None] * last.job.width
        moved = _Entry(last.job, last.taker, target)
        self._at[target : target + last.job.width] = [moved] * last.job.width
        self._live = sorted([*self._live[:-1], moved], key=lambda entry: entry.row)
        return True

    def _bucket(self, rows: int) -> int:
        """How many rows a step has: a power of two of searches, or all."""
        if not self._rows.rows.refillable:
            return self._filled
        searches = -(-rows // self._width)
        return min((1 << (searches - 1).bit_length()) * self._width, self._rows.count)

    def _make_room(self, longest: int) -> None:
        """Let every row have room for so many tokens: twice as many as before, or as many as there may be.

        Raises:
            TooLong: it would take more memory than it may.
        """
        length = self._rows.length
        if longest <= length:
            return
        while length < longest:
            length *= 2
        if self._tokens is not None:
            length = min(length, self._tokens // self._rows.count)
        if length < longest:
            raise TooLong(longest)
        self._rows.grow(length)


def view_bucket(length: int) -> int:
    """How many columns a step looks at for a row of so many tokens: few shapes, little more than is needed."""
    step = 32 if length <= 256 else 128 if length <= 1024 else 512
    return -(-length // step) * step


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is a device's or the CPU's way to say that memory is out, or the loop's own."""
    if isinstance(error, torch.OutOfMemoryError | NoRoom):
        return True
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in str(error) or "not enough memory" in str(error)
    )
