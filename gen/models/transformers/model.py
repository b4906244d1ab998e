"""Hugging Face transformers models: placement, prefill and decode steps over a static cache."""

import inspect
import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import Tensor

from gen.devices import Placement, describe
from gen.errors import ArgumentError, ModelError, show
from gen.models.base import Model, Rows
from gen.models.generation_config import eos_of_config, read_eos, recommended_sampler
from gen.models.idle_rows import Idle
from gen.models.rotary import Rotary
from gen.models.transformers.placement import dtypes_of, embedding_rows, read_placement, runs_on
from gen.models.transformers.snapshot import Snapshot
from gen.models.transformers.training import acts_in_training
from gen.models.transformers.wrappers import innermost
from gen.runtime.isolation import settings_of_the_process
from gen.samplers import Sampler
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import Cache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

    from gen.models.transformers.attention import Use

    Mask = Tensor | dict[str, Tensor | None] | None

# model types that count windows, or distances between tokens, back from the last column of the cache
_COUNT_FROM_THE_END = {"gpt_neo", "inkling2_text"}


logger = logging.getLogger("gen")


class TransformersModel(Model):
    """A transformers causal language model behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        hf_model: the transformers model itself, in its wrapper if it has one (torch.compile, PEFT).
        pads_left: whether prompts read together are padded on the left, so that all rows end in one column.
        attention: how gen's own attention was used; None if the model lets no other function in.
        replay: whether the user vouches for code of unknown packages; see `gen.from_transformers`.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        context_length: int | None = None,
        *,
        own: bool = False,
    ) -> None:
        self.hf_model = model
        _decompress_(innermost(model))
        modules = [*model.modules()]
        self._known = WeakSet(modules)
        self._compiled = any("_orig_mod" in one._modules for one in modules)  # torch.compile leaves out gen's attention
        model = self._inner = innermost(model)
        self._forward_arguments = _arguments(model)
        self.pads_left = model.config.model_type in _COUNT_FROM_THE_END
        self.tokenizer = Tokenizer(tokenizer)
        self._refuse_training(modules)
        self._check_usable()
        self._placement = read_placement(model)
        self._stored = model.dtype
        self.idle: Idle[object] = Idle()
        config = self.decoder_config = model.config.get_text_config(decoder=True)
        # with ALiBi, the model needs a mask of (rows, columns), and takes no other shape
        self.takes_flat_masks = bool(getattr(config, "alibi", not self.takes("position_ids")))
        self.attention = self._own_attention()
        self.replay = self._told = False
        self._step_rows: dict[tuple[object, ...], tuple[Snapshot | None, int]] = {}
        self.vocab_size: int = getattr(model.get_output_embeddings(), "out_features", config.vocab_size)
        self._rotary = Rotary(model, config, context_length, own=own)
        self.context_length: int = self._rotary.context.length
        self._recommended: tuple[object, Sampler] | None = None  # and the settings that it comes from
        # some checkpoints name it in config.json alone
        self._eos_of_config = None if self._stated_eos is not None else eos_of_config(config, model.config)

    def __repr__(self) -> str:
        """What it is, where, and in which dtype."""
        return describe(type(self._inner).__name__, self._inner.name_or_path, self.placement)

    @property
    def placement(self) -> Placement:  # type: ignore[override]
        """Where the model's parts are; its dtype follows the model's, which `hf_model.half()` changes."""
        known, stored = self._placement, self._inner.dtype
        if stored != self._stored or known.packed_dtype is not None:
            self._stored, self._placement = stored, replace(known, **dtypes_of(self._inner))
            if self._placement != known:
                self.idle.token_bytes = None
        return self._placement

    @property
    def eos_token_ids(self) -> tuple[int, ...]:  # type: ignore[override]
        """The ids that end a text, as the generation config names them now; if it named none at first, those of
        config.json."""
        return read_eos(self._eos_of_config if self._stated_eos is None else self._stated_eos)

    @property
    def _stated_eos(self) -> object:
        return getattr(self._generation_config, "eos_token_id", None)

    @property
    def _generation_config(self) -> "GenerationConfig | None":
        return getattr(self.hf_model, "generation_config", None)  # of a wrapper, if it has its own

    @property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.generation_config.recommended_sampler`; the generation config is read at each use."""
        config, ends = self._generation_config, self.eos_token_ids
        stated = config and vars(config), ends
        if self._recommended is None or self._recommended[0] != stated:
            vocab_size = min(self.vocab_size, self.tokenizer.vocab_size)
            self._recommended = deepcopy(stated), recommended_sampler(config, vocab_size, ends)
        return self._recommended[1]

    @property
    def told_attention(self) -> str:
        """Which attention has run, gen's own or the model's, and why."""
        use = self.attention
        if use is None:
            return f"transformers' ({self.decoder_config._attn_implementation})"
        parts = ["gen's own"] if use.own else []
        if use.reasons or not use.own:
            parts.append(f"transformers' ({', '.join(sorted(use.reasons)) or 'not asked'})")
        return " and ".join(parts)

    @property
    def parts_rows(self) -> bool:
        """See `gen.models.base.Model.parts_rows`: whether only gen's own attention has run, and will."""
        return self.attention is not None and self.attention.alone and not self._compiled

    def takes(self, argument: str) -> bool:
        """Whether the model's forward has this argument, or passes it on to its decoder, which has it."""
        return argument in self._forward_arguments

    def find_step_rows(self) -> int:
        """See `gen.models.base.Model.find_step_rows`; found once for each number of threads, dtype and settings of
        torch, and anew when the model has changed."""
        from gen.models.transformers.exactness import find_step_rows

        key, found = (torch.get_num_threads(), settings_of_the_process(), self.placement.dtype), self.check()
        if key not in self._step_rows or self._step_rows[key][0] != found:
            self._step_rows[key] = found, find_step_rows(self)
        return self._step_rows[key][1]

    @cached_property
    def reads_on(self) -> bool:
        """Whether its forward of several tokens goes on from recurrent states; not all architectures do."""
        from gen.models.transformers.probing import reads_on

        return reads_on(self)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write weights, config, generation config, tokenizer and chat template into a folder, as a checkpoint that
        `gen.load` and transformers read. Weights have the dtype that they have here; packed ones that of their
        checkpoint. What else was given to `gen.load`, as `context_length`, is no part of it: give it again.

        Raises:
            ArgumentError: it is no folder.
            ModelError: the model has an adapter beside its weights, or transformers cannot save it.
            OSError: the folder cannot be written.
        """
        if not isinstance(folder, str | PathLike) or not str(folder):
            raise ArgumentError(f"save writes into a folder, got {show(folder)}")
        if Path(folder).is_file():
            raise ArgumentError(f"save writes into a folder, and {folder} is a file.")
        packages = {type(one).__module__.partition(".")[0] for one in self._inner.modules()}
        if "peft" in packages:
            raise ModelError(
                "the model has an adapter of PEFT beside its weights, and a checkpoint would lack it; merge it, as "
                "model.hf_model.merge_and_unload(), and save gen.from_transformers of the result, or save the adapter "
                "alone, as model.hf_model.save_pretrained(folder)."
            )
        if "gptqmodel" in packages:
            raise ModelError(
                "the model has layers of gptqmodel, whose weights are not as they were in the checkpoint, and "
                "transformers would write them as if they were; copy the checkpoint's folder instead."
            )
        conversions = getattr(self._inner, "_weight_conversions", None) or ()
        operations = [one for conversion in conversions for one in getattr(conversion, "operations", ())]
        # the weights of a checkpoint that was dequantised are plain, and the config says so: do not quantise them again
        plain = not hasattr(self._inner, "hf_quantizer") and any(hasattr(one, "hf_quantizer") for one in operations)
        try:
            self._inner.save_pretrained(folder, save_original_format=not plain)
        except (ValueError, NotImplementedError, RuntimeError) as error:  # the last one for weights without memory
            raise ModelError(f"transformers cannot save the model: {error}") from error
        self.tokenizer.save(folder)

    def check_usable(self) -> None:
        """Refuse what a call can find out at once: training mode, another attention, device or vocabulary, an adapter
        that `innermost` refuses; `check` finds all changes.

        Raises:
            ModelError: the model has changed so that gen can no longer run it.
        """
        self._refuse_training([self._inner])
        self._refuse_changes()

    def check(self) -> Snapshot | None:
        """See `gen.models.base.Model.check`."""
        self._rotary.check()
        from gen.models.transformers.attention import called_by_name

        found = Snapshot(self.hf_model, called_by_name(self.decoder_config), vouched=self.replay)
        self._refuse_training(found.modules)
        self._refuse_changes()
        if found.unseen and not self._told:
            self._told = True
            logger.info(
                "steps of %s are not recorded, and nothing that was read is kept: its forwards %s. If nothing changes "
                "that they read elsewhere, give replay=True to gen.load or gen.from_transformers.",
                type(self._inner).__name__,
                found.unseen,
            )
        # a recorded step would run no hooks, and miss weights that come and go
        unknown = found.unseen or found.hooked or self._placement.offloaded
        return None if unknown else found

    def version(self, checked: Snapshot) -> tuple[int, ...]:
        """See `gen.models.base.Model.version`."""
        return checked.versions(self._rotary.rewritten)

    def new_rows(self, count: int, length: int) -> Rows:
        """See `gen.models.base.Model.new_rows`."""
        from gen.models.transformers.aligned_rows import AlignedRows
        from gen.models.transformers.rows import TransformersRows

        return (AlignedRows if self.pads_left else TransformersRows)(self, count, length)

    def prompt_inputs(self, token_ids: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The positions of prompts, from 0, and further inputs of the model's forward on their devices.

        Args:
            token_ids: (rows, width), int64, on the CPU.
            inputs: the inputs of the images of the one prompt, if it has any.
        Returns:
            (rows, width), or (axes, rows, width) if a position has several axes; int64, on the CPU.
        """
        rows, width = token_ids.shape
        return torch.arange(width, device="cpu").expand(rows, -1), {}

    def forward(self, token_ids: Tensor, positions: Tensor, mask: "Mask", cache: "Cache") -> Tensor:
        """The logits (rows, vocab_size) after the last of token_ids (rows, n)."""
        return self.forward_all(token_ids, positions, mask, cache, {}, logits_to_keep=1)[:, -1]

    def forward_all(
        self,
        token_ids: Tensor,
        positions: Tensor,
        mask: "Mask",
        cache: "Cache",
        inputs: Mapping[str, Tensor],
        logits_to_keep: int | Tensor,
    ) -> Tensor:
        """The logits (rows, places, vocab_size) after the last places of token_ids (rows, n), or after those given."""
        optional = {"position_ids": positions, "logits_to_keep": logits_to_keep, **inputs}
        kept = "cache" if self.takes("cache") else "past_key_values"  # its name before transformers 5.24
        logits: Tensor = self.hf_model(
            input_ids=token_ids,
            attention_mask=mask,
            use_cache=True,
            return_dict=True,
            **{kept: cache},
            **{name: value for name, value in optional.items() if self.takes(name)},
        ).logits
        return logits

    def _own_attention(self) -> "Use | None":
        from gen.models.transformers.attention import Use, install, may_serve

        if self.pads_left or self.takes_flat_masks or not may_serve(self._inner):
            return None
        install()
        return Use()

    def _refuse_training(self, modules: Iterable[torch.nn.Module]) -> None:
        """Refuse a model in training mode if that changes what it computes."""
        if what := acts_in_training(modules, self._inner, self._known):
            name = type(self._inner).__name__
            raise ModelError(f"{name} is in training mode, where {what} would change the texts; call model.eval().")

    def _refuse_attention(self) -> None:
        """Refuse kinds of attention that take no static cache; `set_attn_implementation` may choose one at any time."""
        attention = str(self._inner.config._attn_implementation)
        if any(kind in attention for kind in ("flash", "flex", "paged")):
            raise ModelError(f"{attention} takes no static cache; load with attn_implementation='sdpa'.")

    def _refuse_changes(self) -> None:
        """Refuse another attention, device or vocabulary than the model had when gen took it over."""
        self._refuse_attention()
        model, name = innermost(self.hf_model), type(self._inner).__name__
        here, taken = runs_on(model.get_input_embeddings()), self._placement.input_device
        if here != taken:
            raise ModelError(
                f"{name} was on {taken} when you gave it to gen, and is on {here} now; move it back, or "
                "call gen.from_transformers(model, tokenizer) again."
            )
        if (rows := embedding_rows(model)) != self._embedded:
            raise ModelError(
                f"the embedding of {name} had {self._embedded} rows when you gave it to gen, and has {rows} now; call "
                "gen.from_transformers(model, tokenizer) again."
            )

    def _check_usable(self) -> None:
        """Refuse what would fail or mislead later."""
        from transformers.cache_utils import StaticCache, StaticLayer

        model, config = self._inner, self._inner.config
        name = type(model).__name__
        if config.is_encoder_decoder or not model.can_generate():
            raise ModelError(f"{name} is no decoder language model; load one with AutoModelForCausalLM.")
        if any(type(one).__module__.startswith("exllamav3.") for one in self._known):
            raise ModelError(f"{name} has layers of exllamav3; load its checkpoint with gen.from_exllamav3.")
        if any(
            "recurrent_states" in vars(one) for one in self._known
        ):  # the probe may find the effect small in bfloat16
            raise ModelError(f"{name} keeps its recurrent states in modules, where the rows of a batch would mix them.")
        self._refuse_attention()
        try:
            layers = StaticCache(config=config, max_cache_len=1).layers
        except Exception as error:  # configs of kinds that transformers has no static cache for
            raise ModelError(
                f"gen cannot run {name}: it has no static cache ({type(error).__name__}: {error})."
            ) from error
        if not any(isinstance(layer, StaticLayer) for layer in layers):
            raise ModelError(f"{name} has no attention cache; models of recurrent layers alone are not supported.")
        self._embedded = known = embedding_rows(model)
        if self.tokenizer.vocab_size > known:
            raise ModelError(
                f"the tokenizer has ids up to {self.tokenizer.vocab_size - 1}, the embedding of {name} only {known} "
                "rows: use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))."
            )


def _decompress_(model: "PreTrainedModel") -> None:
    """Let compressed-tensors unpack its weights, as a hook of the first forward otherwise does: in the middle of the
    probe, which puts back what a forward leaves behind."""
    handle = getattr(model, "ct_decompress_hook", None)
    if handle is None:
        return
    if len({*getattr(model, "hf_device_map", {}).values()}) > 1:  # it takes away the hooks that move states
        raise ModelError(
            f"{type(model).__name__} has weights that compressed-tensors cannot unpack on several devices; give one "
            "device, or quantization_config=transformers.CompressedTensorsConfig(dequantize=True)."
        )
    model._forward_pre_hooks[handle.id](model, ())


def _arguments(model: "PreTrainedModel") -> frozenset[str]:
    """The names of a forward's arguments; of those that it passes on to its decoder, only positions and cache."""
    parameters = inspect.signature(model.forward).parameters
    hands_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    decoder = model.get_decoder() if hands_on and hasattr(model, "get_decoder") else None
    inner = inspect.signature(decoder.forward).parameters if isinstance(decoder, torch.nn.Module) else {}
    return frozenset(parameters) | ({"position_ids", "cache"} & inner.keys())
