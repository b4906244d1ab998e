"""What a layer keeps of all rows, and where a step writes: tensors alone, no class of transformers' cache."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gen.attention.plan import whole

if TYPE_CHECKING:
    from transformers.cache_utils import LinearAttentionCacheLayerMixin


class LayerState:
    """What one layer keeps of all rows. Tensors are made at the first prompt, on the device where the layer is.

    Attributes:
        columns: by name, tensors (count, ..., length, width) with an entry for each token of a row, and for those that
            whole pieces of columns have more.
        summaries: by kind and number, tensors (count, ...) that stand for all tokens of a row: recurrent states.
    """

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length
        self.columns: dict[str, Tensor] = {}
        self.summaries: dict[tuple[str, int], Tensor] = {}
        self.kernel_sizes: dict[int, int | None] = {}

    def write_prompt(self, name: str, rows: slice, start: int, states: Tensor, view: int | None = None) -> Tensor:
        """Put a prompt's states (n, ..., tokens, width) into rows, from column `start` on; the rows' first columns.

        What the rows were before is gone: a NaN of theirs would be a NaN even where the mask gives it no weight.

        Args:
            view: how many columns are returned; None for those of the prompt and what is before it. Padding for which
                there is no column is dropped.
        """
        kept = self._columns(name, states[0])[rows]
        end = min(start + states.shape[-2], kept.shape[-2])
        kept[..., start:end, :] = states[..., : end - start, :]
        kept[..., end:, :] = 0
        if view is None:
            return kept[..., :end, :] if start else states
        return kept[..., :view, :]

    def write_pieces(self, name: str, pieces: "Pieces", states: Tensor) -> Tensor:
        """Put the states (n, ..., tokens, width) of pieces into their rows; the rows' columns so far."""
        kept = self._columns(name, states[0])[pieces.rows][..., : pieces.end, :]
        heads = kept.dim() == 4
        kept.masked_fill_(pieces.gone.unsqueeze(1) if heads else pieces.gone, 0)
        if heads:
            kept[pieces.row, :, pieces.columns] = states.transpose(1, 2)
        else:
            kept[pieces.row, pieces.columns] = states
        return kept

    def load(self, name: str, row: int, start: int, states: Tensor) -> None:
        """Put states (..., tokens, width) that a row had into a row, from column `start` on; what comes after them is
        to be written by a prompt."""
        self._columns(name, states)[row][..., start : start + states.shape[-2], :] = states

    def _columns(self, name: str, states: Tensor) -> Tensor:
        """The columns of all rows, which are made for the first states (..., tokens, width) of a row."""
        if name not in self.columns:
            shape = (self.count, *states.shape[:-2], whole(self.length), states.shape[-1])
            self.columns[name] = torch.zeros(shape, dtype=states.dtype, device=states.device)
        return self.columns[name]

    def write_summaries(self, rows: slice, layer: "LinearAttentionCacheLayerMixin") -> None:
        """Put the recurrent states of a prompt's layer into rows."""
        for kind, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
            for number, state in states.items():
                if state is None:
                    continue
                kept = self.summaries.get((kind, number))
                if kept is None:
                    kept = torch.zeros((self.count, *state.shape[1:]), dtype=state.dtype, device=state.device)
                    self.summaries[kind, number] = kept
                kept[rows] = state
        self.kernel_sizes = dict(layer.conv_kernel_size)

    def tensors(self, view: int) -> Iterator[Tensor]:
        """All tensors, rows first; of those with columns the first `view` ones."""
        for columns in self.columns.values():
            yield columns[..., :view, :]
        yield from self.summaries.values()

    def copy(self, source: int, targets: slice, view: int) -> None:
        """Make rows equal to another one, whose first `view` columns count; the others are as after `write_prompt`."""
        for tensor in self.tensors(view):
            tensor[targets].copy_(tensor[source])
        for columns in self.columns.values():
            columns[targets, ..., view:, :] = 0

    def grow(self, length: int) -> None:
        """Make room for more columns."""
        for name, columns in self.columns.items():
            longer = columns.new_zeros((*columns.shape[:-2], whole(length), columns.shape[-1]))
            longer[..., : columns.shape[-2], :] = columns
            self.columns[name] = longer
        self.length = length


class Place:
    """Where a step writes and what it looks at, on one device.

    Attributes:
        row: (n,), int64: 0 to n - 1.
        column: (n,), int64: each row's next column.
        view: how many columns are looked at.
    """

    def __init__(self, row: Tensor, column: Tensor, view: int) -> None:
        self.row, self.column, self.view = row, column, view


class Pieces:
    """Where tokens go that come after columns of their own in each row, on one device.

    Args:
        rows: which rows.
        columns: (n, tokens), int64, on the device: of each token.
        end: one more than the last column.

    Attributes:
        row: (n, 1), int64: 0 to n - 1.
        gone: (n, end, 1), bool: what the rows had from there on.
    """

    def __init__(self, rows: slice, columns: Tensor, end: int) -> None:
        self.rows, self.columns, self.end = rows, columns, end
        self.row = torch.arange(len(columns), device=columns.device).unsqueeze(1)
        self.gone = (torch.arange(end, device=columns.device) >= columns[:, :1]).unsqueeze(2)
