"""Reads config.json for exllamav2: settings that exllamav2 does not know are set here, or refused."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gen.arguments import read_whole
from gen.errors import ModelError, show, show_path
from gen.models.rotary import read_context

_KNOWN = {"default", "dynamic", "linear", "llama3", "longrope", "mrope", "su", "yarn"}  # of rope_scaling
_LLAMA3 = {
    "l3_rope_factor": "factor",
    "l3_rope_low_freq_factor": "low_freq_factor",
    "l3_rope_high_freq_factor": "high_freq_factor",
    "l3_rope_original_max_position_embeddings": "original_max_position_embeddings",
}  # exllamav2's names, and those of config.json
_READ = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *_LLAMA3.values()}


def new_config(
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
    try:
        with redirect_stdout(sys.stderr):
            config = exl2.ExLlamaV2Config(str(folder))
    except Exception as error:  # it asserts, and looks up keys that are not there
        raise ModelError(
            f"exllamav2 cannot read {show_path(folder)}: {type(error).__name__}: {show(str(error), 200)}"
        ) from error
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
