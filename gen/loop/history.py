"""The tokens of each row so far, of prompt and text, for stages that look at them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.loop.speculation.settings import MOST_RECORDED


class History:
    """A table of each row's tokens, which is made when it is first wanted: by a stage, or to find drafts.

    Attributes:
        wanted: whether it is wanted now.
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
        """Rows begin with these tokens; each list is for as many rows, side by side.

        Args:
            wanted: whether a stage wants to see them from now on.
        """
        unknown, self.wanted = not self.wanted, wanted
        if not wanted:
            return
        if self._token_ids is None:
            shape = self._count, self._length + MOST_RECORDED  # a step may write drafts behind a row's end
            self._token_ids = torch.empty(shape, dtype=torch.int64, device=self._device)
            self._places = torch.arange(1 + MOST_RECORDED, device=self._device)
        each = (rows.stop - rows.start) // len(tokens)
        kept = torch.full((len(tokens), self._length + MOST_RECORDED), -1, dtype=torch.int64, device="cpu")
        for number, read in enumerate(tokens):
            kept[number, : len(read)] = torch.tensor(read, device="cpu")
        texts = to_device(kept, self._device)
        lengths = to_device(torch.tensor([[len(read)] for read in tokens], device="cpu"), self._device)
        if unknown:  # the tokens of the other rows are not known: they get the tokens of the first text
            self._token_ids.copy_(texts[:1].expand_as(self._token_ids))
            self._lengths.copy_(lengths[:1].expand_as(self._lengths))
        self._token_ids[rows] = texts.repeat_interleave(each, 0)
        self._lengths[rows] = lengths.repeat_interleave(each, 0)

    def before(self, here: slice, view: int, feed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The tokens of the rows `here`, (n, columns), -1 where there is none, and how many they are, (n, 1).

        For a step that reads the tokens `feed`, (n, width), the newest one and drafts: those before each of its places,
        (n * width, columns) and (n * width, 1). There are no columns if they are not wanted. Host sync: none.
        """
        if not self.wanted or self._token_ids is None:
            return self._lengths[here, :0], self._lengths[here]
        token_ids, lengths = self._token_ids[here], self._lengths[here]
        if feed is None:
            token_ids = token_ids[:, :view]
            return token_ids, lengths.clamp(max=token_ids.shape[1])  # a free row may have been longer
        token_ids.scatter_(1, lengths + self._places[: feed.shape[1] - 1], feed[:, 1:])
        lengths = (lengths + self._places[: feed.shape[1]]).clamp_(max=view).unsqueeze(2)
        columns = torch.arange(view, device=feed.device)
        before = torch.where(columns < lengths, token_ids[:, :view].unsqueeze(1), -1)
        return before.flatten(0, 1), lengths.flatten(0, 1)

    def advance(
        self, here: slice, token_ids: Tensor, ancestors: Tensor | None = None, counts: Tensor | None = None
    ) -> None:
        """The rows `here` go on from their ancestors with the first `counts` (n, 1) of the tokens (n, width).

        Without counts each goes on with its one token, without ancestors from itself. Host sync: none.
        """
        assert self._token_ids is not None  # tells mypy
        before, lengths, places = self._token_ids[here], self._lengths[here], self._places[: token_ids.shape[1]]
        if ancestors is not None:
            before.copy_(before.index_select(0, ancestors))
        if counts is not None:
            token_ids = torch.where(places < counts, token_ids, -1)
        before.scatter_(1, lengths if counts is None else lengths + places, token_ids)
        lengths.add_(1 if counts is None else counts).clamp_(max=self._length - 1)

    def grow(self, length: int) -> None:
        """Make room for more tokens."""
        if self._token_ids is not None:
            self._token_ids = torch.nn.functional.pad(self._token_ids, (0, length - self._length), value=-1)
        self._length = length

    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows, (rows, ...)."""
        return (self._lengths,) if self._token_ids is None else (self._lengths, self._token_ids)
