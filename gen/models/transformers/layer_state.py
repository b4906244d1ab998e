"""What a layer keeps of all rows, and where a forward writes: only tensors, no class of transformers' cache."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

    def write(self, name: str, place: "Place", states: Tensor) -> Tensor:
        """Put the states (n, ..., tokens, width) of a forward into its rows; returns the columns that it attends to.

        What rows had after a prompt is zeroed: a NaN would stay a NaN even where the mask gives it no weight. Padding
        for which there is no column is dropped.
        """
        kept = self.columns[name] if place.steps else self._of(name, place.rows, states[0])
        if place.columns is None:
            end = min(place.start + states.shape[-2], kept.shape[-2])
            kept[..., place.start : end, :] = states[..., : end - place.start, :]
            kept[..., end : place.used, :] = 0
            return states if place.view is None else kept[..., : place.view, :]
        row, column, own, lost = place.columns
        if lost is not None:
            kept[..., : place.view, :].masked_fill_(lost.unsqueeze(1) if kept.dim() == 4 else lost, 0)
        _by_column(kept).index_put_((row, column), _by_column(states))
        for number, its in self._apart_in(place, name):
            its[0].index_copy_(-2, own[number], states[number])
        return kept[: len(states), ..., : place.view, :]

    def load(self, name: str, row: int, start: int, states: Tensor) -> None:
        """Put saved states (..., tokens, width) into a row, from column `start` on; the first ones clear the row."""
        kept = self._of(name, slice(row, row + 1), states)[0]
        kept[..., start : start + states.shape[-2], :] = states
        if not start:
            kept[..., states.shape[-2] :, :] = 0

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

    def roll_back(self, place: "Place", columns: "Columns") -> None:
        """Zero columns of a step's rows: a NaN there would stay a NaN even where the mask hides it."""
        row, column, own, _ = columns
        for name, kept in self.columns.items():
            _by_column(kept).index_put_((row, column), self._zeros[name])
            for number, its in self._apart_in(place, name):
                its[0].index_fill_(-2, own[number], 0)

    def apart_in(self, place: "Place") -> Apart:
        """The keys and values of a step's rows, as far as these have memory of their own."""
        values = self.apart.get("values", {})
        return tuple((row, keys, values[row]) for row, keys in self._apart_in(place, "keys"))

    def _apart_in(self, place: "Place", name: str) -> list[tuple[int, Tensor]]:
        apart = self.apart.get(name, {}) if place.steps else {}
        return [(row, own) for row, own in apart.items() if row < place.rows.stop]

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


def _by_column(columns: Tensor) -> Tensor:
    """A view (rows, columns, ..., width) of columns (rows, ..., columns, width)."""
    return columns.transpose(1, 2) if columns.dim() == 4 else columns


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


class Columns(NamedTuple):
    """The columns of new tokens, which differ from row to row.

    Attributes:
        row: (n, 1), int64: 0 to n - 1.
        column: (n, width), int64: of each token, in a row without memory of its own.
        own: (n, width), int64: of each token, in a row of a step that has.
        lost: (n, view, 1), bool: what the rows of prompts lose, from each one's first new column on; None for a step.
    """

    row: Tensor
    column: Tensor
    own: Tensor
    lost: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Where a forward writes the new tokens of its rows, and which columns they attend to, on one device.

    Attributes:
        rows: which rows; those of a step are the first ones.
        width: how many tokens each row reads.
        view: how many columns the tokens attend to; None for those of the forward alone.
        start: the column of the first token of prompts that all have the same one, and are copied as a block.
        used: how many columns of the rows of such prompts may have been written; None for all.
        columns: where tokens go that are not such prompts'; None for these.
    """

    rows: slice
    width: int
    view: int | None
    start: int = 0
    used: int | None = None
    columns: Columns | None = None

    @property
    def steps(self) -> bool:
        """Whether it is the place of a step."""
        return self.columns is not None and self.columns.lost is None

    @property
    def before(self) -> int:
        """How many tokens come before the new ones, for transformers' masks, which gen replaces where this is no
        number that the host knows."""
        return self.start if self.columns is None else (self.view or 0) - self.width

    def on(self, device: torch.device) -> "Place":
        """The same on another device."""
        if self.columns is None or self.columns.row.device == device:
            return self
        row, column, own, lost = self.columns
        moved = own.to(device, non_blocking=True)
        shared = moved if column is own else column.to(device, non_blocking=True)
        numbers = torch.arange(len(row), device=device).unsqueeze(1)
        lost = None if lost is None else lost.to(device, non_blocking=True)
        return replace(self, columns=Columns(numbers, shared, moved, lost))
