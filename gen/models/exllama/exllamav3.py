"""exllamav3's own engine: EXL3 and FP16 checkpoints with one paged cache; calls borrow its pages."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gen.arguments import read_whole
from gen.errors import ArgumentError, ModelError, show_path
from gen.models.exllama import shared
from gen.models.exllama.exllamav3_model import PAGE, Exllamav3Model
from gen.models.exllama.shared import (
    Checkpoint,
    cuda_device,
    errors_of,
    import_exllama,
    read_checkpoint,
    read_gigabytes,
    used_devices,
)
from gen.models.rotary import read_context
from gen.runtime.isolation import isolated


@isolated
def from_exllamav3(
    path: str | Path,
    *,
    device: str | int | torch.device | None = None,
    max_num_tokens: int = 8192,
    cache_bits: int | None = None,
    context_length: int | None = None,
    use_per_device: Sequence[float] | None = None,
) -> Exllamav3Model:
    """Load a checkpoint with exllamav3's own engine: EXL3, or plain weights in 16 bits.

    Needs `pip install 'gen-torch[exllamav3]'`, CUDA and nvcc: the first import on a machine compiles it.

    Args:
        path: a folder with config.json, a tokenizer and weights in safetensors format.
        device: where the whole model goes, embedding and cache with it; None is the current CUDA device.
        max_num_tokens: how many tokens the cache has room for, over all calls that run at one time; in pages of 256.
            A row takes whole pages.
        cache_bits: of keys and values, 2 to 8; None is float16.
        context_length: how many tokens a text may have, prompt and new ones. None is what the config says; for a model
            with short and long factors (Phi-3, Phi-4-mini), how many the short ones serve. More takes the long ones.
        use_per_device: instead of a device, gigabytes that may be used on each GPU, in order; 0 leaves a GPU out.
    Raises:
        ArgumentError: arguments that contradict each other, or are out of range.
        DeviceError: the device does not exist or is the CPU, or exllamav3 put a weight on the wrong device.
        ModelError: exllamav3 cannot be imported, or does not know the checkpoint; its files are not whole; it has
            layers with a recurrent state, which no page holds.
    Host sync: several; this is at load. The current device, streams and number of threads are as before.
    """
    if device is not None and use_per_device is not None:
        raise ArgumentError("give device for one GPU or use_per_device for several, not both.")
    pages = -(-read_whole("max_num_tokens", max_num_tokens, minimum=1) // PAGE)
    if cache_bits is not None:
        cache_bits = read_whole("cache_bits", cache_bits, minimum=2, maximum=8)
    if use_per_device is None:
        used = [cuda_device("exllamav3", device)]
        place: dict[str, Any] = {"device": used[0]}
    else:
        sizes = read_gigabytes("use_per_device", use_per_device)
        used, place = used_devices(sizes), {"use_per_device": sizes}
    checkpoint = read_checkpoint(path)
    exl3 = import_exllama("exllamav3")
    with shared.EXLLAMAV3(used[-1], used):
        model, cache, longest = _load(exl3, checkpoint, context_length, pages * PAGE, cache_bits, place)
        for one in used:
            torch.cuda.synchronize(one)
    return Exllamav3Model(model, cache, checkpoint, longest)


def _load(
    exl3: Any,
    checkpoint: Checkpoint,
    context_length: int | None,
    tokens: int,
    cache_bits: int | None,
    place: dict[str, Any],
) -> tuple[Any, Any, int]:
    """The model, its cache, which is made with the weights, layer by layer, and how many tokens a text may have."""
    folder, kind = checkpoint.folder, dict[str, Any]()
    if cache_bits is not None:
        kind = {"layer_type": exl3.CacheLayer_quant, "k_bits": cache_bits, "v_bits": cache_bits}
    with errors_of(f"exllamav3 cannot load {show_path(folder)}"):
        config = exl3.Config.from_directory(str(folder))
        longest = _choose_factors_(config, checkpoint.config, context_length)
        model = exl3.Model.from_config(config)
        if model.get_recurrent_layers():
            raise ModelError(
                f"{show_path(folder)} has layers with a recurrent state or a window of their own, which "
                "gen.from_exllamav3 keeps no pages for."
            )
        model.modules[0].caps["prefer_cpu"] = False  # with an embedding on the CPU, the host would wait for ids
        cache = exl3.Cache(model, max_num_tokens=tokens, **kind)
        model.load(**place, max_chunk_size=min(tokens, 2048))
    return model, cache, longest


def _choose_factors_(config: Any, text: dict[str, Any], context_length: int | None) -> int:
    """Set the factors for rotated positions, which exllamav3 derives from the number of positions, to those of the
    context and of config.json; how many tokens a text may have."""
    context = read_context(SimpleNamespace(**text), config.max_position_embeddings, context_length)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind, factor, original = (rope.get(name) for name in ("rope_type", "factor", "original_max_position_embeddings"))
    context.log(config.architecture)
    if context.two_sets:
        config.rope_settings.override_max_position_embeddings = context.length
    elif (kind or rope.get("type")) == "yarn" and factor and original:
        config.rope_settings.override_max_position_embeddings = round(factor * original)
    return context.length
