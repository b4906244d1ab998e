"""The random key of each draw: made from the request's seed and how many tokens its text has, and from nothing else.

So a text is the same in any row, any batch and on any device. Example: a row with seed 7 has the keys k(7, 0), k(7, 1),
...; the device looks up the key for its own count of tokens, which the host need not know.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.samplers.backends.random import row_keys
from gen.stages.places import Here, Places


class DrawKeys:
    """A table of each row's keys, by the number of its tokens.

    Attributes:
        table: (count, length), int64.
    """

    def __init__(self, count: int, length: int, device: torch.device) -> None:
        self._seeds = torch.zeros(count, dtype=torch.int64, device=device)
        self.table = torch.zeros((count, length), dtype=torch.int64, device=device)

    def admit(self, rows: slice, seeds: Sequence[int]) -> None:
        """Rows begin with texts of these seeds."""
        self._seeds[rows] = to_device(torch.tensor(seeds, dtype=torch.int64, device="cpu"), self._seeds.device)
        self.table[rows] = row_keys(self._seeds[rows], self.table.shape[1]).T

    def next(self, here: Here, generated: Tensor) -> Tensor:
        """The keys (n,) of the rows or places `here`, which have `generated` tokens, (n, 1). Host sync: none."""
        if isinstance(here, Places):
            return self.table[here.rows].gather(1, generated.view(-1, here.width)).view(-1)
        return self.table[here].gather(1, generated).squeeze(1)

    def grow(self, length: int) -> None:
        """Extend the table to more tokens."""
        self.table = row_keys(self._seeds, length).T.contiguous()

    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""
        return (self._seeds, self.table)
