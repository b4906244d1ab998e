"""Hugging Face transformers models: placement, prefill and decode steps over a static cache."""

import inspect
import sys
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gen.devices import Placement, to_device
from gen.errors import ModelError
from gen.models.placing import embedding_rows, place
from gen.models.recommended import recommended_sampler
from gen.models.wrapping import innermost
from gen.samplers import Sampler
from gen.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

_COUNT_FROM_THE_END = {"gpt_neo"}  # model types whose windows are counted back from the last column of the cache


class TransformersModel:
    """A transformers causal language model behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        hf_model: the transformers model itself, in its wrapper if it has one (torch.compile, PEFT).
    """

    def __init__(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
        self.hf_model = model
        self._parts = tuple(model.modules())
        model = self._inner = innermost(model)
        self._forward_arguments = inspect.signature(model.forward).parameters
        self.tokenizer = Tokenizer(tokenizer)
        self._check_usable()
        self.placement: Placement = place(model)
        config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = getattr(model.get_output_embeddings(), "out_features", config.vocab_size)
        limit = getattr(config, "max_position_embeddings", None) or 0
        self.context_length: int = limit if limit > 0 else sys.maxsize  # some say -1 for none
        eos = model.generation_config.eos_token_id if model.generation_config else None
        self.eos_token_ids: tuple[int, ...] = (eos,) if isinstance(eos, int) else tuple(eos or ())

    @cached_property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.recommended.recommended_sampler`; the generation config is read at the first use."""
        vocab_size = min(self.vocab_size, self.tokenizer.vocab_size)
        return recommended_sampler(self._inner.generation_config, vocab_size, self.eos_token_ids)

    def takes(self, argument: str) -> bool:
        """Whether the model's forward names an argument."""
        return argument in self._forward_arguments

    def prefill(self, token_ids: Tensor, attention_mask: Tensor, new_tokens: int) -> tuple[Tensor, "State"]:
        """See `gen.models.base.Model.prefill`."""
        return self.prefill_at(text_positions(attention_mask), token_ids, attention_mask, new_tokens, {})

    def prefill_at(
        self,
        positions: Tensor,
        token_ids: Tensor,
        attention_mask: Tensor,
        new_tokens: int,
        inputs: Mapping[str, Tensor],
    ) -> tuple[Tensor, "State"]:
        """`prefill` with given positions and further inputs of the model.

        Args:
            positions: (rows, width), or (axes, rows, width) where a position has several axes; int64, on the CPU. A new
                token has the row's highest position + 1 on every axis.
            inputs: keyword arguments of the model's forward, where they belong.
        """
        self._refuse_training()
        width = token_ids.shape[1]
        mask = torch.nn.functional.pad(attention_mask, (0, new_tokens))
        device = self.placement.input_device
        state = State(self, self.new_cache(width + new_tokens), to_device(mask, device), width)
        # without padding the model needs no mask to see that; with one it reads the mask on the host
        unpadded = bool(attention_mask.all()) and self.takes("position_ids")
        # recurrent layers take the mask's last columns, ALiBi reads distances to the end of the cache from it
        prompt_mask = None if unpadded else state.mask[:, :width] if _recurrent(state.cache) else state.mask
        highest = positions.amax(-1, keepdim=True).view(-1, len(token_ids), 1).amax(0)
        state.positions = to_device(highest, device)
        logits = self.forward(
            to_device(token_ids, device), to_device(positions, device), prompt_mask, state.cache, inputs
        )
        return logits, state

    def new_cache(self, length: int) -> "Cache":
        """An empty cache for `length` tokens; each layer's part is made where the layer is, at its first use.

        Layers with a sliding window get a cache of the whole length too, and leave the window to the mask: their own
        kind counts on the host and copies from it at every step.
        """
        from transformers.cache_utils import Cache, DynamicLayer, StaticCache, StaticLayer

        cache = StaticCache(config=self._inner.config, max_cache_len=length)
        if self._inner.config.model_type in _COUNT_FROM_THE_END:
            return Cache(layers=[DynamicLayer() for _ in cache.layers])
        cache.layers = [_without_window(layer, length) for layer in cache.layers]
        for layer, device in zip(cache.layers, self.placement.layer_devices, strict=False):
            if isinstance(layer, StaticLayer):  # starts on the CPU, and would be copied from there
                layer.cumulative_length = torch.zeros((), dtype=torch.int64, device=device)
        return cache

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: "Cache",
        inputs: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> Tensor:
        """The logits (rows, vocab_size) after the last of token_ids (rows, n)."""
        optional = {"position_ids": positions, "logits_to_keep": 1, **inputs}
        output = self.hf_model(
            input_ids=token_ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **{name: value for name, value in optional.items() if self.takes(name)},
        )
        logits: Tensor = output.logits
        return logits[:, -1]

    def _refuse_training(self) -> None:
        if any(part.training for part in self._parts):
            name = type(self._inner).__name__
            raise ModelError(f"{name} is in training mode, where dropout would change the texts; call model.eval().")

    def _check_usable(self) -> None:
        """Refuse what would fail or mislead later."""
        from transformers.cache_utils import StaticCache, StaticLayer

        model, config = self._inner, self._inner.config
        name = type(model).__name__
        if config.is_encoder_decoder or not model.can_generate():
            raise ModelError(f"{name} is no decoder language model; load one with AutoModelForCausalLM.")
        self._refuse_training()
        attention = str(config._attn_implementation)
        if "flash" in attention or "flex" in attention:
            raise ModelError(f"{attention} takes no static cache; load with attn_implementation='sdpa'.")
        try:
            layers = StaticCache(config=config, max_cache_len=1).layers
        except Exception as error:  # configs of kinds that transformers has no static cache for
            raise ModelError(
                f"gen cannot run {name}: it has no static cache ({type(error).__name__}: {error})."
            ) from error
        if not any(isinstance(layer, StaticLayer) for layer in layers):
            raise ModelError(f"{name} has no attention cache; models of recurrent layers alone are not supported.")
        known = embedding_rows(model)
        if self.tokenizer.vocab_size > known:
            raise ModelError(
                f"the tokenizer has ids up to {self.tokenizer.vocab_size - 1}, the embedding of {name} only {known} "
                "rows: use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))."
            )


class State:
    """Cache, mask and positions of one call; see `gen.models.base.DecodeState`."""

    positions: Tensor  # (rows, 1) int64: of each row's newest token

    def __init__(self, model: TransformersModel, cache: "Cache", mask: Tensor, width: int) -> None:
        self._model = model
        self.cache = cache
        self.mask = mask  # (rows, prompt and new tokens) bool: which keys may be seen
        self._column = torch.full((1,), width, device=mask.device)  # of the mask and cache: where the next token goes

    def decode_step(self, token_ids: Tensor) -> Tensor:
        self.mask.index_fill_(1, self._column, True)
        self._column.add_(1)
        # rows that have ended go on until all have: keep them inside of a learned position table
        self.positions.add_(1).clamp_(max=self._model.context_length - 1)
        token_ids = token_ids.to(self.mask.device, non_blocking=True)
        return self._model.forward(token_ids, self.positions, self.mask, self.cache)

    def reorder(self, ancestors: Tensor) -> None:
        for layer in self.cache.layers:
            states = [part for part in vars(layer).values() if isinstance(part, dict)]
            for holder in (vars(layer), *states):
                for name, part in holder.items():
                    if isinstance(part, Tensor) and part.dim() > 1:  # the others count tokens
                        # of all that transformers keeps in a cache, these alone have the rows in another place
                        holder[name] = _reordered(part, ancestors, dim=1 if name == "indexer_position_ids" else 0)
        self.mask = _reordered(self.mask, ancestors)
        self.positions = _reordered(self.positions, ancestors)


def text_positions(attention_mask: Tensor) -> Tensor:
    """Each token's place in its row (rows, width), int64; 0 at padding on the left."""
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)


def _without_window(layer: Any, length: int) -> Any:
    """The layer's cache, or one of the whole length in the place of one for a window."""
    from transformers.cache_utils import (
        LinearAttentionAndStaticFullAttentionLayer,
        LinearAttentionAndStaticSlidingWindowAttentionLayer,
        StaticLayer,
        StaticSlidingWindowLayer,
    )

    if type(layer) is StaticSlidingWindowLayer:
        return StaticLayer(max_cache_len=length)
    if type(layer) is LinearAttentionAndStaticSlidingWindowAttentionLayer:
        return LinearAttentionAndStaticFullAttentionLayer(length, number_of_states=layer.number_of_states)
    return layer


def _recurrent(cache: "Cache") -> bool:
    """Whether some layers keep a state instead of keys and values, or beside them."""
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


def _reordered(tensor: Tensor, ancestors: Tensor, dim: int = 0) -> Tensor:
    """Rows by ancestor; in the same memory where the number of rows stays, so that captured steps still find it."""
    rows = tensor.index_select(dim, ancestors.to(tensor.device, non_blocking=True))
    expanded = 0 in tensor.stride()  # one number stands for several: nothing can be written there
    return rows if rows.shape != tensor.shape or expanded else tensor.copy_(rows)
