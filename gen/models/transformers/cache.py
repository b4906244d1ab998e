"""A transformers cache whose rows come and go: each row has a column of its own, where its next token is written.

Example: two rows, `length` 6. Row 0 has read three tokens, row 1 five. A step writes row 0's keys at column 3 and row
1's at column 5, and looks at as many columns as the longest row needs; the mask hides what a row has not reached. When
row 1's text has ended, another prompt is written over its columns from 0 on, while row 0 goes on.

This module imports transformers: import it only where a transformers model is at hand.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    StaticLayer,
)

from gen.errors import ModelError


class LayerState:
    """What one layer keeps of all rows. Tensors are made at the first prompt, on the device where the layer is.

    Attributes:
        columns: by name, tensors (count, ..., length, width) with an entry for each token of a row.
        summaries: by kind and number, tensors (count, ...) that stand for all tokens of a row: recurrent states.
    """

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length
        self.columns: dict[str, Tensor] = {}
        self.summaries: dict[tuple[str, int], Tensor] = {}
        self.kernel_sizes: dict[int, int | None] = {}

    def write_prompt(self, name: str, rows: slice, start: int, states: Tensor) -> Tensor:
        """Put a prompt's states (n, ..., tokens, width) into rows, from column `start` on; the rows' columns so far.

        What the rows were before is gone: a NaN of theirs would be a NaN even where the mask gives it no weight.
        """
        if name not in self.columns:
            shape = (self.count, *states.shape[1:-2], self.length, states.shape[-1])
            self.columns[name] = torch.zeros(shape, dtype=states.dtype, device=states.device)
        end = start + states.shape[-2]
        kept = self.columns[name][rows]
        kept[..., start:end, :] = states
        kept[..., end:, :] = 0
        return kept[..., :end, :] if start else states

    def write_summaries(self, rows: slice, layer: LinearAttentionCacheLayerMixin) -> None:
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
            longer = columns.new_zeros((*columns.shape[:-2], length, columns.shape[-1]))
            longer[..., : self.length, :] = columns
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


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """What both kinds of layers below have in common."""

    is_sliding = False

    def __init__(self, state: LayerState) -> None:
        super().__init__()
        self.state = state  # `is_initialized` stays false: models ask it of layers that images alone come to

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: tensors are made by `LayerState`."""

    def get_max_length(self) -> int:
        return self.state.length


