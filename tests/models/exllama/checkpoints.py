"""Tiny checkpoints in float16 that exllamav2 and exllamav3 load, and the same in EXL3 of 16 bits a weight."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.helpers import BOS, EOS, OTHER_EOS, stored
from tests.models.exllama.exllamav3_ext import trellis_of

COMMON: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": [EOS, OTHER_EOS],
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {  # short and long factors, for texts of up to 40 tokens, and of more
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * index for index in range(16)],
    "long_factor": [4.0 + index for index in range(16)],
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "wide": ("Llama", {"num_attention_heads": 16, "num_key_value_heads": 16}),  # 512 numbers a token
    "tied llama": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma2": (
        "Gemma2",
        {"tie_word_embeddings": True, "sliding_window": 40, "query_pre_attn_scalar": 32, "initializer_range": 0.1}
        | {"hidden_activation": "gelu_pytorch_tanh"},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama3": ("Llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}),
    "yarn": (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}
        | {"max_position_embeddings": 128, "original_max_position_embeddings": 64},
    ),
    "longrope": (
        "Phi3",
        {"rope_parameters": LONGROPE | {"rope_theta": 1e4}, "original_max_position_embeddings": 40},
    ),
}


def save(folder: Path, shape: str = "llama", **changes: Any) -> PreTrainedModel:
    """Write a random model in float16 with a byte tokenizer; the transformers model, in float32."""
    name, settings = SHAPES[shape]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(COMMON | settings | changes))
    model: PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(config).half().eval()
    stored(model, folder)
    return model.float()


def change(folder: Path, file: str = "config.json", **changes: Any) -> None:
    """Write other settings into a file of a checkpoint; None takes one out."""
    path = folder / file
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def save_exl3(folder: Path, plain: Path) -> None:
    """Write a checkpoint's weights as EXL3 ones of 16 bits, which are the same numbers."""
    shutil.copytree(plain, folder)
    tensors = {}
    for name, weight in load_file(plain / "model.safetensors").items():
        if weight.dim() != 2 or "embed" in name:
            tensors[name] = weight
            continue
        key = name.removesuffix(".weight")
        suh, svh = (2 * torch.randint(0, 2, (size,)).half() - 1 for size in weight.shape[::-1])
        tensors[f"{key}.trellis"] = trellis_of(weight, suh, svh)
        tensors[f"{key}.suh"], tensors[f"{key}.svh"] = suh, svh
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, quantization_config={"quant_method": "exl3", "bits": 16.0, "version": "1"})
