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
from gen.models.transformers.layer_state import LayerState, Place


class RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """Writes the tokens of a forward into rows. Shapes depend only on the place, and the host reads no tensor.

    Args:
        attention: gen's own attention; None for transformers'.
    """

    is_sliding = False
    indexer_position_ids: Tensor | None = None

    def __init__(self, state: LayerState, place: Place, attention: StepAttention | PromptAttention | None) -> None:
        super().__init__()
        # `is_initialized` stays false: models ask for it in layers that only images reach
        self.state, self.place, self.attention = state, place, attention
        known = place.start if place.columns is None else place.view
        if known and (indexed := state.columns.get("indexer_keys")) is not None:  # a column's position is its number
            columns = torch.arange(known, device=indexed.device)
            self.indexer_position_ids = columns.expand(3, len(range(state.count)[place.rows]), -1)

    @property
    def is_compileable(self) -> bool:
        """Whether transformers keeps the mask of forwards of one token."""
        return self.place.columns is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: tensors are made by `LayerState`."""

    def get_max_length(self) -> int:
        return self.state.length

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the tokens' keys and values; see transformers.

        Raises:
            ModelError: there are keys of something else than the tokens, as of images in Llama 3.2 Vision and GIT.
        """
        if key_states.shape[-2] != self.place.width:
            raise ModelError(
                "the model keeps keys beside those of its tokens, as of an image, which gen does not. Use "
                "transformers' generate; a model that reads images takes prompts without them."
            )
        keys, values = (
            self.state.write(name, self.place, states)
            for name, states in (("keys", key_states), ("values", value_states))
        )
        return mark(keys, values, self.attention)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        if self.attention is not None:
            self.attention.marks.use.alters = True
        return self.state.write("indexer_keys", self.place, indexer_key_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.place.view or query_length, 0

    def get_seq_length(self) -> int:
        return self.place.before


class HybridLayer(LinearAttentionLayer, RowLayer):  # type: ignore[misc]
    """A layer with keys, values and recurrent states."""

    is_compileable = RowLayer.is_compileable

    def __init__(
        self,
        state: LayerState,
        place: Place,
        attention: StepAttention | PromptAttention | None,
        number_of_states: int,
    ) -> None:
        RowLayer.__init__(self, state, place, attention)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


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


def cache_of(
    layers: Sequence[Any],
    states: Sequence[LayerState],
    places: Sequence[Place],
    attention: StepAttention | PromptAttention | None,
) -> Cache:
    """The cache of a forward, with the place on each layer's device; layers that keep nothing stay as they are."""
    made = []
    for layer, state, place in zip(layers, states, places, strict=True):
        recurrent = isinstance(layer, LinearAttentionCacheLayerMixin)
        its = attention and attention.beside(state.apart_in(place))
        if recurrent and isinstance(layer, StaticLayer):
            made.append(HybridLayer(state, place, its, layer.number_of_states))
        elif recurrent:
            made.append(type(layer)(number_of_states=layer.number_of_states))
        else:
            made.append(RowLayer(state, place, its) if isinstance(layer, CacheLayerMixin) else layer)
        if recurrent and place.before:
            _show(made[-1], state, place.rows)
    return Cache(layers=made)
