"""A transformers cache whose rows come and go: each row writes its next token at its own column.

Example: two rows, `length` 6. Row 0 has read three tokens, row 1 five. A step writes row 0's keys at column 3 and row
1's at column 5, and attends to as many columns as the longest row needs; the mask hides columns that a row has not
reached. When row 1's text has ended, another prompt is written over its columns from 0 on, while row 0 goes on.

This module imports transformers: import it only where a transformers model is at hand.
"""

from collections.abc import Sequence
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
from gen.models.transformers.attention import PromptAttention, StepAttention, mark
from gen.models.transformers.layer_state import LayerState, Pieces, Place


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """What the layers below have in common."""

    is_sliding = False

    def __init__(self, state: LayerState) -> None:
        super().__init__()
        self.state = state  # `is_initialized` stays false: models ask for it in layers that only images reach

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: tensors are made by `LayerState`."""

    def get_max_length(self) -> int:
        return self.state.length


class PromptLayer(_RowLayer):
    """Writes prompts into rows; these see only the prompts' earlier tokens.

    Args:
        rows: which rows; prompts are padded on the right.
        start: the column of the first token; above 0 if the prompts' earlier tokens are there already.
        view, used: see `LayerState.write_prompt`.
        attention: gen's own attention; None for transformers'.
    """

    is_compileable = False
    indexer_position_ids: Tensor | None = None  # of the tokens before the prompt's

    def __init__(
        self,
        state: LayerState,
        rows: slice,
        start: int,
        view: int | None = None,
        used: int | None = None,
        attention: PromptAttention | None = None,
    ) -> None:
        super().__init__(state)
        self.rows, self.start, self.view, self.used, self.attention = rows, start, view, used, attention
        if start and (indexed := state.columns.get("indexer_keys")) is not None:
            columns = torch.arange(start, device=indexed.device)
            self.indexer_position_ids = columns.expand(3, rows.stop - rows.start, -1)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        keys = mark(self._write("keys", key_states), self.attention)
        return keys, self._write("values", value_states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        return self._write("indexer_keys", indexer_key_states)

    def _write(self, name: str, states: Tensor) -> Tensor:
        return self.state.write_prompt(name, self.rows, self.start, states, self.view, self.used)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.start + query_length if self.view is None else self.view, 0

    def get_seq_length(self) -> int:
        return self.start


class PiecesLayer(_RowLayer):
    """Writes tokens into rows, from a column of each row's own on; the mask says what each token sees."""

    is_compileable = True  # otherwise transformers drops the mask of pieces of one token

    def __init__(self, state: LayerState, pieces: Pieces, attention: PromptAttention | None) -> None:
        super().__init__(state)
        self.pieces, self.attention = pieces, attention

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        keys = mark(self.state.write_pieces("keys", self.pieces, key_states), self.attention)
        return keys, self.state.write_pieces("values", self.pieces, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.pieces.end, 0

    def get_seq_length(self) -> int:
        return self.pieces.end - self.pieces.columns.shape[1]  # only transformers' masks, which gen replaces, use it


class StepLayer(_RowLayer):
    """Writes a step's tokens, each row's at its own columns. Shapes depend only on the place; the host reads none."""

    is_compileable = True  # otherwise transformers drops the mask of steps of one token

    def __init__(self, state: LayerState, place: Place, attention: StepAttention | None) -> None:
        super().__init__(state)
        self.place, self.attention = place, attention

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return mark(self._write("keys", key_states), self.attention), self._write("values", value_states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        if self.attention is not None:
            self.attention.marks.use.indexed = True
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
        return self.state.write_step(name, self.place, states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.place.view, 0

    def get_seq_length(self) -> int:
        return self.place.view - self.place.width  # a number; only transformers' masks, which gen replaces, use it


class RecurrentStepLayer(LinearAttentionLayer):  # type: ignore[misc]
    """The recurrent states of the first n rows, as views of all rows' states: to copy into them changes these."""

    def __init__(self, state: LayerState, count: int) -> None:
        numbers = {number for _, number in state.summaries}
        super().__init__(number_of_states=max(1, len(numbers)))
        _show(self, state, slice(count))


class HybridPromptLayer(LinearAttentionLayer, PromptLayer):  # type: ignore[misc]
    """A layer with keys, values and recurrent states, for a prompt."""

    is_compileable = False

    def __init__(
        self,
        state: LayerState,
        rows: slice,
        start: int,
        view: int | None,
        used: int | None,
        attention: PromptAttention | None,
        number_of_states: int,
    ) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        PromptLayer.__init__(self, state, rows, start, view, used, attention)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class HybridStepLayer(LinearAttentionLayer, StepLayer):  # type: ignore[misc]
    """A layer with keys, values and recurrent states, for a step."""

    def __init__(self, state: LayerState, place: Place, count: int, attention: StepAttention | None) -> None:
        StepLayer.__init__(self, state, place, attention)
        LinearAttentionLayer.__init__(self, number_of_states=max(1, len({number for _, number in state.summaries})))
        _show(self, state, slice(count))


def _show(layer: LinearAttentionCacheLayerMixin, state: LayerState, rows: slice) -> None:
    """Give a layer views of the recurrent states of these rows."""
    for (kind, number), kept in state.summaries.items():
        window = kept[rows]
        if kind == "conv":
            layer.conv_states[number] = window
            layer.conv_kernel_size[number] = window.shape[-1]
            layer.is_conv_states_initialized[number] = True
        else:
            layer.recurrent_states[number] = window
            layer.is_recurrent_states_initialized[number] = True
        layer.has_previous_state[number] = True
        layer.device, layer.dtype = kept.device, kept.dtype


def check_layers(layers: Sequence[object], name: str) -> None:
    """Refuse layers whose states cannot be kept row by row.

    Raises:
        ModelError: gen does not know the kind of a layer.
    """
    for layer in layers:
        kind = type(layer).__name__
        known = isinstance(layer, LinearAttentionCacheLayerMixin) or type(layer).__module__ == StaticLayer.__module__
        if not known:
            raise ModelError(
                f"{name} keeps its tokens in layers of its own ({kind}), which gen cannot keep row by row."
            )


def prompt_cache(
    layers: Sequence[object],
    states: Sequence[LayerState],
    rows: slice,
    start: int,
    view: int | None = None,
    used: int | None = None,
    attention: PromptAttention | None = None,
) -> Cache:
    """The cache for reading prompts into rows; layers that keep nothing stay as they are."""
    made: list[Any] = []
    for layer, state in zip(layers, states, strict=True):
        if isinstance(layer, LinearAttentionCacheLayerMixin) and isinstance(layer, StaticLayer):
            made.append(HybridPromptLayer(state, rows, start, view, used, attention, layer.number_of_states))
        elif isinstance(layer, LinearAttentionCacheLayerMixin):
            made.append(type(layer)(number_of_states=layer.number_of_states))
        else:
            keeps = isinstance(layer, CacheLayerMixin)
            made.append(PromptLayer(state, rows, start, view, used, attention) if keeps else layer)
        if start and isinstance(layer, LinearAttentionCacheLayerMixin):
            _show(made[-1], state, rows)
    return Cache(layers=made)


def pieces_cache(
    layers: Sequence[object], states: Sequence[LayerState], pieces: Sequence[Pieces], attention: PromptAttention | None
) -> Cache:
    """The cache for reading pieces, which are given on each layer's device; no layer has recurrent states."""
    each = zip(layers, states, pieces, strict=True)
    return Cache(
        layers=[
            PiecesLayer(state, on, attention) if isinstance(layer, CacheLayerMixin) else layer
            for layer, state, on in each
        ]
    )


def step_cache(
    layers: Sequence[object],
    states: Sequence[LayerState],
    places: Sequence[Place],
    count: int,
    attention: StepAttention | None,
) -> Cache:
    """The cache for a step of the first `count` rows."""
    made: list[Any] = []
    whole = attention
    for layer, state, place in zip(layers, states, places, strict=True):
        attention = whole and whole.beside(state.read_apart(count))
        if isinstance(layer, LinearAttentionCacheLayerMixin) and isinstance(layer, StaticLayer):
            made.append(HybridStepLayer(state, place, count, attention))
        elif isinstance(layer, LinearAttentionCacheLayerMixin):
            made.append(RecurrentStepLayer(state, count))
        else:
            made.append(StepLayer(state, place, attention) if isinstance(layer, CacheLayerMixin) else layer)
    return Cache(layers=made)
