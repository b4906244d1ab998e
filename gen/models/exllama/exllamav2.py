"""exllamav2: EXL2, GPTQ and FP16 checkpoints on its kernels, the whole model on the GPU that is asked for.

Only its model, its caches and its LoRAs are used: ExLlamaV2Config, ExLlamaV2, ExLlamaV2Cache*, ExLlamaV2Lora, forward.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gen.arguments import check_flag, read_whole
from gen.devices import resolve_device
from gen.errors import ArgumentError, DeviceError, ModelError, check_number, show, show_path
from gen.models.exllama.checkpoint import read_checkpoint
from gen.models.exllama.exllamav2_config import new_config
from gen.models.exllama.exllamav2_model import CACHES, TURNS, Exllamav2Model
from gen.models.exllama.importing import import_exllama
from gen.runtime.isolation import isolated

_ALL = 1e6  # gigabytes: more than any model needs


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
) -> Exllamav2Model:
    """Load a checkpoint with exllamav2 0.3.2: EXL2, GPTQ, or plain weights, which become float16.

    Needs `pip install 'gen-torch[exllamav2]'`, CUDA and nvcc: the first import on a machine compiles it.

    Args:
        path: a folder with config.json, a tokenizer and weights in safetensors format.
        device: where the whole model goes, embedding and caches with it; None is the current CUDA device.
        gpu_split: instead of a device, gigabytes for the weights on each GPU, in order; 0 leaves a GPU out.
        max_seq_len: how many tokens a text may have; None for the checkpoint's context, which is that of the short
            factors if there are short and long ones (Phi-3, Phi-4-mini). More takes the long ones.
        max_batch_size: for how many rows of 2048 tokens there is scratch memory. Prompts of larger batches are read in
            more pieces; a batch has at most 2048 x max_batch_size rows.
        cache: "fp16", or "q8", "q6", "q4" for keys and values in fewer bits.
        lora: folder of a LoRA as PEFT saves it; it goes to the devices of the weights that it changes.
        cpu_embedding: keep the embedding in main memory, exllamav2's own default. The host then waits twice for each
            token: for the ids, and for the vectors that are copied back.
    Raises:
        ArgumentError: arguments that contradict each other, or are out of range.
        DeviceError: the device does not exist or is the CPU, or exllamav2 put a weight on the wrong device.
        ModelError: exllamav2 cannot be imported, or cannot compute the checkpoint's model; its files are not whole; a
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
    config, longest = new_config(
        exl2, checkpoint.folder, checkpoint.config, max_seq_len=max_seq_len, max_batch_size=max_batch_size
    )
    used = [torch.device("cuda", index) for index, size in enumerate(split) if size > 0]
    with TURNS(used[-1], used):
        model = _load(exl2, config, split, cpu_embedding)
        for one in used:
            torch.cuda.synchronize(one)
    loaded = Exllamav2Model(model, checkpoint, getattr(exl2, CACHES[cache]), longest)
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
    """The model; only exllamav2's own device map can put the embedding on a GPU."""
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
