"""GGUF files of tiny random models, written with gguf's own writer as llama.cpp's converter writes them.

Each architecture's model has settings that differ from its config's defaults, so that a setting that is not read shows.
Source of the layouts: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from tests.helpers import BOS, CHAT_TEMPLATE, EOS, OTHER_EOS, bytes_to_characters
from tests.helpers.architectures import SMALL

VOCABULARY = [*bytes_to_characters(), "<s>", "</s>", "<end>", "th", "Ġth"]
MERGES = ["t h", "Ġ th"]
NORMAL, CONTROL = 1, 3

_COMMON: dict[str, Any] = SMALL | {
    "vocab_size": len(VOCABULARY),
    "max_position_embeddings": 96,
    "rope_theta": 300.0,
    "tie_word_embeddings": False,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "tie_word_embeddings": True}
_LFM2 = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True}

# architecture: the transformers class, its config's differences from _COMMON, its name for the epsilon
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("BloomForCausalLM", {"tie_word_embeddings": True}, "layer_norm_epsilon"),
    "falcon": ("FalconForCausalLM", {"num_kv_heads": 1, "tie_word_embeddings": True}, "layer_norm_epsilon"),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping": 5.0}, "rms_norm_eps"),
    "gemma3": ("Gemma3ForCausalLM", _GEMMA | {"num_hidden_layers": 7}, "rms_norm_eps"),
    "gpt2": ("GPT2LMHeadModel", {"n_inner": 64}, "layer_norm_epsilon"),
    "lfm2": ("Lfm2ForCausalLM", _LFM2, "norm_eps"),
    "llama": ("LlamaForCausalLM", {"head_dim": 16}, "rms_norm_eps"),
    "nemotron": ("NemotronForCausalLM", {"partial_rotary_factor": 0.25, "head_dim": 16}, "norm_eps"),
    "phi3": ("Phi3ForCausalLM", {"partial_rotary_factor": 0.5, "sliding_window": 8, "pad_token_id": 0}, "rms_norm_eps"),
    "qwen2": ("Qwen2ForCausalLM", {}, "rms_norm_eps"),
    "qwen2moe": ("Qwen2MoeForCausalLM", _MOE | {"shared_expert_intermediate_size": 48}, "rms_norm_eps"),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, "rms_norm_eps"),
    "qwen3moe": ("Qwen3MoeForCausalLM", _MOE | {"head_dim": 16, "norm_topk_prob": True}, "rms_norm_eps"),
    "stablelm": ("StableLmForCausalLM", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}, "layer_norm_eps"),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": None, "tie_word_embeddings": True}, "norm_epsilon"),
}
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2's layers are x @ W


def tiny(architecture: str, **changes: object) -> PreTrainedModel:
    """A random model whose greedy texts vary."""
    name, own, epsilon = MODELS[architecture]
    config_class = getattr(transformers, name).config_class
    ends = {"bos_token_id": BOS, "eos_token_id": EOS}
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, name)(
        config_class(**_COMMON | ends | {epsilon: 1e-3} | own | changes)
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    model: PreTrainedModel | None = None,
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> PreTrainedModel:
    """Write a tiny model and its tokenizer as GGUF.

    Args:
        metadata: more keys, or other values for keys; None leaves a key out.
        tensors: more tensors, or replacements; an empty one leaves the tensor out.
        quantisation: the type of matrices.
    Returns: the transformers model that was written.
    """
    model = model or tiny(architecture)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_metadata(model, architecture) | dict(metadata or {})).items():
        _add(writer, key, value)
    for name, array in (_tensors(model, architecture) | dict(tensors or {})).items():
        if array.size:
            kind = quantisation if array.ndim > 1 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _metadata(model: PreTrainedModel, architecture: str) -> dict[str, Any]:
    config = model.config
    _, _, epsilon = MODELS[architecture]
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    inner = (
        getattr(config, "intermediate_size", None)
        or getattr(config, "n_inner", None)
        or getattr(config, "ffn_hidden_size", None)
    )
    norm = "layer_norm_rms_epsilon" if epsilon == "rms_norm_eps" or architecture == "lfm2" else "layer_norm_epsilon"
    kv_heads = 1 if architecture == "falcon" else getattr(config, "num_key_value_heads", None)
    if architecture == "lfm2":
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config.layer_types]
    own = {
        "context_length": getattr(config, "max_position_embeddings", 96),
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": inner,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": kv_heads,
        f"attention.{norm}": getattr(config, epsilon),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "shortconv.l_cache": getattr(config, "conv_L_cache", None),
        "expert_count": getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "expert_shared_feed_forward_length": getattr(config, "shared_expert_intermediate_size", None),
    }
    if rope:
        own["rope.freq_base"] = rope["rope_theta"]
        own["rope.dimension_count"] = int(head_width * rope.get("partial_rotary_factor", 1.0))
    if "head_dim" in MODELS[architecture][1]:
        own |= {"attention.key_length": head_width, "attention.value_length": head_width}
    return {f"{architecture}.{key}": value for key, value in own.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": [
            CONTROL if id_ in (BOS, EOS, OTHER_EOS) else NORMAL for id_ in range(len(VOCABULARY))
        ],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _tensors(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray[Any, Any]]:
    """The weights under GGUF's names, in its layouts."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    written: dict[str, np.ndarray[Any, Any]] = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = parameter.float().numpy()
        if name.endswith("experts.gate_up_proj"):
            block = f"blk.{name.split('.')[2]}"
            gate, up = np.split(array, 2, axis=1)
            written |= {f"{block}.ffn_gate_exps.weight": gate.copy(), f"{block}.ffn_up_exps.weight": up.copy()}
            continue
        if name.endswith("experts.down_proj"):
            written[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = array
            continue
        short = name.removeprefix("transformer.") if architecture == "bloom" else name
        found = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert found, f"GGUF has no name for {name}"
        written[found] = _as_stored(array, name, architecture, model.config)
    return written


def _as_stored(array: Any, name: str, architecture: str, config: Any) -> Any:
    """A weight in llama.cpp's layout."""
    heads = config.num_attention_heads
    if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):  # pairs of the rotation side by side
        count = heads if ".q_proj." in name else config.num_key_value_heads
        return array.reshape(count, 2, len(array) // count // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    if architecture in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return array + 1
    if architecture == "gpt2" and name.endswith(_TRANSPOSED):
        return np.ascontiguousarray(array.T)
    if architecture == "bloom" and ".query_key_value." in name:
        return array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
    if name.endswith("shared_expert_gate.weight"):
        return array.squeeze(0)
    if name.endswith("conv.conv.weight"):
        return array.squeeze(1)
    return array
