"""A GGUF file's metadata as a transformers config, and the tokens that end a text.

transformers' own reader leaves some of an architecture's keys at the config's defaults (rotation of positions, width of
heads and experts, windows), so that texts go wrong without an error. gen reads every key that changes a text, and
refuses a file with settings that the architecture's config cannot hold.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gen.errors import ModelError, show_path
from gen.models.gguf.header import Header, dequantize

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# model type of transformers, and the name of the normalisation's epsilon in its config
_MODELS = {
    "bloom": ("bloom", "layer_norm_epsilon"),
    "falcon": ("falcon", "layer_norm_epsilon"),
    "gemma2": ("gemma2", "rms_norm_eps"),
    "gemma3": ("gemma3_text", "rms_norm_eps"),
    "gpt2": ("gpt2", "layer_norm_epsilon"),
    "llama": ("llama", "rms_norm_eps"),
    "nemotron": ("nemotron", "norm_eps"),
    "phi3": ("phi3", "rms_norm_eps"),
    "qwen2": ("qwen2", "rms_norm_eps"),
    "qwen2moe": ("qwen2_moe", "rms_norm_eps"),
    "qwen3": ("qwen3", "rms_norm_eps"),
    "qwen3moe": ("qwen3_moe", "rms_norm_eps"),
    "stablelm": ("stablelm", "layer_norm_eps"),
    "starcoder2": ("starcoder2", "norm_epsilon"),
}
_READ_BY_TRANSFORMERS = ("lfm2", "qwen35", "qwen35moe")  # by its newer reader, which leaves out only how rope is scaled
SUPPORTED = sorted({*_MODELS, *_READ_BY_TRANSFORMERS})

_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_WINDOWS = ("gemma2", "gemma3", "phi3")  # their configs have a window for some layers
_PARTIAL = ("nemotron", "phi3", "stablelm")  # may rotate a part of each head
_OWN_HEAD_WIDTH = ("gemma2", "gemma3", "llama", "nemotron", "qwen3", "qwen3moe")
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_config(header: Header) -> "PreTrainedConfig":
    """The transformers config of a file.

    Raises:
        ModelError: gen does not support the architecture, or a setting of it in the file.
    """
    from transformers import AutoConfig
    from transformers.integrations.gguf import is_gguf_arch_supported

    name = header.architecture
    if is_gguf_arch_supported(name) and name in SUPPORTED:
        read: PreTrainedConfig = AutoConfig.from_pretrained(header.path.parent, gguf_file=str(header.path.absolute()))
        _set_rope_scaling(read, header)
        return read
    if name not in _MODELS:
        raise ModelError(
            f"{show_path(header.path)} is of architecture {name!r}, which is not supported; gen reads "
            f"{', '.join(SUPPORTED)}."
        )
    model_type, epsilon = _MODELS[name]
    tensors = {tensor.name: tensor for tensor in header.tensors}
    for needed in ("embedding_length", "block_count", "attention.head_count"):
        if not isinstance(header.get(needed), int):
            raise _unsupported(header, f"{name}.{needed} is {header.get(needed)!r}")
    if "token_embd.weight" not in tensors:
        raise _unsupported(header, "there is no token_embd.weight")
    values: dict[str, Any] = {ours: header.get(key) for key, ours in _KEYS.items() if header.get(key) is not None}
    values[epsilon] = header.get("attention.layer_norm_rms_epsilon") or header.get("attention.layer_norm_epsilon")
    values |= _heads(header)
    values |= _peculiar(header, set(tensors), values)
    for role, key in {"bos": "bos", "eos": "eos", "pad": "padding"}.items():
        values[f"{role}_token_id"] = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
    values["vocab_size"] = tensors["token_embd.weight"].shape[0]
    values["tie_word_embeddings"] = "output.weight" not in tensors
    config = AutoConfig.for_model(model_type, **values)
    _set_rope_scaling(config, header)
    return config


def end_of_text_ids(header: Header) -> list[int]:
    """The tokens that end a text: eos, end of turn, end of message; each once."""
    ids = (header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int)))


def _heads(header: Header) -> dict[str, Any]:
    """The width of a head, and how much of it is rotated."""
    name, heads, hidden = header.architecture, header.get("attention.head_count"), header.get("embedding_length")
    rotated = header.get("rope.dimension_count")
    width = header.get("attention.key_length") or (rotated if name == "llama" else None) or hidden // heads
    values: dict[str, Any] = {}
    if name in _OWN_HEAD_WIDTH:
        values["head_dim"] = width
    elif width * heads != hidden:
        raise _unsupported(header, f"its {heads} heads are {width} wide in a model {hidden} wide")
    if name in _PARTIAL:
        values["partial_rotary_factor"] = (rotated or width) / width
    elif rotated not in (None, width):
        raise _unsupported(header, f"it rotates {rotated} of each head's {width} numbers")
    return values


def _peculiar(header: Header, tensors: set[str], values: dict[str, Any]) -> dict[str, Any]:
    """The settings of an architecture's config beside the common ones."""
    name, window = header.architecture, header.get("attention.sliding_window")
    if window and name not in _WINDOWS:
        raise _unsupported(header, f"its attention has a window of {window} tokens")
    peculiar: dict[str, Any] = {"sliding_window": window} if window else {}
    if name == "gpt2":
        peculiar["n_inner"] = header.get("feed_forward_length")
    if name == "llama":
        peculiar |= {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    if name == "stablelm":
        peculiar |= {
            "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
            "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
        }
    if name in ("gemma2", "gemma3"):  # the two models of 27B divide scores by another width, which the file lacks
        largest = header.get("block_count") == {"gemma2": 46, "gemma3": 62}[name]
        width = values["hidden_size"] // values["num_attention_heads"] if largest else values["head_dim"]
        peculiar["query_pre_attn_scalar"] = width
    if name == "qwen3moe":
        peculiar["norm_topk_prob"] = True
    return peculiar


def _set_rope_scaling(config: "PreTrainedConfig", header: Header) -> None:
    """Scale the rotation of positions as the file says, or refuse to; a factor without a type is linear, as in
    llama.cpp, which also reads the factor under its older name."""
    kind = header.get("rope.scaling.type") or "linear"
    factor = header.get("rope.scaling.factor") or header.get("rope.scale_linear") or 1.0
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # Gemma 3 scales only the layers without a window
    if kind == "linear" and factor != 1.0 and rope:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind not in ("none", "linear"):
        raise _unsupported(header, f"it scales the rotation of positions by {kind!r}")
    for tensor in header.tensors:
        if tensor.name == "rope_freqs.weight":
            divisors = torch.tensor(dequantize(header, tensor))
            if not torch.equal(divisors, torch.ones_like(divisors)):
                _set_llama3_rope(config, header, divisors)


def _set_llama3_rope(config: "PreTrainedConfig", header: Header, divisors: Tensor) -> None:
    """Llama 3.1 and later: the file has a divisor for each frequency, the config has the rule for the divisors."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    exponents = torch.arange(len(divisors)) / len(divisors)
    stored = config.rope_parameters["rope_theta"] ** -exponents / divisors
    config.rope_parameters |= {"rope_type": "llama3", "factor": divisors.max().item(), **_LLAMA3_ROPE}
    made, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if not torch.allclose(made, stored, rtol=1e-4, atol=0):
        raise _unsupported(header, "its rope_freqs.weight is not Llama 3's")


def _unsupported(header: Header, what: str) -> ModelError:
    return ModelError(f"{show_path(header.path)} is a {header.architecture} that gen cannot read correctly: {what}.")
