"""exllamav2: EXL2, GPTQ and FP16 checkpoints on its kernels, the whole model on the GPU that is asked for.

Only its model, its caches and its LoRAs are used: ExLlamaV2Config, ExLlamaV2, ExLlamaV2Cache*, ExLlamaV2Lora, forward.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from functools import cached_property, partial
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gen.arguments import check_flag, read_whole
from gen.devices import Placement, resolve_device
from gen.errors import ArgumentError, DeviceError, ModelError, check_number, show, show_path
from gen.isolation import isolated
from gen.models.exllama.exllamav2_config import new_config
from gen.models.exllama.exllamav2_rows import Exllamav2Rows
from gen.models.exllama.folder import Checkpoint, read_checkpoint
from gen.models.exllama.importing import import_exllama
from gen.models.exllama.turns import Turns
from gen.models.idle import Idle
from gen.samplers import Sampler

CACHES = {"fp16": "ExLlamaV2Cache", "q8": "ExLlamaV2Cache_Q8", "q6": "ExLlamaV2Cache_Q6", "q4": "ExLlamaV2Cache_Q4"}
_ALL = 1e6  # gigabytes: more than any model needs
_OTHERS = {"model", "submodules", "archparams"}  # attributes of a module that are not its weights


def _streams(devices: object) -> Sequence[torch.cuda.Stream]:
    """exllamav2's own: one for each GPU that any of its models uses, which each forward makes current."""
    streams: dict[int, torch.cuda.Stream] = sys.modules["exllamav2.device"].global_streams
    return tuple(streams.values())


TURNS = Turns(_streams)  # of all its models: they share streams, and each has one scratch memory


@isolated
def from_exllamav2(
    path: str | Path,
    *,
    device: str | int | torch.device | None = None,
    gpu_split: Sequence[float] | None = None,
    max_seq_len: int | None = None,
    max_batch_size: int = 1,
    cache: str = "fp16",
    lora: str | Path | None = None,
    cpu_embedding: bool = False,
) -> "Exllamav2Model":
    """Load a checkpoint with exllamav2 0.3.2: EXL2, GPTQ, or plain weights, which become float16.

    Needs `pip install 'gen-torch[exllamav2]'`, CUDA and nvcc: the first import on a machine compiles it.

    Args:
        path: a folder with config.json, a tokenizer and weights in safetensors format.
        device: where the whole model goes, embedding and caches with it; None is the current CUDA device.
        gpu_split: instead of a device, gigabytes for the weights on each GPU, in order; 0 leaves a GPU out.
        max_seq_len: how many tokens a text may have; None for the checkpoint's context.
        max_batch_size: for how many rows of 2048 tokens there is scratch memory. Prompts of larger batches are read in
            more pieces; a batch has at most 2048 x max_batch_size rows.
        cache: "fp16", or "q8", "q6", "q4" for keys and values in fewer bits.
        lora: folder of a LoRA as PEFT saves it; it goes where the weights are that it changes.
        cpu_embedding: keep the embedding in main memory, as exllamav2 does by itself. The host then waits twice a
            token: for the ids, and for what is copied back.
    Raises:
        ArgumentError: arguments at odds with each other, or out of range.
        DeviceError: the device does not exist or is the CPU, or exllamav2 put a weight elsewhere than it was to be.
        ModelError: exllamav2 cannot be imported, or not compute what the checkpoint says; its files are not whole; a
            split is too small.
    Host sync: several; this is at load. The current device, streams and number of threads are as before.
    """
    if device is not None and gpu_split is not None:
        raise ArgumentError("give device for one GPU or gpu_split for several, not both.")
    if not isinstance(cache, str) or cache not in CACHES:
        raise ArgumentError(f"cache must be one of {', '.join(CACHES)}, got {show(cache)}")
    if not isinstance(lora, str | Path | None):
        raise ArgumentError(f"lora must be the folder of a LoRA, got {show(lora)}")
    check_flag("cpu_embedding", cpu_embedding)
    read_whole("max_batch_size", max_batch_size, minimum=1)
    split = _read_split(gpu_split) if gpu_split is not None else _split_for(resolve_device(device))
    checkpoint = read_checkpoint(path)
    exl2 = import_exllama("exllamav2")
    config = new_config(
        exl2, checkpoint.folder, checkpoint.config, max_seq_len=max_seq_len, max_batch_size=max_batch_size
    )
    used = [torch.device("cuda", index) for index, size in enumerate(split) if size > 0]
    with TURNS(used[-1], used):
        model = _load(exl2, config, split, cpu_embedding)
        for one in used:
            torch.cuda.synchronize(one)
    loaded = Exllamav2Model(model, checkpoint, getattr(exl2, CACHES[cache]))
    if lora is not None:
        loaded.load_lora(lora)
    return loaded


def _split_for(device: torch.device) -> list[float]:
    """Everything on one GPU, nothing on those before it."""
    if device.type != "cuda":
        raise DeviceError(f"exllamav2 runs on CUDA devices alone, not on {device}; gen.load runs on the CPU.")
    return [0.0] * device.index + [_ALL]


