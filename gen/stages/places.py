"""Which lines a step computes: one for each row, or several for each row if it reads drafts beside the newest token.

Example: rows 0 and 1 with 3 places each are six lines, of rows 0, 0, 0, 1, 1 and 1; a table has a line for each row.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Several places of each of some rows.

    Attributes:
        rows: which rows.
        width: how many places each row has.
        index: (n * width,), int64: the row of each place, on the device.
    """

    rows: slice
    width: int
    index: Tensor


Here = slice | Places


def lines(table: Tensor, here: Here) -> Tensor:
    """The lines (n, ...) of a table that has one for each row: views for rows, copies for places. Host sync: none."""
    return table[here] if isinstance(here, slice) else table.index_select(0, here.index)
