"""What a layer keeps of all rows, and where a step writes: only tensors, no class of transformers' cache."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gen.attention.plan import whole
from gen.attention.steps import Apart

if TYPE_CHECKING:
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

_TOGETHER = 2**26  # bytes


class LayerState:
    """What one layer keeps of all rows. Tensors are made at the first prompt, on the device where the layer is.

    Attributes:
        columns: by name, tensors (count, ..., length, width) with an entry for each token of a row; the length is
            rounded up to whole pieces of columns.
        apart: by name, the tensors (1, ..., room, width) of rows that have memory of their own, by row; `columns`
            has nothing valid for such a row.
        summaries: by kind and number, tensors (count, ...) that stand for all tokens of a row: recurrent states.
    """

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length
        self.columns: dict[str, Tensor] = {}
        self.apart: dict[str, dict[int, Tensor]] = {}
        self._rooms: dict[int, int] = {}
        self._zeros: dict[str, Tensor] = {}
        self.summaries: dict[tuple[str, int], Tensor] = {}

    def write_prompt(
        self, name: str, rows: slice, start: int, states: Tensor, view: int | None = None, used: int | None = None
    ) -> Tensor:
        """Put a prompt's states (n, ..., tokens, width) into rows, from column `start` on; returns the first columns.

        What the rows had before is zeroed: a NaN would stay a NaN even where the mask gives it no weight.

        Args:
            view: how many columns to return; None for those up to the prompt's end. Padding for which there is no
                column is dropped.
            used: how many of the rows' columns may have been written; None for all.
        """
        kept = self._of(name, rows, states[0])
        end = min(start + states.shape[-2], kept.shape[-2])
        kept[..., start:end, :] = states[..., : end - start, :]
        if used is None or used > end:
            kept[..., end:used, :] = 0
        if view is None:
            return kept[..., :end, :] if start else states
        return kept[..., :view, :]

    def write_pieces(self, name: str, pieces: "Pieces", states: Tensor) -> Tensor:
        """Put the states (n, ..., tokens, width) of pieces into their rows; returns the rows' columns so far."""
        kept = self._of(name, pieces.rows, states[0])[..., : pieces.end, :]
        heads = kept.dim() == 4
        kept.masked_fill_(pieces.gone.unsqueeze(1) if heads else pieces.gone, 0)
        if heads:
            kept[pieces.row, :, pieces.columns] = states.transpose(1, 2)
        else:
            kept[pieces.row, pieces.columns] = states
        return kept

    def load(self, name: str, row: int, start: int, states: Tensor) -> None:
        """Put saved states (..., tokens, width) into a row, from column `start` on; a prompt must write the columns
        after them."""
        self._of(name, slice(row, row + 1), states)[0][..., start : start + states.shape[-2], :] = states

    def write_summaries(self, rows: slice, layer: "LinearAttentionCacheLayerMixin") -> None:
        """Put the recurrent states of a prompt's layer into rows."""
        for kind, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
            for number, state in states.items():
                if state is not None:
                    self.write_summary(rows, kind, number, state)

    def write_summary(self, rows: slice, kind: str, number: int, state: Tensor) -> None:
        """Put a recurrent state (n, ...) into rows."""
        kept = self.summaries.get((kind, number))
        if kept is None:
            kept = torch.zeros((self.count, *state.shape[1:]), dtype=state.dtype, device=state.device)
            self.summaries[kind, number] = kept
        kept[rows] = state

    def write_step(self, name: str, place: "Place", states: Tensor) -> Tensor:
        """Put states (n, ..., tokens, width) into the first n rows; returns the columns that these attend to."""
        kept = self.columns[name]
        heads = kept.dim() == 4
        if place.width > 1:
            row, given = place.row.unsqueeze(1), states.transpose(1, 2) if heads else states
        else:
            row, given = place.row, states.squeeze(-2)
        kept[(row, slice(None), place.column) if heads else (row, place.column)] = given
        for number, own in self.apart.get(name, {}).items():
            if number < len(states):
                own[0].index_copy_(-2, place.own_column[number].view(-1), states[number])
        return kept[: len(states), ..., : place.view, :]

    def forget(self, place: "Place", column: Tensor, own_column: Tensor) -> None:
        """Zero columns (n, tokens) of the first rows: a NaN there would stay a NaN even where the mask hides it."""
        row, count = place.row.unsqueeze(1), len(place.row)
        for name, kept in self.columns.items():
            kept[(row, slice(None), column) if kept.dim() == 4 else (row, column)] = self._zeros[name]
            for number, own in self.apart.get(name, {}).items():
                if number < count:
                    own[0].index_fill_(-2, own_column[number], 0)

    def read_apart(self, count: int) -> Apart:
        """The keys and values of the first `count` rows, as far as these have memory of their own."""
        keys, values = (self.apart.get(name, {}) for name in ("keys", "values"))
        return tuple((row, keys[row], values[row]) for row in keys if row < count)

    def copy(self, source: int, targets: slice, view: int) -> None:
        """Make rows equal to another one, whose first `view` columns count; the other columns become zero."""
        for summary in self.summaries.values():
            summary[targets].copy_(summary[source])
        for name, columns in self.columns.items():
            apart = self.apart.get(name, {})
            given = apart[source][0] if source in apart else columns[source]
            rows = range(self.count)[targets]
            for kept in [columns[targets]] if apart.keys().isdisjoint(rows) else [self.row(name, row) for row in rows]:
                end = min(view, kept.shape[-2], given.shape[-2])
                kept[..., :end, :] = given[..., :end, :]
                kept[..., end:, :] = 0

    def grow(self, length: int, rooms: Mapping[int, int]) -> None:
        """Give every row room for `length` columns, except rows with memory of their own; what fits is kept.

        Args:
            rooms: how many columns these rows get room for, by row.
        """
        self.length, self._rooms = length, dict(rooms)
        for name in list(self.columns):
            before, columns = self.apart.get(name, {}), self.columns[name]
            self.apart[name] = {
                row: _resized(before[row] if row in before else columns[row : row + 1].clone(), room)
                for row, room in rooms.items()
            }
            self.columns[name] = _resized(columns, length)
            for row, own in before.items():
                if row not in rooms:
                    self.columns[name][row] = _resized(own, length)[0]

    def _of(self, name: str, rows: slice, like: Tensor) -> Tensor:
        """The columns of rows, (n, ..., columns, width): of one row with memory of its own, or of rows without.

        Args:
            like: states (..., tokens, width) of a row; tensors are made to fit them if there are none yet.
        """
        if name not in self.columns:
            shape = (self.count, *like.shape[:-2], whole(self.length), like.shape[-1])
            self.columns[name] = torch.zeros(shape, dtype=like.dtype, device=like.device)
            self._zeros[name] = torch.zeros((), dtype=like.dtype, device=like.device)  # not on the host
            self.grow(self.length, self._rooms)
        apart = self.apart[name].get(rows.start)
        return self.columns[name][rows] if apart is None else apart

    def row(self, name: str, row: int) -> Tensor:
        """The columns of a row, (..., columns, width)."""
        own = self.apart.get(name, {}).get(row)
        return self.columns[name][row] if own is None else own[0]


