"""The tokens so far of each row, prompt and text, for stages that look at them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gen.devices import to_device


class History:
    """A table of each row's tokens, which is made when a stage first wants it.

    Attributes:
        wanted: whether a stage wants it now.
    """

    def __init__(self, count: int, length: int, device: torch.device) -> None:
        self._count, self._length, self._device = count, length, device
        self._lengths = torch.zeros((count, 1), dtype=torch.int64, device=device)
        self._token_ids: Tensor | None = None  # (count, length)
        self.wanted = False

    def begin(self) -> None:
        """All rows are free, and no stage wants it."""
        self.wanted = False

    def admit(self, rows: slice, tokens: Sequence[Sequence[int]], *, wanted: bool) -> None:
        """Rows begin with these tokens; as many rows side by side for each.

        Args:
            wanted: whether a stage wants to see them from now on.
        """
        unknown, self.wanted = not self.wanted, wanted
        if not wanted:
            return
        if self._token_ids is None:
            self._token_ids = torch.empty((self._count, self._length), dtype=torch.int64, device=self._device)
        each = (rows.stop - rows.start) // len(tokens)
        kept = torch.full((len(tokens), self._length), -1, dtype=torch.int64, device="cpu")
        for number, read in enumerate(tokens):
            kept[number, : len(read)] = torch.tensor(read, device="cpu")
        texts = to_device(kept, self._device)
        lengths = to_device(torch.tensor([[len(read)] for read in tokens], device="cpu"), self._device)
        if unknown:  # what the other rows have read: they look like the first of these
            self._token_ids.copy_(texts[:1].expand_as(self._token_ids))
            self._lengths.copy_(lengths[:1].expand_as(self._lengths))
        self._token_ids[rows] = texts.repeat_interleave(each, 0)
        self._lengths[rows] = lengths.repeat_interleave(each, 0)

    def seen(self, here: slice, view: int) -> tuple[Tensor, Tensor]:
        """The tokens (n, columns) of the rows `here`, -1 where there is none, and how many they are, (n, 1).

        Where no stage wants them there are no columns, and any number.
        """
        if not self.wanted or self._token_ids is None:
            return self._lengths[here, :0], self._lengths[here]
        token_ids = self._token_ids[here, :view]
        return token_ids, self._lengths[here].clamp(max=token_ids.shape[1])  # a row that is free may have been longer

    def append(self, here: slice, token_ids: Tensor, ancestors: Tensor | None) -> None:
        """The rows `here` go on, each from its ancestor, by one token, (n, 1). Host sync: none."""
        assert self._token_ids is not None  # tells mypy
        before, lengths = self._token_ids[here], self._lengths[here]
        if ancestors is not None:
            before.copy_(before.index_select(0, ancestors))
        before.scatter_(1, lengths, token_ids)
        lengths.add_(1).clamp_(max=self._length - 1)

    def grow(self, length: int) -> None:
        """Make room for more tokens."""
        if self._token_ids is not None:
            self._token_ids = torch.nn.functional.pad(self._token_ids, (0, length - self._length), value=-1)
        self._length = length

    def tensors(self) -> Iterable[Tensor]:
        """All that belongs to rows, rows first."""
        return (self._lengths,) if self._token_ids is None else (self._lengths, self._token_ids)
