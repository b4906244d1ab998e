"""A model of exllamav2 as the decode loop sees it: placement, rows, LoRAs, and turns on exllamav2's streams."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gen.devices import Placement, describe
from gen.errors import ArgumentError, DeviceError
from gen.models.exllama.checkpoint import Checkpoint
from gen.models.exllama.exllamav2_lora import read_lora
from gen.models.exllama.exllamav2_rows import Exllamav2Rows
from gen.models.exllama.importing import import_exllama
from gen.models.exllama.turns import Turns
from gen.models.idle_rows import Idle
from gen.samplers import Sampler

CACHES = {"fp16": "ExLlamaV2Cache", "q8": "ExLlamaV2Cache_Q8", "q6": "ExLlamaV2Cache_Q6", "q4": "ExLlamaV2Cache_Q4"}
_OTHERS = {"model", "submodules", "archparams"}  # attributes of a module that are not its weights


def _streams(devices: object) -> Sequence[torch.cuda.Stream]:
    """exllamav2's own streams: one for each GPU that any of its models uses; each forward makes them current."""
    streams: dict[int, torch.cuda.Stream] = sys.modules["exllamav2.device"].global_streams
    return tuple(streams.values())


TURNS = Turns(_streams)  # of all its models: they share streams, and each has one scratch memory


class Exllamav2Model:
    """A model of exllamav2 behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        exl2_model: the ExLlamaV2 itself.
        params_class: the class of the parameters that exllamav2 gives to each layer's attention.
        loras: the LoRAs that each forward gets; None for none.
        window: the shortest sliding window of a layer; exllamav2 reads longer prompts wrong. None without windows.
    """

    def __init__(self, model: Any, checkpoint: Checkpoint, cache_class: Any, context_length: int) -> None:
        config = model.config
        self.exl2_model = model
        self.params_class: Any = import_exllama("exllamav2.attn_params").Params
        self.loras: list[Any] | None = None
        self.tokenizer = checkpoint.tokenizer
        self.vocab_size: int = config.vocab_size  # its logits are padded to a multiple of 32
        self.eos_token_ids = checkpoint.eos_token_ids
        self.idle: Idle[object] = Idle()
        self._checkpoint, self._cache_class = checkpoint, cache_class
        self.context_length = context_length
        windows = [layer.sliding_window for layer in model.modules if getattr(layer, "sliding_window", 0)]
        self.window: int | None = min(windows, default=None)
        if checkpoint.window is not None and not windows:  # exllamav2 attends to everything, not to a window
            self.context_length = min(self.context_length, checkpoint.window)
        layers = [torch.device(model.cache_map[index]) for index in range(config.num_hidden_layers)]
        self.placement = Placement(
            input_device=torch.device(model.modules[0].device()),
            logits_device=torch.device(model.modules[-1].device()),
            layer_devices=tuple(layers),
            dtype=torch.float16,
        )
        self._check_places()

    def __repr__(self) -> str:
        """What it is, where, and in which dtype."""
        return describe("exllamav2", self._checkpoint.folder, self.placement)

    @cached_property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.generation_config.recommended_sampler`."""
        return self._checkpoint.recommended_sampler(self.vocab_size)

    def release(self) -> None:
        """Give back the memory that the model keeps from call to call."""
        self.idle.clear()

    def load_lora(self, lora: str | Path | None) -> None:
        """Use a LoRA from now on, instead of the one before; None for none.

        Raises:
            ModelError: see `gen.models.exllama.exllamav2_lora.read_lora`; what was used before stays in use.
        """
        with self.turn():
            loaded = None if lora is None else [read_lora(self.exl2_model, lora)]
            for old in self.loras or ():
                old.unload()
        self.loras = loaded
        self._check_places()

    def turn(self) -> AbstractContextManager[None]:
        """A block in which nobody else launches on exllamav2; see `gen.models.exllama.turns.Turns`."""
        return TURNS(self.placement.logits_device, [one for one in self.placement.devices if one.type == "cuda"])

    def new_rows(self, count: int, length: int) -> Exllamav2Rows:
        """See `gen.models.base.Model.new_rows`.

        Raises:
            ArgumentError: more rows than there is scratch memory for.
        """
        most = self.exl2_model.config.max_input_len * self.exl2_model.config.max_batch_size
        if count > most:
            raise ArgumentError(
                f"exllamav2 has scratch memory for {most} rows, got {count}; load with max_batch_size=."
            )
        return Exllamav2Rows(self, count, length)

    def new_cache(self, rows: int, length: int) -> Any:
        """A cache of exllamav2 for this many rows of at least this many tokens."""
        block = self.cache_block
        return self._cache_class(self.exl2_model, batch_size=rows, max_seq_len=-(-length // block) * block)

    @cached_property
    def cache_block(self) -> int:
        """How many tokens are quantised together: quantised caches write whole blocks, even beyond their end."""
        if self._cache_class.__name__ == CACHES["fp16"]:
            return 1
        config = self.exl2_model.config
        return 512 // gcd(512, config.num_key_value_heads * config.head_dim)

    def _check_places(self) -> None:
        """Raise a DeviceError unless every weight is where it is used."""
        for name, tensor, device in self.weights():
            if tensor.device != device:
                raise DeviceError(f"exllamav2 was to put {name} on {device}, it is on {tensor.device}.")

    def weights(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """Every tensor that the model computes with: a name, the tensor, and the device that its module was given."""
        for module in self.exl2_model.modules:
            for part in (module, *module.submodules):
                device = torch.device(part.device())
                for name, value in vars(part).items():
                    if name not in _OTHERS:
                        for tensor in _tensors(value):
                            yield f"{part.key}.{name}", tensor, device
        for context in self.exl2_model.device_context:
            if context is not None:
                for name in ("sin", "cos", "scratch"):
                    for tensor in _tensors(getattr(context, name, None)):
                        yield f"the table {name}", tensor, torch.device("cuda", context.device_idx)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in an attribute of one of exllamav2's modules."""
    if isinstance(value, Tensor):
        if not value.is_meta:  # a placeholder
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
