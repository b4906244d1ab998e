"""How far the rows of a step look: neighbouring rows that look about equally far share one call of attention.

Example: five rows have 40, 35, 3, 900 and 890 tokens. In pieces of 32 columns they look at 64, 64, 32, 928 and 896
columns. If one more call costs as much as 96 columns of a row, the plan is two calls: rows 0 to 2 look at 64 columns,
and rows 3 and 4 at 928; each call reads 32 columns for nothing. In one call, the five rows would read 2,656 columns for
nothing.

A recorded step keeps the plan itself, not its numbers: the host sets these before each step, while the shapes of the
step stay.
"""

from collections.abc import Collection, Sequence

from torch import Tensor

PIECE = 32  # columns; rows look at whole pieces, because a rest would be summed in another order in another batch
_CALL = 2**14  # how many numbers of keys could be read in the time that one more call takes

Run = tuple[int, int, int]
"""The first row, the row after the last one, and how many columns they look at."""


class Plan:
    """How far each row of the next step looks.

    Attributes:
        runs: the runs of all rows, in order; empty if all rows look at all columns that the step looks at.
    """

    def __init__(self) -> None:
        self.runs: tuple[Run, ...] = ()
        self._pieces: list[int] = []
        self._apart: Collection[int] = ()
        self._made: tuple[Run, ...] = ()

    def look(self, lengths: Sequence[int], keys: Tensor, apart: Collection[int] = ()) -> None:
        """Let each row look at its own columns from now on.

        Args:
            lengths: how many columns each row of the step has, with the new token; 0 for a row that is free.
            keys: those of any layer, (rows, ..., columns, width).
            apart: rows whose columns have memory of their own: each is computed alone.
        """
        pieces = [-(-length // PIECE) or 1 for length in lengths]
        if pieces != self._pieces or apart != self._apart:
            numbers = keys[0].numel() // keys.shape[-2]  # of a column
            self._pieces, self._apart, self._made = pieces, apart, _runs(pieces, _CALL // numbers, apart)
        self.runs = self._made

    def look_at_all(self) -> None:
        """Let all rows look at all columns again."""
        self.runs = ()


def whole(columns: int) -> int:
    """As many columns as the fewest whole pieces that hold them."""
    return -(-columns // PIECE) * PIECE


def _runs(pieces: Sequence[int], call: int, apart: Collection[int]) -> tuple[Run, ...]:
    """Put neighbouring rows into one run if that reads fewer columns for nothing than one more call costs."""
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
