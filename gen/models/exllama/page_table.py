"""Which pages of a cache each row of a set has; rows that begin alike may have pages in common.

Example, two rows of three pages. Row 1 begins with the 300 tokens that row 0 has read: its first page is row 0's, since
nobody writes there any more, and it copies the 44 tokens of the second one.

    row 0     pages 4, 5, 6
    row 1     pages 4, 8, 9       page 7 is spare

There are as many pages as if each row had its own. So a row that is to write where others read finds a spare one.
"""

from collections import Counter
from collections.abc import Sequence


class PageTable:
    """The pages of some rows, counted on the host.

    Attributes:
        rows: of each row its pages, in order; all have as many.
    """

    def __init__(self, count: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(count)]
        self._used: Counter[int] = Counter()
        self._spare: list[int] = []

    def grow(self, pages: Sequence[int]) -> None:
        """Give each row as many more pages as all others, of these."""
        each = len(pages) // len(self.rows)
        for row, own in enumerate(self.rows):
            own += pages[row * each : (row + 1) * each]
        self._used.update(pages)

    def share(self, source: int, target: int, count: int) -> None:
        """Let a row have another one's first pages instead of its own."""
        for place, page in enumerate(self.rows[source][:count]):
            self._put(target, place, page)

    def part(self, row: int, first: int) -> dict[int, tuple[int, int]]:
        """Let no other row have a row's pages from one on: by place the page that it had, and the one that it has."""
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
