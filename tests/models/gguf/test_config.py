"""Configs read from GGUF files; the oracle is the tiny transformers model that each file was written from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import gen
from gen.errors import ModelError
from gen.models.gguf.config import read_config
from gen.models.gguf.header import read_header
from tests.helpers import EOS, OTHER_EOS
from tests.models.gguf.files import MODELS, tiny, write_gguf

TOKEN_IDS = torch.arange(2 * 40).view(2, 40)


def logits_of(path: Path) -> torch.Tensor:
    logits: torch.Tensor = gen.load(path, device="cpu", probe=False).hf_model(TOKEN_IDS).logits
    return logits.detach()


@pytest.mark.parametrize("architecture", MODELS)
def test_every_architectures_logits_are_those_of_the_model_that_was_written(architecture: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "model.gguf", architecture)
    expected = model(TOKEN_IDS).logits
    assert expected.std() > 1
    torch.testing.assert_close(logits_of(tmp_path / "model.gguf"), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "scaling"),
    [
        ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("llama", {"rope.scaling.factor": 4.0}),
        ("llama", {"rope.scale_linear": 4.0}),  # as files were written before there were types
        ("gemma3", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("lfm2", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),  # which transformers reads by itself
    ],
)
def test_linear_scaling_of_positions_is_read(architecture: str, scaling: dict[str, object], tmp_path: Path) -> None:
    model = tiny(architecture)
    plain = model(TOKEN_IDS).logits
    rope = model.config.rope_parameters
    changed = rope.get("full_attention", rope) | {"rope_type": "linear", "factor": 4.0}
    scaled = rope | {"full_attention": changed} if "full_attention" in rope else changed
    model = tiny(architecture, rope_parameters=scaled)
    metadata = {f"{architecture}.{key}": value for key, value in scaling.items()}
    write_gguf(tmp_path / "model.gguf", architecture, model=model, metadata=metadata)
    torch.testing.assert_close(logits_of(tmp_path / "model.gguf"), model(TOKEN_IDS).logits, rtol=0, atol=1e-4)
    assert not torch.allclose(plain, model(TOKEN_IDS).logits, atol=0.1)


@pytest.mark.parametrize("architecture", ["nemotron", "phi3", "stablelm"])
def test_whole_heads_are_rotated_if_the_file_names_no_part(architecture: str, tmp_path: Path) -> None:
    model = tiny(architecture, partial_rotary_factor=1.0)
    metadata = {f"{architecture}.rope.dimension_count": None}
    write_gguf(tmp_path / "model.gguf", architecture, model=model, metadata=metadata)
    torch.testing.assert_close(logits_of(tmp_path / "model.gguf"), model(TOKEN_IDS).logits, rtol=0, atol=1e-4)


def test_the_frequencies_of_llama_3_are_read(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = tiny("llama", head_dim=64, rope_parameters=rope | {"original_max_position_embeddings": 8192})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, torch.device("cpu"))
    divisors = 5e5 ** -(torch.arange(32) / 32) / scaled
    assert divisors.min().item() == pytest.approx(1) and divisors.max().item() == pytest.approx(32)
    write_gguf(tmp_path / "model.gguf", model=model, tensors={"rope_freqs.weight": divisors.numpy()})
    far = torch.arange(90).view(1, 90)
    loaded = gen.load(tmp_path / "model.gguf", device="cpu").hf_model
    torch.testing.assert_close(loaded(far).logits, model(far).logits, rtol=0, atol=1e-3)
    write_gguf(tmp_path / "odd.gguf", model=model, tensors={"rope_freqs.weight": divisors.numpy() + 1})
    with pytest.raises(ModelError, match=r"rope_freqs\.weight is not Llama 3's"):
        gen.load(tmp_path / "odd.gguf")


def test_tokens_that_end_a_text_are_eos_end_of_turn_and_end_of_message(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata={"tokenizer.ggml.eot_token_id": OTHER_EOS, "tokenizer.ggml.eom_token_id": 259})
    assert gen.load(path).eos_token_ids == (EOS, OTHER_EOS, 259)
    write_gguf(path, metadata={"tokenizer.ggml.eot_token_id": EOS})
    assert gen.load(path).eos_token_ids == (EOS,)


@pytest.mark.parametrize(
    ("architecture", "metadata", "tensors", "message"),
    [
        ("llama", {"llama.rope.scaling.type": "yarn"}, {}, "scales the rotation of positions by 'yarn'"),
        ("lfm2", {"lfm2.rope.scaling.type": "yarn"}, {}, "scales the rotation of positions by 'yarn'"),
        ("lfm2", {}, {"blk.1.attn_q.bias": np.ones(32, np.float32)}, "has 1 weights, such as .*q_proj.bias, that"),
        ("llama", {"llama.attention.sliding_window": 8}, {}, "its attention has a window of 8 tokens"),
        ("qwen2", {"qwen2.rope.dimension_count": 4}, {}, "it rotates 4 of each head's 8 numbers"),
        ("qwen2", {"qwen2.attention.key_length": 16}, {}, "its 4 heads are 16 wide in a model 32 wide"),
        ("llama", {"llama.block_count": None}, {}, "llama.block_count is None"),
        ("llama", {"llama.attention.head_count": [4, 4]}, {}, r"llama.attention.head_count is \[4, 4\]"),
        ("llama", {}, {"token_embd.weight": np.zeros(0)}, "there is no token_embd.weight"),
        (
            "llama",
            {},
            {"blk.0.ffn_gate_exps.weight": np.ones((2, 2), np.float32)},
            "1 weights, such as blk.0.ffn_gate_e",
        ),
        ("llama", {}, {"output_norm.weight": np.zeros(0)}, "lacks 1 weights, such as model.norm.weight"),
        ("phi3", {}, {"rope_factors_long.weight": np.ones(4, np.float32)}, "such as rope_factors_long.weight"),
        ("llama", {"tokenizer.ggml.model": "plamo"}, {}, "cannot load .*plamo"),
    ],
)
def test_what_would_give_other_texts_is_refused(
    architecture: str,
    metadata: dict[str, object],
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    message: str,
    tmp_path: Path,
) -> None:
    write_gguf(tmp_path / "model.gguf", architecture, metadata=metadata, tensors=tensors)
    with pytest.raises(ModelError, match=message):
        gen.load(tmp_path / "model.gguf")


def test_the_largest_gemma_models_divide_scores_by_the_width_of_the_model(tmp_path: Path) -> None:
    model = tiny("gemma2", num_hidden_layers=46, hidden_size=64, intermediate_size=8)
    write_gguf(tmp_path / "model.gguf", "gemma2", model=model)
    assert read_config(read_header(tmp_path / "model.gguf")).query_pre_attn_scalar == 64 // 4
