"""Which text is in which row: rows that are free, rows that move, and how long all of them are."""

from collections.abc import Sequence
from dataclasses import dataclass

from gen.loop.jobs import Job
from gen.loop.memory import TooLong
from gen.loop.results.taker import Taker
from gen.loop.row_set import RowSet

_AHEAD = 2  # columns by which the counts on the device are ahead of what is written, after a step


@dataclass(eq=False)
class Slot:
    """Rows side by side, from `row` on, that one text or one search has."""

    job: Job
    taker: Taker
    row: int

    @property
    def over(self) -> bool:
        """Whether its rows are free for others."""
        return self.taker.ended or self.job.launched_all


class Slots:
    """The rows of a batch as the host knows them.

    Args:
        width: how many rows a search has; 1 where every row is a text.
        step_rows: see `gen.loop.options.Options`.

    Attributes:
        tokens: how many tokens all rows may have room for together; None for what memory allows.
        at: whose each row is; None for a free one.
        live: who goes on, in the order of their rows.
        filled: how many rows were filled together, where they cannot be filled one by one.
    """

    def __init__(self, rows: RowSet, width: int, tokens: int | None, step_rows: int = 1) -> None:
        self._rows, self._width, self.tokens, self._least = rows, width, tokens, step_rows
        self.at: list[Slot | None] = [None] * rows.count
        self.live: list[Slot] = []
        self.filled = 0
        self._written = [0] * rows.count  # columns of each row that are written, or will be by what is launched

    def put(self, slots: Sequence[Slot], lengths: Sequence[int]) -> None:
        """Texts begin in rows, with so many tokens each."""
        for slot, length in zip(slots, lengths, strict=True):
            rows = slice(slot.row, slot.row + slot.job.width)
            self.at[rows] = [slot] * slot.job.width
            self._written[rows] = [length] * slot.job.width
        self.live = sorted([*self.live, *slots], key=lambda slot: slot.row)

    def free(self) -> list[Slot]:
        """Free the rows of requests that have ended, and return their slots."""
        gone = [slot for slot in self.live if slot.over]
        for slot in gone:
            self.at[slot.row : slot.row + slot.job.width] = [None] * slot.job.width
        if gone:
            self.live = [slot for slot in self.live if not slot.over]
        return gone

    def shape(self) -> tuple[int, int]:
        """How many rows the next step has, and how many columns it looks at; there is room for it.

        Raises:
            TooLong: it would take more memory than it may.
        """
        last = self.live[-1]
        self.make_room(max(min(self._written[one.row] + 1 + _AHEAD, one.job.most_tokens) for one in self.live))
        longest = max(self._written[slot.row] for slot in self.live) + 1
        return self._bucket(last.row + last.job.width), min(view_bucket(longest), self._rows.length)

    def lengths(self, count: int) -> list[int]:
        """How many columns each row of the next step has, its new token counted; 0 for a row that is free."""
        return [
            0 if slot is None else written + 1
            for slot, written in zip(self.at[:count], self._written[:count], strict=True)
        ]

    def stepped(self) -> None:
        """All that go on have a token more."""
        for slot in self.live:
            for row in range(slot.row, slot.row + slot.job.width):
                self._written[row] += 1

    def make_room_to_read(self, lengths: Sequence[int], most: Sequence[int]) -> None:
        """Let rows have room for texts that begin with so many tokens, and may come to have `most`.

        Raises:
            TooLong: it would take more memory than it may.
        """
        self.make_room(max(min(length + _AHEAD, end) for length, end in zip(lengths, most, strict=True)))

    def free_run(self, count: int) -> tuple[int, int]:
        """The first run of free rows with room for `count`: where it begins, how many there are; 0 if there is none."""
        row = 0
        while row < len(self.at):
            end = row
            while end < len(self.at) and self.at[end] is None:
                end += 1
            if end - row >= count:
                return row, end - row
            row = end + 1
        return 0, 0

    def make_way(self, count: int) -> tuple[int, int]:
        """As `free_run`; rows move where enough are free, but not side by side."""
        first, free = self.free_run(count)
        while not free and self.at.count(None) >= count and self.move_last():
            first, free = self.free_run(count)
        return first, free

    def move_down(self) -> None:
        """Move the last rows into free ones, so that a smaller step does."""
        while self.live:
            last = self.live[-1]
            used = sum(slot.job.width for slot in self.live)
            smaller = self._bucket(used) < self._bucket(last.row + last.job.width)
            if not smaller or not self.move_last():
                return

    def move_last(self) -> bool:
        """Move the last rows into free ones before them; whether there were any."""
        if not self.live:
            return False
        last = self.live[-1]
        target, free = self.free_run(last.job.width)
        if not free or target > last.row:
            return False
        for offset in range(last.job.width):
            self._rows.move(last.row + offset, target + offset, self._written[last.row])
            self._written[target + offset] = self._written[last.row]
        self.at[last.row : last.row + last.job.width] = [None] * last.job.width
        moved = Slot(last.job, last.taker, target)
        self.at[target : target + last.job.width] = [moved] * last.job.width
        self.live = sorted([*self.live[:-1], moved], key=lambda slot: slot.row)
        return True

    def make_room(self, longest: int) -> None:
        """Let every row have room for so many tokens: twice as many as before, or as many as there may be.

        Raises:
            TooLong: it would take more memory than it may.
        """
        length = self._rows.length
        if longest <= length:
            return
        while length < longest:
            length *= 2
        length = view_bucket(length)  # so that what a step looks at does not depend on how rows have grown
        if self.tokens is not None:
            most = self.tokens // self._rows.count
            whole = most - most % 32  # which are fast to look at
            length = min(length, whole if whole >= longest else most)
        if length < longest:
            raise TooLong(self._rows.count, longest)
        self._rows.grow(length)

    def _bucket(self, rows: int) -> int:
        """How many rows a step has: a power of two of searches, at least `step_rows` of them, or all."""
        if not self._rows.rows.refillable:
            return self.filled
        searches = max(-(-rows // self._width), self._least)
        return min((1 << (searches - 1).bit_length()) * self._width, self._rows.count)


def view_bucket(length: int) -> int:
    """How many columns a step looks at for a row of so many tokens: few shapes, little more than is needed."""
    step = 32 if length <= 256 else 128 if length <= 1024 else 512
    return -(-length // step) * step
