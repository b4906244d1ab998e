"""exllamav2: EXL2, GPTQ and FP16 checkpoints on its kernels, the whole model on the GPU that is asked for.

Only its model, its caches and its LoRAs are used: ExLlamaV2Config, ExLlamaV2, ExLlamaV2Cache*, ExLlamaV2Lora, forward.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gen.arguments import check_flag, read_whole
from gen.errors import ArgumentError, ModelError, show, show_path
from gen.models.exllama.exllamav2_model import CACHES, TURNS, Exllamav2Model
from gen.models.exllama.shared import (
    cuda_device,
    errors_of,
    import_exllama,
    read_checkpoint,
    read_gigabytes,
    used_devices,
)
from gen.models.rotary import read_context
from gen.runtime.isolation import isolated

_ALL = 1e6  # gigabytes: more than any model needs
_KNOWN = {"default", "dynamic", "linear", "llama3", "longrope", "mrope", "su", "yarn"}  # of rope_scaling
_LLAMA3 = {
    "l3_rope_factor": "factor",
    "l3_rope_low_freq_factor": "low_freq_factor",
    "l3_rope_high_freq_factor": "high_freq_factor",
    "l3_rope_original_max_position_embeddings": "original_max_position_embeddings",
}  # exllamav2's names, and those of config.json
_READ = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *_LLAMA3.values()}


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
    if gpu_split is not None:
        split = read_gigabytes("gpu_split", gpu_split)
    else:  # everything on one GPU, nothing on those before it
        split = [0.0] * cuda_device("exllamav2", device).index + [_ALL]
    checkpoint = read_checkpoint(path)
    exl2 = import_exllama("exllamav2")
    config, longest = _new_config(
        exl2, checkpoint.folder, checkpoint.config, max_seq_len=max_seq_len, max_batch_size=max_batch_size
    )
    used = used_devices(split)
    with TURNS(used[-1], used):
        model = _load(exl2, config, split, cpu_embedding)
        for one in used:
            torch.cuda.synchronize(one)
    loaded = Exllamav2Model(model, checkpoint, getattr(exl2, CACHES[cache]), longest)
    if lora is not None:
        loaded.load_lora(lora)
    return loaded


def _load(exl2: Any, config: Any, split: list[float], cpu_embedding: bool) -> Any:
    """The model; only exllamav2's own device map can put the embedding on a GPU."""
    where = show_path(config.model_dir)
    with errors_of(f"exllamav2 cannot load {where}"):
        model = exl2.ExLlamaV2(config)
        model.set_device_map = partial(model.set_device_map, embed_cpu=cpu_embedding)  # `load` calls it
        try:
            model.load(gpu_split=split)
        except AssertionError as error:
            if "Insufficient space" not in str(error):
                raise
            raise ModelError(
                f"{where} does not fit into gpu_split={split}: give more gigabytes, or more GPUs."
            ) from error
        for index, context in enumerate(model.device_context):
            if context is not None:
                model.get_device_context(index)  # makes its tables and scratch memory
    return model


def _new_config(
    exl2: Any, folder: Path, text: Mapping[str, Any], *, max_seq_len: int | None, max_batch_size: int
) -> tuple[Any, int]:
    """An ExLlamaV2Config with which the model computes what transformers computes, and how many tokens a text may have.

    Args:
        exl2: the package.
        text: config.json, the text part.
        max_seq_len: where the tables of positions end; None for the checkpoint's context.
        max_batch_size: for how many rows of 2048 tokens scratch memory is made.
    Raises:
        ArgumentError: a number that is no whole number, or too large.
        ModelError: exllamav2 does not know the architecture, or cannot compute its positions.
    """
    with errors_of(f"exllamav2 cannot read {show_path(folder)}"):
        config = exl2.ExLlamaV2Config(str(folder))
    if config.arch.arch_string != config.architecture:
        raise ModelError(f"exllamav2 does not know {show(config.architecture)}, and would run it as a Llama.")
    longest = config.max_seq_len
    if max_seq_len is not None:
        max_seq_len = read_whole("max_seq_len", max_seq_len, minimum=2, maximum=longest)
    context = read_context(SimpleNamespace(**text), longest, max_seq_len, argument="max_seq_len")
    context.log(config.architecture)
    if context.two_sets:  # with a shorter table, it would scale them less
        factors = config.scale_long_factor if context.stretched else config.scale_short_factor
        config.scale_long_factor = config.scale_short_factor = factors
    else:
        config.max_seq_len = context.length
    config.max_batch_size = read_whole("max_batch_size", max_batch_size, minimum=1, maximum=1024)
    config.arch_compat_overrides(quiet=True)
    if config.architecture.startswith("Qwen3"):
        config.arch.lm.headnorm = "rmsnorm"  # it would subtract the mean of queries and keys
    config.no_sdpa = True  # that path drops every mask, the causal one too
    if text.get("sliding_window") or config.attn_logit_softcapping:
        # with a window, flash-attn attends to one token too many, and xformers to all tokens
        config.no_flash_attn = config.no_xformers = True
    _read_positions_(config, text)
    return config, context.length


def _read_positions_(config: Any, text: Mapping[str, Any]) -> None:
    """Set the rope_parameters that transformers 5 writes; exllamav2 would take its defaults instead."""
    scaling, rope = text.get("rope_scaling"), text.get("rope_parameters")
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in _KNOWN:
            raise ModelError(f"exllamav2 does not know rope_scaling of the type {show(kind)}, and would leave it out.")
    if rope is None:
        return
    kind = rope.get("rope_type") or rope.get("type") or "default"
    unknown = sorted(rope.keys() - _READ)
    if kind not in ("default", "linear", "llama3") or "rope_theta" not in rope or unknown:
        told = f"with {', '.join(unknown)}" if unknown else f"of the type {show(kind)}"
        raise ModelError(
            f"config.json has rope_parameters {told}, as transformers 5 writes them, which exllamav2 would leave out. "
            "Give a config.json with rope_theta and rope_scaling, as the checkpoint had before it was saved again."
        )
    config.rotary_embedding_base = float(rope["rope_theta"])
    config.partial_rotary_factor = float(rope.get("partial_rotary_factor", 1.0))
    if kind == "linear":
        config.scale_pos_emb = float(rope["factor"])
    if kind == "llama3":
        config.alt_rope_method = "llama3"
        for name, key in _LLAMA3.items():
            setattr(config, name, rope[key])