def _read_split(gpu_split: Sequence[float]) -> list[float]:
    if not isinstance(gpu_split, Sequence) or isinstance(gpu_split, str) or not len(gpu_split):
        raise ArgumentError(f"gpu_split must be a list of gigabytes for each GPU, got {show(gpu_split)}")
    for size in gpu_split:
        check_number("gpu_split", size, minimum=0)
    split = [float(size) for size in gpu_split]
    if not any(split):
        raise ArgumentError(f"gpu_split must have room on some GPU, got {show(gpu_split)}")
    resolve_device(len(split) - 1)
    while not split[-1]:
        split.pop()
    return split


def _load(exl2: Any, config: Any, split: list[float], cpu_embedding: bool) -> Any:
    """The model; exllamav2 knows no other way to put the embedding on a GPU than its own device map."""
    where = show_path(config.model_dir)
    try:
        with redirect_stdout(sys.stderr):
            model = exl2.ExLlamaV2(config)
            model.set_device_map = partial(model.set_device_map, embed_cpu=cpu_embedding)  # `load` calls it
            model.load(gpu_split=split)
            for index, context in enumerate(model.device_context):
                if context is not None:
                    model.get_device_context(index)  # makes its tables and scratch memory
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # it asserts, and fails with errors of every kind
        if "Insufficient space" in str(error):
            raise ModelError(
                f"{where} does not fit into gpu_split={split}: give more gigabytes, or more GPUs."
            ) from error
        told = f"{type(error).__name__}: {show(str(error), 200)}"
        raise ModelError(f"exllamav2 cannot load {where}: {told}") from error
    return model


class Exllamav2Model:
    """A model of exllamav2 behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        exl2_model: the ExLlamaV2 itself.
        params_class: of what exllamav2 gives each layer's attention.
        loras: what each forward is given of them; None for none.
        window: prompts that are longer are read wrong by layers that look back so far; None where there are none.
    """

    def __init__(self, model: Any, checkpoint: Checkpoint, cache_class: Any) -> None:
        config = model.config
        self.exl2_model = model
        self.params_class: Any = import_exllama("exllamav2.attn_params").Params
        self.loras: list[Any] | None = None
        self.tokenizer = checkpoint.tokenizer
        self.vocab_size: int = config.vocab_size  # its logits are padded to a multiple of 32
        self.eos_token_ids = checkpoint.eos_token_ids
        self.idle: Idle[object] = Idle()
        self._checkpoint, self._cache_class = checkpoint, cache_class
        self.context_length: int = config.max_seq_len  # its tables of positions end there
        windows = [layer.sliding_window for layer in model.modules if getattr(layer, "sliding_window", 0)]
        self.window: int | None = min(windows, default=None)
        if checkpoint.window is not None and not windows:  # it does not know of it, and looks at everything
            self.context_length = min(self.context_length, checkpoint.window)
        layers = [torch.device(model.cache_map[index]) for index in range(config.num_hidden_layers)]
        self.placement = Placement(
            input_device=torch.device(model.modules[0].device()),
            logits_device=torch.device(model.modules[-1].device()),
            layer_devices=tuple(layers),
            dtype=torch.float16,
        )
        self._check_places()

    @cached_property
    def recommended_sampler(self) -> Sampler:
        """See `gen.models.recommended.recommended_sampler`."""
        return self._checkpoint.recommended_sampler(self.vocab_size)

    def release(self) -> None:
        """Give back the memory that the model keeps from call to call."""
        self.idle.clear()

    def load_lora(self, lora: str | Path | None) -> None:
        """Use a LoRA from now on, in the place of what was used before; None for none.

        Raises:
            ModelError: there is none in that folder, or exllamav2 cannot read it.
        """
        loaded = None
        if lora is not None:
            lora_class = import_exllama("exllamav2").ExLlamaV2Lora
            try:
                with self.turn(), redirect_stdout(sys.stderr):
                    loaded = [lora_class.from_directory(self.exl2_model, str(lora))]
            except Exception as error:  # files of every kind
                told = f"{type(error).__name__}: {show(str(error), 200)}"
                raise ModelError(f"exllamav2 cannot load the LoRA {show_path(lora)}: {told}") from error
        self.loras = loaded
        self._check_places()

    def turn(self) -> AbstractContextManager[None]:
        """Nobody else launches on exllamav2 meanwhile; see `gen.models.exllama.turns.Turns`."""
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
        """A cache of exllamav2 for so many rows of so many tokens, or some more."""
        block = self.cache_block
        return self._cache_class(self.exl2_model, batch_size=rows, max_seq_len=-(-length // block) * block)

    @cached_property
    def cache_block(self) -> int:
        """How many tokens are quantised together: quantised caches write so many at once, beyond their end too."""
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
        """All that the model computes with: a name, the tensor, and the device that its module was given."""
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
        if not value.is_meta:  # stands for none
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
