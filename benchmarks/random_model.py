"""Llamas with random weights and a vocabulary of any size, for benchmarks that have no checkpoint."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import gen
from benchmarks.architectures.tiny_models import tokenizer
from gen.models.transformers.model import TransformersModel

Shape = Literal["tiny", "135m", "1b"]

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_SHAPES = {
    "tiny": (128, 256, 4, 4, 2),
    "135m": (576, 1536, 30, 9, 3),  # SmolLM2's
    "1b": (2048, 8192, 16, 32, 8),  # Llama 3.2's
}


def random_model(
    vocab_size: int,
    shape: Shape = "tiny",
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    context: int = 2048,
) -> TransformersModel:
    """A Llama made on its device, with a byte-level tokenizer of made-up words; at least 256 tokens."""
    with torch.device(device):
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(_config(vocab_size, shape, context), dtype=dtype or torch.float32)
    made = gen.from_transformers(model.eval(), tokenizer(vocab_size))
    assert isinstance(made, TransformersModel)  # a Llama always is; tells mypy
    return made


def save_random_model(folder: Path, vocab_size: int) -> None:
    """Write a tiny Llama."""
    tokenizer(vocab_size).save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(_config(vocab_size, "tiny")).save_pretrained(folder)


def load_random_model(vocab_size: int) -> TransformersModel:
    """A tiny Llama on the CPU as `gen.load` takes one from a folder: packed where that is faster."""
    with TemporaryDirectory() as folder:
        save_random_model(Path(folder), vocab_size)
        made = gen.load(folder, device="cpu")
    assert isinstance(made, TransformersModel)  # tells mypy
    return made


def _config(vocab_size: int, shape: Shape, context: int = 2048) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=context,
        tie_word_embeddings=shape != "tiny",
        bos_token_id=None,
        eos_token_id=None,
        **dict(zip(_SIZES, _SHAPES[shape], strict=True)),
    )
