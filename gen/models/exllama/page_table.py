"""Which pages of a cache each row has; rows that begin alike may share pages.

Example, two rows of three pages. Row 1 begins with the 300 tokens that row 0 has read: its first page is row 0's, since
nobody writes there any more, and it copies the 44 tokens of row 0's second page.

    row 0     pages 4, 5, 6
    row 1     pages 4, 8, 9       page 7 is spare

There are as many pages as if no row shared any. So a row that must write to a shared page finds a spare one instead.
"""

from collections import Counter
from collections.abc import Sequence


class PageTable:
    """The pages of some rows, counted on the host.

    Attributes:
        rows: the pages of each row, in order; all rows have equally many.
    """

    def __init__(self, count: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(count)]
        self._used: Counter[int] = Counter()
        self._spare: list[int] = []

    def grow(self, pages: Sequence[int]) -> None:
        """Share out these pages among the rows, equally many to each."""
        each = len(pages) // len(self.rows)
        for row, own in enumerate(self.rows):
            own += pages[row * each : (row + 1) * each]
        self._used.update(pages)

    def share(self, source: int, target: int, count: int) -> None:
        """Let a row have another one's first pages instead of its own."""
        for place, page in enumerate(self.rows[source][:count]):
            self._put(target, place, page)

    def part(self, row: int, first: int) -> dict[int, tuple[int, int]]:
        """Replace the shared pages of a row from place `first` on by spare ones; returns (old, new) by place."""
        shared = {place: page for place, page in enumerate(self.rows[row]) if place >= first and self._used[page] > 1}
        for place in shared:
            self._put(row, place, self._spare.pop())
        return {place: (page, self.rows[row][place]) for place, page in shared.items()}

    def _put(self, row: int, place: int, page: int) -> None:
        before, self.rows[row][place] = self.rows[row][place], page
        self._used[page] += 1
        self._used[before] -= 1
        if not self._used[before]:
            self._spare.append(before)
