"""Hugging Face transformers models: loading, placement, prefill and decode steps over a static cache."""

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gen.devices import Placement, resolve_device, to_device
from gen.errors import ArgumentError, ModelError
from gen.models.placing import place
from gen.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, StaticCache

DEMO = Path(__file__).parent / "demo"


def load(
    path_or_hub_id: str | Path,
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> "TransformersModel":
    """Load a causal language model in Hugging Face format onto the device that is asked for.

    Args:
        path_or_hub_id: a directory, a Hub id such as "organisation/name", or "demo", the small model of this package.
        device: where the whole model goes; None is the caller's current CUDA device where there is one, else the CPU.
        dtype: of the weights, as "bfloat16" or torch.bfloat16; None is the checkpoint's (float32 for "demo").
        device_map: how accelerate spreads the model over several devices, as "auto" or a dict; instead of `device`.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: whether code that comes with the model may run.
        attn_implementation: "sdpa" or "eager"; None is the model's own choice.
    Raises:
        DeviceError: the device does not exist.
        ModelError: there is no such model, or it cannot be used (see `from_transformers`).
        ArgumentError: arguments at odds with each other, or an unknown dtype.
    """
    if device is not None and device_map is not None:
        raise ArgumentError("give device for one device or device_map for several, not both.")
    target = resolve_device(device) if device_map is None else None
    source = _find(path_or_hub_id)
    weights_dtype = torch.float32 if dtype is None and source == str(DEMO) else _read_dtype(dtype)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=weights_dtype,
            device_map=device_map if target is None else {"": target},
            attn_implementation=attn_implementation,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # configs, weights, remote code and hubs fail with errors of every kind
        raise ModelError(f"cannot load {str(path_or_hub_id)!r}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        names = ", ".join(missing[:3])
        raise ModelError(f"{str(path_or_hub_id)!r} lacks {len(missing)} weights of a language model, such as {names}.")
    if (hook := getattr(model, "_hf_hook", None)) is not None:
        hook.io_same_device = False  # leave sharded logits where the head is: sampling runs there
    return TransformersModel(model.eval(), tokenizer)


def from_transformers(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> "TransformersModel":
    """Use a model and tokenizer that are loaded already; neither is changed or moved.

    Raises:
        ModelError: it is not a decoder language model, is in training mode, cannot use a static cache, or its
            tokenizer has ids that the embedding lacks.
    """
    return TransformersModel(model, tokenizer)


class TransformersModel:
    """A transformers causal language model behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        hf_model: the transformers model itself.
    """

    def __init__(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
        self.hf_model = model
        self._forward_arguments = inspect.signature(model.forward).parameters
        self.tokenizer = Tokenizer(tokenizer)
        self._check_usable()
        self.placement: Placement = place(model)
        self.vocab_size: int = getattr(model.get_output_embeddings(), "out_features", model.config.vocab_size)
        config = model.config.get_text_config(decoder=True)
        self.context_length: int = getattr(config, "max_position_embeddings", None) or sys.maxsize
        eos = model.generation_config.eos_token_id if model.generation_config else None
        self.eos_token_ids: tuple[int, ...] = (eos,) if isinstance(eos, int) else tuple(eos or ())

    def prefill(self, token_ids: Tensor, attention_mask: Tensor, new_tokens: int) -> tuple[Tensor, "_State"]:
        """See `gen.models.base.Model.prefill`."""
        width = token_ids.shape[1]
        mask = torch.nn.functional.pad(attention_mask, (0, new_tokens))
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        device = self.placement.input_device
        state = _State(self, self.new_cache(width + new_tokens), to_device(mask, device), width)
        # without padding the model needs no mask to see that; with one it reads the mask on the host
        unpadded = bool(attention_mask.all()) and "position_ids" in self._forward_arguments
        prompt_mask = None if unpadded else state.mask
        logits = self.forward(to_device(token_ids, device), to_device(positions, device), prompt_mask, state.cache)
        state.positions = to_device(positions[:, -1:], device)
        return logits, state

    def new_cache(self, length: int) -> "StaticCache":
        """An empty cache for `length` tokens; each layer's part is made where the layer is, at its first use.

        Layers with a sliding window get a cache of the whole length too, and leave the window to the mask: their own
        kind counts on the host and copies from it at every step.
        """
        from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer

        cache = StaticCache(config=self.hf_model.config, max_cache_len=length)
        cache.layers = [
            StaticLayer(max_cache_len=length) if type(layer) is StaticSlidingWindowLayer else layer
            for layer in cache.layers
        ]
        for layer, device in zip(cache.layers, self.placement.layer_devices, strict=False):
            if isinstance(layer, StaticLayer):  # starts on the CPU, and would be copied from there
                layer.cumulative_length = torch.zeros((), dtype=torch.int64, device=device)
        return cache

    def forward(self, token_ids: Tensor, positions: Tensor, mask: Tensor | None, cache: "StaticCache") -> Tensor:
        """The logits (rows, vocab_size) after the last of token_ids (rows, n)."""
        optional = {"position_ids": positions, "logits_to_keep": 1}
        output = self.hf_model(
            input_ids=token_ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **{name: value for name, value in optional.items() if name in self._forward_arguments},
        )
        logits: Tensor = output.logits
        return logits[:, -1]

    def _check_usable(self) -> None:
        """Refuse what would fail or mislead later."""
        from transformers.cache_utils import StaticCache, StaticLayer

        model, config = self.hf_model, self.hf_model.config
        name = type(model).__name__
        if config.is_encoder_decoder or not model.can_generate():
            raise ModelError(f"{name} is no decoder language model; load one with AutoModelForCausalLM.")
        if model.training:
            raise ModelError(f"{name} is in training mode, where dropout would change the texts; call model.eval().")
        attention = str(config._attn_implementation)
        if "flash" in attention or "flex" in attention:
            raise ModelError(f"{attention} takes no static cache; load with attn_implementation='sdpa'.")
        if not any(isinstance(layer, StaticLayer) for layer in StaticCache(config=config, max_cache_len=1).layers):
            raise ModelError(f"{name} has no attention cache; models of recurrent layers alone are not supported.")
        known = model.get_input_embeddings().weight.shape[0]
        if self.tokenizer.vocab_size > known:
            raise ModelError(
                f"the tokenizer has ids up to {self.tokenizer.vocab_size - 1}, the embedding of {name} only {known} "
                "rows: use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))."
            )


class _State:
    """Cache, mask and positions of one call; see `gen.models.base.DecodeState`."""

    positions: Tensor  # (rows, 1) int64: of each row's newest token

    def __init__(self, model: TransformersModel, cache: "StaticCache", mask: Tensor, width: int) -> None:
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
        from transformers.cache_utils import LinearAttentionCacheLayerMixin, StaticLayer

        for layer in self.cache.layers:
            if isinstance(layer, StaticLayer) and layer.is_initialized:
                layer.keys = _reordered(layer.keys, ancestors)
                layer.values = _reordered(layer.values, ancestors)
            if isinstance(layer, LinearAttentionCacheLayerMixin):
                LinearAttentionCacheLayerMixin.reorder_cache(layer, ancestors)
        self.mask = _reordered(self.mask, ancestors)
        self.positions = _reordered(self.positions, ancestors)


def _reordered(tensor: Tensor, ancestors: Tensor) -> Tensor:
    """Rows by ancestor; in the same memory where the number of rows stays, so that captured steps still find it."""
    rows = tensor.index_select(0, ancestors.to(tensor.device, non_blocking=True))
    return tensor.copy_(rows) if len(rows) == len(tensor) else rows


def _find(path_or_hub_id: str | Path) -> str:
    """A directory, or a name that the Hub may know."""
    if path_or_hub_id == "demo":
        return str(DEMO)
    path = Path(path_or_hub_id).expanduser()
    if path.is_dir():
        return str(path)
    if isinstance(path_or_hub_id, str) and re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path_or_hub_id):
        return path_or_hub_id
    raise ModelError(f"no directory {str(path)!r}; give one, a Hub id as 'organisation/name', or 'demo'.")


def _read_dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    """A floating dtype, or "auto" for the checkpoint's."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None:
        return "auto"
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ArgumentError(f"dtype must be a floating type such as 'float32' or 'bfloat16', got {dtype!r}")
    return found