class PromptLayer(_RowLayer):
    """Writes prompts into rows, and shows them the prompts' earlier tokens alone.

    Args:
        rows: which rows; prompts are padded on the right.
        start: the column of the first token; above 0 where the prompts' earlier tokens are there already.
    """

    is_compileable = False
    indexer_position_ids: Tensor | None = None  # of tokens before the prompt: none, since it is read in one piece

    def __init__(self, state: LayerState, rows: slice, start: int) -> None:
        super().__init__(state)
        self.rows, self.start = rows, start

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        keys = self.state.write_prompt("keys", self.rows, self.start, key_states)
        return keys, self.state.write_prompt("values", self.rows, self.start, value_states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        return self.state.write_prompt("indexer_keys", self.rows, self.start, indexer_key_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.start + query_length, 0

    def get_seq_length(self) -> int:
        return self.start


class StepLayer(_RowLayer):
    """Writes one token a row, each at its own column. Shapes depend on (rows, view) alone; nothing is read."""

    is_compileable = True  # or transformers drops the mask of steps of one token

    def __init__(self, state: LayerState, place: Place) -> None:
        super().__init__(state)
        self.place = place

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self._write("keys", key_states), self._write("values", value_states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        return self._write("indexer_keys", indexer_key_states)

    @property
    def indexer_position_ids(self) -> Tensor:
        """The positions of all columns in view, (3, n, view), to which the model adds those of the new tokens."""
        place = self.place
        return torch.arange(place.view, device=place.row.device).expand(3, len(place.row), -1)

    @indexer_position_ids.setter
    def indexer_position_ids(self, position_ids: Tensor) -> None:
        """Nothing to keep: a column's position is its number."""

    def _write(self, name: str, states: Tensor) -> Tensor:
        place, kept = self.place, self.state.columns[name]
        where = (place.row, slice(None), place.column) if kept.dim() == 4 else (place.row, place.column)
        kept[where] = states.squeeze(-2)
        return kept[: len(states), ..., : place.view, :]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.place.view, 0

    def get_seq_length(self) -> int:
        return self.place.view - 1  # a number; only masks that are replaced look at it


class RecurrentStepLayer(LinearAttentionLayer):  # type: ignore[misc]
    """The recurrent states of the first n rows, as windows onto the whole: what is copied into them is kept."""

    def __init__(self, state: LayerState, count: int) -> None:
        numbers = {number for _, number in state.summaries}
        super().__init__(number_of_states=max(1, len(numbers)))
        _show(self, state, count)


class HybridPromptLayer(LinearAttentionLayer, PromptLayer):  # type: ignore[misc]
    """A layer with keys and values and with recurrent states, at a prompt."""

    is_compileable = False

    def __init__(self, state: LayerState, rows: slice, number_of_states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        PromptLayer.__init__(self, state, rows, 0)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class HybridStepLayer(LinearAttentionLayer, StepLayer):  # type: ignore[misc]
    """A layer with keys and values and with recurrent states, at a step."""

    def __init__(self, state: LayerState, place: Place, count: int) -> None:
        StepLayer.__init__(self, state, place)
        LinearAttentionLayer.__init__(self, number_of_states=max(1, len({number for _, number in state.summaries})))
        _show(self, state, count)


def _show(layer: LinearAttentionCacheLayerMixin, state: LayerState, count: int) -> None:
    """Let a layer see the recurrent states of the first `count` rows."""
    for (kind, number), kept in state.summaries.items():
        window = kept[:count]
        if kind == "conv":
            layer.conv_states[number] = window
            layer.is_conv_states_initialized[number] = True
        else:
            layer.recurrent_states[number] = window
            layer.is_recurrent_states_initialized[number] = True
        layer.has_previous_state[number] = True
        layer.device, layer.dtype = kept.device, kept.dtype
    layer.conv_kernel_size.update(state.kernel_sizes)


def check_layers(layers: Sequence[object], name: str) -> None:
    """Refuse layers whose states cannot be kept row by row.

    Raises:
        ModelError: one is of a kind that is not known.
    """
    for layer in layers:
        kind = type(layer).__name__
        known = isinstance(layer, LinearAttentionCacheLayerMixin) or type(layer).__module__ == StaticLayer.__module__
        if not known:
            raise ModelError(
                f"{name} keeps its tokens in layers of its own ({kind}), which gen cannot keep row by row."
            )


def prompt_cache(layers: Sequence[object], states: Sequence[LayerState], rows: slice, start: int) -> Cache:
    """The cache for reading prompts into rows; layers that keep nothing stay as they are."""
    made: list[Any] = []
    for layer, state in zip(layers, states, strict=True):
        if isinstance(layer, LinearAttentionCacheLayerMixin) and isinstance(layer, StaticLayer):
            made.append(HybridPromptLayer(state, rows, layer.number_of_states))
        elif isinstance(layer, LinearAttentionCacheLayerMixin):
            made.append(type(layer)(number_of_states=layer.number_of_states))
        else:
            made.append(PromptLayer(state, rows, start) if isinstance(layer, CacheLayerMixin) else layer)
    return Cache(layers=made)


def step_cache(layers: Sequence[object], states: Sequence[LayerState], places: Sequence[Place], count: int) -> Cache:
    """The cache for a step of the first `count` rows."""
    made: list[Any] = []
    for layer, state, place in zip(layers, states, places, strict=True):
        if isinstance(layer, LinearAttentionCacheLayerMixin) and isinstance(layer, StaticLayer):
            made.append(HybridStepLayer(state, place, count))
        elif isinstance(layer, LinearAttentionCacheLayerMixin):
            made.append(RecurrentStepLayer(state, count))
        else:
            made.append(StepLayer(state, place) if isinstance(layer, CacheLayerMixin) else layer)
    return Cache(layers=made)
