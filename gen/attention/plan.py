"""How far the rows of a step look: neighbours that look about as far are one call of attention.

Example: five rows that have 40, 35, 3, 900 and 890 tokens. In pieces of 32 columns they look at 64, 64, 32, 928 and 896
columns. If one more call costs as much as 96 columns of a row, the plan is two calls: rows 0 to 2 look at 64 columns,
which reads 32 for nothing, and rows 3 and 4 at 928. Looked at together, the five would read 2,656 columns for nothing.

A recorded step keeps the plan itself, not its numbers: the host sets them before each step, and the step's shapes stay.
"""

from collections.abc import Collection, Sequence

PIECE = 32  # columns: what is beyond a whole number of them would be summed in another order in another batch
_CALL = 2**14  # how many numbers of keys could be read in the time that one more call takes

Run = tuple[int, int, int]
"""The first row, the row after the last one, and how many columns they look at."""


class Plan:
    """Which rows of the next step look how far.

    Attributes:
        runs: of all its rows, in order; empty where all look at all columns that the step looks at.
    """

    def __init__(self) -> None:
        self.runs: tuple[Run, ...] = ()
        self._pieces: list[int] = []
        self._apart: Collection[int] = ()
        self._made: tuple[Run, ...] = ()

    def look(self, lengths: Sequence[int], numbers: int, apart: Collection[int] = ()) -> None:
        """Let each row look at its own columns from now on.

        Args:
            lengths: of each row of the step, the new token counted; 0 for a row that is free.
            numbers: how many a column of keys has.
            apart: rows whose columns have memory of their own: each is computed alone.
        """
        pieces = [-(-length // PIECE) or 1 for length in lengths]
        if pieces != self._pieces or apart != self._apart:
            self._pieces, self._apart, self._made = pieces, apart, _runs(pieces, _CALL // numbers, apart)
        self.runs = self._made

    def look_at_all(self) -> None:
        """Let all rows look at all columns again."""
        self.runs = ()


def whole(columns: int) -> int:
    """As many columns as the fewest whole pieces that hold them."""
    return -(-columns // PIECE) * PIECE


def _runs(pieces: Sequence[int], call: int, apart: Collection[int]) -> tuple[Run, ...]:
    """Rows side by side together wherever that reads fewer columns for nothing than one more call costs."""
    runs: list[Run] = []
    for row, count in enumerate(pieces):
        first, end, view = row, row + 1, count * PIECE
        while runs and row not in apart and runs[-1][0] not in apart:
            before, _, its_view = runs[-1]
            wider = max(view, its_view)
            if (first - before) * (wider - its_view) + (end - first) * (wider - view) > call:
                break
            first, view = before, wider
            runs.pop()
        runs.append((first, end, view))
    return tuple(runs)
