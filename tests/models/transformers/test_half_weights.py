"""Float16 weights on a CPU, packed: the oracle is the same model in float32."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gen
from gen import doctor
from gen.models.transformers import half_weights
from gen.models.transformers.half_weights import HalfEmbedding, PackedLinear, suit_cpu_, unpack_
from gen.testing import virtual_gpus
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.architectures import HYBRIDS, OTHERS, SHAPES

PROMPTS = ["Once upon a time", "x", "to be or not to be, that is the question"]
SIZES: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 520, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float16 checkpoint, whose layers have 576 and 520 inputs."""
    folder = tmp_path_factory.mktemp("half")
    tiny_model(**SIZES, tie_word_embeddings=True).half().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def packed(saved: Path) -> Any:
    return gen.load(saved, device="cpu")


@pytest.mark.parametrize("inputs", [256, 300, 512, 576, 700, 800, 1536])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_has_the_weights_and_gives_the_products_of_the_layer(inputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, 40, bias=bias).half().requires_grad_(False)
    layer.weight[0, :4] = torch.tensor([65504.0, 6e-8, -6e-8, 0.0])  # the largest number and the smallest ones
    packed = PackedLinear(layer, torch.empty(layer.weight.numel()))
    assert torch.equal(packed.weight, layer.weight.float())
    assert [*packed.state_dict()] == [*layer.state_dict()]
    assert all(torch.equal(one, layer.state_dict()[name]) for name, one in packed.state_dict().items())
    for rows in (1, 7, 70):
        states = torch.randn(2, rows, inputs)
        expected = nn.functional.linear(states.double(), layer.weight.double(), layer.bias.double() if bias else None)
        torch.testing.assert_close(packed(states).double()[..., 1:], expected[..., 1:], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(packed(states).double()[..., 0], expected[..., 0], rtol=1e-4, atol=0.5)


def test_a_float16_checkpoint_gives_the_texts_of_float32(saved: Path, packed: Any) -> None:
    plain = gen.load(saved, device="cpu", dtype="float32")
    assert str(packed.placement) == "cpu (float32, weights float16)"
    assert sum(isinstance(part, PackedLinear) for part in packed.hf_model.modules()) == 15
    settings: dict[str, Any] = {"sampler": gen.samplers.multinomial(), "seed": 3, "max_new_tokens": 40}
    texts = gen.generate(plain, PROMPTS, **settings)
    assert gen.generate(packed, PROMPTS, **settings) == texts
    assert [gen.generate(packed, prompt, **settings) for prompt in PROMPTS] == texts
    assert gen.generate(packed, PROMPTS, **settings, replay=False) == texts
    diagnosis = doctor.diagnose(str(saved), device="cpu", virtual=0)
    assert diagnosis.as_dict()["placement"]["packed_dtype"] == "float16"


def test_saved_anew_it_is_the_checkpoint(saved: Path, packed: Any, tmp_path: Path) -> None:
    packed.hf_model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    one, two = (gen.load(folder, device="cpu", dtype="float16").hf_model.state_dict() for folder in (saved, tmp_path))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_moved_to_a_gpu_it_is_a_model_of_float32(saved: Path, packed: Any) -> None:
    plain = gen.load(saved, device="cpu", dtype="float32")
    with virtual_gpus(2):
        moved = gen.from_transformers(copy.deepcopy(packed.hf_model).to("cuda:1"), byte_tokenizer())
        assert str(moved.placement) == "cuda:1 (float32)"
        assert gen.generate(moved, PROMPTS, seed=3) == gen.generate(plain, PROMPTS, seed=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_turned_into_another_type_it_is_a_plain_model(saved: Path, packed: Any, dtype: torch.dtype) -> None:
    model = copy.deepcopy(packed.hf_model)
    assert model.float().get_input_embeddings().weight.dtype == torch.float16  # it computes in float32 already
    model.to(dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert not any(isinstance(part, PackedLinear | HalfEmbedding) for part in model.modules())
    expected = gen.load(saved, device="cpu", dtype="float16").hf_model.to(dtype).state_dict()
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in expected.items())


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_a_type_that_is_asked_for_is_what_it_is(saved: Path, dtype: str) -> None:
    model = gen.load(saved, device="cpu", dtype=dtype)
    assert str(model.placement) == f"cpu ({dtype})"
    assert not any(isinstance(part, PackedLinear | HalfEmbedding) for part in model.hf_model.modules())


def test_what_does_not_run_packed_runs_in_float32(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, states: Any) -> Any:
        raise TypeError("of a layer")

    monkeypatch.setattr(PackedLinear, "forward", fails)
    assert str(gen.load(saved, device="cpu").placement) == "cpu (float32)"


@pytest.mark.parametrize(
    ("size", "placement"), [(None, "cpu (float32)"), (10**12, "cpu (float32)"), (1, "cpu (float16)")]
)
def test_without_the_engine_it_is_float32_where_memory_allows(
    size: int | None, placement: str, saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(half_weights, "_ENGINE", "none")
    monkeypatch.setattr(half_weights, "available_bytes", lambda: size)
    with caplog.at_level(logging.INFO, "gen"):
        assert str(gen.load(saved, device="cpu").placement) == placement
    assert "in float16" in caplog.text


@pytest.mark.parametrize("shape", ["llama", "gemma3", "deepseek_v3", "qwen3_5", "opt", "gpt2"])
def test_architectures_give_the_logits_of_float32(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of tests/helpers/architectures.py."""
    monkeypatch.setattr(half_weights, "_LEAST", 1)
    assert shape in SHAPES | HYBRIDS | OTHERS
    model = tiny_model(shape).half()
    plain, packed = copy.deepcopy(model).float(), copy.deepcopy(model)
    token_ids = torch.arange(18).reshape(2, 9)
    assert suit_cpu_(packed)
    expected = plain(input_ids=token_ids).logits
    torch.testing.assert_close(packed(input_ids=token_ids).logits, expected, rtol=1e-4, atol=1e-4)
    unpack_(packed)
    torch.testing.assert_close(packed(input_ids=token_ids).logits, expected, rtol=1e-5, atol=1e-5)