class Side(NamedTuple):
    """A tensor that holds what one layer keeps of all rows, or what several layers of one shape keep.

    Attributes:
        axis: the dimension of rows.
        columns: whether it has an entry for each token of a row, in the last dimension but one.
    """

    tensor: Tensor
    axis: int
    columns: bool


def side_by_side(states: Sequence[LayerState]) -> list[Side]:
    """All that layers keep. On CUDA, layers of one shape are moved into one tensor, up to a size at which the launch of
    a kernel takes no time beside its work; a CPU is faster with each layer by itself."""
    columns, summaries = [state.columns for state in states], [state.summaries for state in states]
    return [*_side_by_side(columns, True), *_side_by_side(summaries, False)]


def _side_by_side(states: Sequence[dict[Any, Tensor]], columns: bool) -> Iterator[Side]:
    alike: dict[Hashable, list[tuple[dict[Any, Tensor], Hashable]]] = {}
    for state in states:
        for name, tensor in state.items():
            alike.setdefault((tensor.shape, tensor.dtype, tensor.device), []).append((state, name))
    for places in alike.values():
        tensors = [state[name] for state, name in places]
        together = max(1, _TOGETHER // max(1, tensors[0].nbytes)) if tensors[0].is_cuda else 1
        for start in range(0, len(places), together):
            some = tensors[start : start + together]
            if len(some) == 1:
                yield Side(some[0], 0, columns)
                continue
            whole = torch.stack(some)
            for (state, name), layer in zip(places[start:], whole, strict=False):
                state[name] = layer
            yield Side(whole, 1, columns)


def _resized(columns: Tensor, length: int) -> Tensor:
    """The first `length` columns, rounded up to whole pieces, filled up with zeros; unchanged if they are as many."""
    if columns.shape[-2] == whole(length):
        return columns
    made = columns.new_zeros((*columns.shape[:-2], whole(length), columns.shape[-1]))
    end = min(columns.shape[-2], whole(length))
    made[..., :end, :] = columns[..., :end, :]
    return made


class Place:
    """Where a step writes and what it attends to, on one device.

    Attributes:
        row: (n,), int64: 0 to n - 1.
        column: (n,), or (n, width) for several tokens, int64: each row's next columns, for rows without memory of their
            own.
        own_column: the same for all rows.
        view: how many columns the step attends to.
        width: how many tokens each row reads.
    """

    def __init__(self, row: Tensor, column: Tensor, own_column: Tensor, view: int, width: int = 1) -> None:
        self.row, self.column, self.own_column, self.view, self.width = row, column, own_column, view, width


class Pieces:
    """Where the tokens of pieces go, in each row after columns of its own, on one device.

    Args:
        rows: which rows.
        columns: (n, tokens), int64, on the device: the column of each token.
        end: one more than the last column.

    Attributes:
        row: (n, 1), int64: 0 to n - 1.
        gone: (n, end, 1), bool: the columns that the rows lose, from each row's first new one on.
    """

    def __init__(self, rows: slice, columns: Tensor, end: int) -> None:
        self.rows, self.columns, self.end = rows, columns, end
        self.row = torch.arange(len(columns), device=columns.device).unsqueeze(1)
        self.gone = (torch.arange(end, device=columns.device) >= columns[:, :1]).unsqueeze(2)
