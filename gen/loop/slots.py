"""Which text is in which row: rows that are free, rows that move, and how long all of them are."""

from collections.abc import Mapping, Sequence

from gen.loop.jobs import Job
from gen.loop.memory import TooLong
from gen.loop.replay.recorded import Recorded

_WIDE_VIEW = 128  # columns; steps that read drafts are fewer, so they have fewer shapes, each of which is recorded
_AHEAD = 2  # columns by which the counts on the device are ahead of the written columns, after a step


class Slots:
    """The rows of a batch as the host knows them.

    Args:
        width: how many rows a search has; 1 if every row is a text.
        step_rows: see `gen.loop.options.Options`.

    Attributes:
        tokens: how many tokens all rows may have room for together; None for what memory allows.
        at: the job that has each row; None for a free row.
        live: the jobs that go on, each one text or search, in the order of their rows.
        count: how many rows the next step has.
        filled: how many rows were filled together, if they cannot be filled one by one.
    """

    def __init__(self, steps: Recorded, width: int, tokens: int | None, step_rows: int = 1) -> None:
        self._steps, self._width, self.tokens, self._least = steps, width, tokens, step_rows
        rows = self._rows = steps.decoder
        self.at: list[Job | None] = [None] * rows.count
        self.filled = 0
        self._go_on([])
        self._written = [0] * rows.count  # columns of each row that are written, or will be by launched steps

    def _go_on(self, jobs: Sequence[Job]) -> None:
        """Let these jobs go on, in the rows that they have."""
        self.live = sorted(jobs, key=lambda job: job.row)
        self._places = [row for job in self.live for row in job.places]
        # how many rows the next step has, and how many would be enough if no row between them were free
        self.count = self._bucket(self._places[-1] + 1 if jobs else 0)
        self._enough = self._bucket(len(self._places))

    def put(self, jobs: Sequence[Job], lengths: Sequence[int]) -> None:
        """Let texts begin in their rows, with so many tokens each."""
        for job, length in zip(jobs, lengths, strict=True):
            for row in job.places:
                self.at[row], self._written[row] = job, length
        self._go_on([*self.live, *jobs])

    def free(self) -> list[Job]:
        """Free the rows of jobs that are over, and return these."""
        gone = [job for job in self.live if job.over]
        for job in gone:
            self.at[job.row : job.row + job.width] = [None] * job.width
        if gone:
            self._go_on([job for job in self.live if job not in gone])  # others may be cancelled by now
        return gone

    def shape(self, width: int = 1) -> tuple[int, int]:
        """How many rows the next step has, and how many columns it looks at; makes room for it if needed.

        Args:
            width: how many tokens of each row it reads; if several, `fits` has said that there is room, or may be.
        Raises:
            TooLong: the rows would take more memory than they may.
        """
        longest = max(self._written[row] for row in self._places) + width
        if longest + _AHEAD > self._rows.shared:
            self.make_room(width=width)
        view = view_bucket(longest) if width == 1 else max(view_bucket(longest), -(-longest // _WIDE_VIEW) * _WIDE_VIEW)
        rooms, room = self._rows.rooms, self._rows.shared
        if rooms:
            room = max(rooms.get(row, room) for row in self._places)  # a free row may have more
        return self.count, min(view, _whole(room), self._rows.length)

    def fits(self, width: int, *, grows: bool = False) -> bool:
        """Whether all live rows have room for so many more tokens; with `grows`, whether their texts may come to it."""
        rooms, shared = self._rows.rooms, self._rows.shared
        return all(
            self._written[job.row] + width + _AHEAD
            <= (job.request.most_tokens if grows else rooms.get(job.row, shared))
            for job in self.live
        )

    def lengths(self, count: int, width: int = 1) -> list[int]:
        """How many columns each row of the next step has, with its new tokens; 0 for one that is free or being read."""
        lengths = [0] * count
        for row in self._places:
            lengths[row] = self._written[row] + width
        return lengths

    def stepped(self, width: int = 1) -> None:
        """Note that all live rows may have so many more tokens."""
        for row in self._places:
            self._written[row] += width

    def correct(self, fewer: Mapping[Job, int]) -> None:
        """Note that texts have so many fewer tokens than steps might have given them."""
        for job in self.live:
            self._written[job.row] -= fewer.get(job, 0)

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
        """As `free_run`; if enough rows are free, but not side by side, others move."""
        first, free = self.free_run(count)
        while not free and self.at.count(None) >= count and self.move_last():
            first, free = self.free_run(count)
        return first, free

    def move_down(self) -> None:
        """Move the last rows into free ones, if a smaller step is enough then."""
        while self._enough < self.count and self.move_last():
            pass

    def move_last(self) -> bool:
        """Move the last rows into free ones before them; whether there were any."""
        if not self.live:
            return False
        last = self.live[-1]
        target, free = self.free_run(last.width)
        if not free or target > last.row:
            return False
        written, rows = self._written[last.row], self._rows
        self.make_room({target + offset: (last, written + 1) for offset in range(last.width)})
        for offset in range(last.width):
            rows.move(last.row + offset, target + offset, written)
            self._written[target + offset] = written
        self.at[last.row : last.row + last.width] = [None] * last.width
        if last.row in rows.rooms:
            self._steps.lay_out(rows.shared, {row: room for row, room in rows.rooms.items() if row != last.row})
        last.row = target
        self.at[target : target + last.width] = [last] * last.width
        self._go_on(self.live)
        return True

    def make_room(self, coming: Mapping[int, tuple[Job, int]] | None = None, width: int = 1) -> None:
        """Let every row have room for its next tokens: twice as many as before, or as many as there may be.

        Args:
            coming: for each row that is about to get a text, its job, and how many tokens the text has.
            width: how many tokens come next in the other rows.
        Raises:
            TooLong: the rows would take more memory than they may.
        """
        rows, coming = self._rows, coming or {}
        live = set(self._places)
        there = {
            row: (job, self._written[row] + width if row in live else job.longest)
            for row, job in enumerate(self.at)
            if job is not None
        }
        texts = there | dict(coming)
        needs = {row: min(tokens + _AHEAD, job.request.most_tokens) for row, (job, tokens) in texts.items()}
        if all(need <= rows.rooms.get(row, rows.shared) for row, need in needs.items()) and not any(
            row in rows.rooms and 2 * needs[row] < rows.rooms[row] for row in coming
        ):
            return
        if rows.parts:
            shared, rooms = share_out(rows.count, rows.shared, needs)
            rooms = {row: min(room, view_bucket(texts[row][0].request.most_tokens)) for row, room in rooms.items()}
        else:
            shared, rooms = _doubled(rows.shared, max(needs.values())), {}
        # rounded, so that what a step looks at does not depend on how rows have grown
        shared = view_bucket(shared) if shared > rows.shared else shared
        if self.tokens is not None and rows.count * shared + sum(rooms.values()) > self.tokens:
            shared, rooms = self._fitted(needs, rows.parts)
        self._steps.lay_out(shared, rooms)

    def _fitted(self, needs: Mapping[int, int], parts: bool) -> tuple[int, dict[int, int]]:
        """As much room as there may be: the same for all rows if that is enough, else more for some.

        Raises:
            TooLong: it is not enough.
        """
        rows, tokens, longest = self._rows, self.tokens or 0, max(needs.values())
        most = tokens // rows.count
        if most >= longest:
            # multiples of 32 columns are fast to look at
            return (most - most % 32 if most - most % 32 >= longest else most), {}
        long = {row: _whole(need) for row, need in needs.items() if need > rows.shared}
        spare = tokens - rows.count * rows.shared - sum(long.values())
        if not parts or spare < 0:
            raise TooLong(rows.count, longest)
        each = spare // len(long)
        return rows.shared, {row: room + each - each % 32 for row, room in long.items()}

    def _bucket(self, rows: int) -> int:
        """How many rows a step has: those of a power of two of searches, at least of `step_rows`, or all rows."""
        if not self._rows.rows.refillable:
            return self.filled
        searches = max(-(-rows // self._width), self._least)
        return min((1 << (searches - 1).bit_length()) * self._width, self._rows.count)


def view_bucket(length: int) -> int:
    """How many columns a step looks at for a row of so many tokens: little more than needed, and in few shapes."""
    step = 32 if length <= 256 else 128 if length <= 1024 else 512
    return -(-length // step) * step


def share_out(count: int, shared: int, needs: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """How many tokens all rows have room for; and, by row, the room of rows that have memory of their own, for more.

    All rows have room for the longest text, unless that is more than twice the room that another text would get by
    itself, or takes more than twice the memory that all would get by themselves: then a shorter text decides.

    Args:
        shared: how many tokens all rows have room for now.
        needs: how many tokens there must be room for, by row; free rows are not in it.
    """
    alone = {row: _doubled(shared, need) for row, need in needs.items()}
    least, total = min(alone.values()), sum(alone.values()) + (count - len(alone)) * shared
    lengths = {shared, *(length for length in alone.values() if length <= 2 * least)}
    chosen = max(
        length for length in lengths if count * length + sum(own for own in alone.values() if own > length) <= 2 * total
    )
    return chosen, {row: view_bucket(own) for row, own in alone.items() if own > chosen}


def _doubled(length: int, need: int) -> int:
    """A length, doubled until it is enough."""
    while length < need:
        length *= 2
    return length


def _whole(tokens: int) -> int:
    return -(-tokens // 32) * 32
