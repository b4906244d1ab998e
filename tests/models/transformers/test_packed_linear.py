"""Models with packed layers: the oracle is the same model without them."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gen
from benchmarks.cases.bits import compare, compare_prompts
from gen import doctor
from gen.models.transformers import packed_linear
from gen.models.transformers.packed_linear import PackedLinear, pack_
from gen.models.transformers.packed_weight import PackedWeight
from tests.helpers import byte_tokenizer, stored, tiny_model
from tests.helpers.architectures import HYBRIDS, OTHERS, SHAPES
from tests.helpers.demo import short_demo
from tests.models.transformers.test_cpu_layouts import needs
from virtual_gpus import virtual_gpus

PROMPTS = ["Once upon a time", "x", "to be or not to be, that is the question"]
SIZES: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 520, "num_hidden_layers": 2}
DTYPES = [torch.float16, torch.float32, torch.bfloat16]


def packed_weights(model: nn.Module) -> int:
    return sum(isinstance(weight, PackedWeight) for weight in model.parameters())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float16 checkpoint, whose layers have 576 and 520 inputs."""
    return stored(tiny_model(**SIZES, tie_word_embeddings=True).half(), tmp_path_factory.mktemp("half"))


@pytest.fixture
def packed(saved: Path, small_layers: None) -> Any:
    needs(torch.float16)
    return gen.load(saved, device="cpu")


def test_a_float16_checkpoint_gives_the_texts_of_float32(saved: Path, packed: Any) -> None:
    plain = gen.load(saved, device="cpu", dtype="float32")
    assert str(packed.placement) == "cpu (float32, weights float16)"
    assert packed_weights(packed.hf_model) == 15
    settings: dict[str, Any] = {"sampler": gen.samplers.multinomial(), "seed": 3, "max_new_tokens": 20}
    texts = gen.generate(plain, PROMPTS, **settings)
    assert gen.generate(packed, PROMPTS, **settings) == texts
    assert [gen.generate(packed, prompt, **settings) for prompt in PROMPTS] == texts
    assert gen.generate(packed, PROMPTS, **settings, replay=False) == texts
    with pytest.raises(gen.ModelError, match="its float16 weights are packed"):
        packed.find_step_rows()
    diagnosis = doctor.diagnose(str(saved), device="cpu", virtual=0)
    assert diagnosis.as_dict()["placement"]["packed_dtype"] == "float16"


def test_moved_to_a_gpu_it_is_a_model_of_float32(saved: Path, packed: Any) -> None:
    plain, settings = gen.load(saved, device="cpu", dtype="float32"), dict[str, Any](seed=3, max_new_tokens=12)
    with virtual_gpus(2):
        moved = gen.from_transformers(copy.deepcopy(packed.hf_model).to("cuda:1"), byte_tokenizer())
        assert str(moved.placement) == "cuda:1 (float32)"
        assert gen.generate(moved, PROMPTS, **settings) == gen.generate(plain, PROMPTS, **settings)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_a_type_that_is_asked_for_is_what_it_is(saved: Path, dtype: str) -> None:
    model = gen.load(saved, device="cpu", dtype=dtype)
    assert str(model.placement) == f"cpu ({dtype})"
    assert packed_weights(model.hf_model) == 0


@pytest.mark.parametrize(
    ("size", "placement"), [(None, "cpu (float32)"), (10**12, "cpu (float32)"), (1, "cpu (float16)")]
)
@pytest.mark.parametrize("pack", [None, False])
def test_unpacked_it_is_float32_where_memory_allows(
    pack: bool | None,
    size: int | None,
    placement: str,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if pack is None:
        monkeypatch.setattr(packed_linear, "can_pack", lambda weight: False)
    monkeypatch.setattr(packed_linear, "available_bytes", lambda: size)
    with caplog.at_level(logging.INFO, "gen"):
        assert str(gen.load(saved, device="cpu", pack=pack).placement) == placement
    assert "in float16" in caplog.text


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["llama", "gemma3", "deepseek_v3", "qwen3_5_text", "opt", "gpt2", "gpt_neo"])
def test_architectures_give_the_logits_of_plain_layers(
    shape: str, dtype: torch.dtype, small_layers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of tests/helpers/architectures.py."""
    needs(dtype)
    monkeypatch.setattr("gen.models.transformers.cpu_layouts._LEAST_INPUTS", 1)
    assert shape in {*SHAPES, *HYBRIDS, *OTHERS}
    model = tiny_model(shape).to(dtype)
    compared = torch.float32 if dtype == torch.float16 else dtype
    plain, packed, exact = copy.deepcopy(model).to(compared), copy.deepcopy(model), copy.deepcopy(model).double()
    token_ids = torch.arange(18).reshape(2, 9)
    if not pack_(packed):
        assert shape == "gpt2"  # its Conv1D are no linear layers, and its head has its embedding's weight
        return
    tied = packed.get_input_embeddings().weight is packed.get_output_embeddings().weight
    assert tied == (plain.get_input_embeddings().weight is plain.get_output_embeddings().weight)
    with torch.no_grad():
        expected, found, torchs = (one(input_ids=token_ids).logits.double() for one in (exact, packed, plain))
        near = 2 * (torchs - expected).square().mean() + 1e-10
        assert (found - expected).square().mean() <= near
        torch.testing.assert_close(packed.double()(input_ids=token_ids).logits, expected)


@pytest.mark.parametrize("shape", ["llama", "gpt_neo", "qwen3_5_text", "mixtral"])
def test_prompts_and_steps_have_them_recorded_or_not(shape: str, small_layers: None) -> None:
    needs(torch.float32)
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer(), pack=True)
    assert packed_weights(model.hf_model)
    arguments: Any = {"sampler": gen.samplers.multinomial(), "seed": 1, "max_new_tokens": 24, "details": True}
    for prompts in (["abc"], ["abc", "d"]):
        recorded = gen.generate(model, prompts, **arguments)
        assert recorded == gen.generate(model, prompts, **arguments, replay=False)


def test_from_transformers_leaves_a_model_alone_unless_it_is_asked(small_layers: None) -> None:
    needs(torch.float32)
    theirs = tiny_model()
    before, state = [type(part) for part in theirs.modules()], copy.deepcopy(theirs.state_dict())
    model = gen.from_transformers(theirs, byte_tokenizer())
    arguments: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 30, "eos_token_id": []}
    text = gen.generate(model, "abc", **arguments)
    assert [type(part) for part in theirs.modules()] == before
    assert all(type(one) is nn.Parameter for one in theirs.parameters())
    assert all(torch.equal(one, state[name]) for name, one in theirs.state_dict().items())
    packed = gen.from_transformers(theirs, byte_tokenizer(), pack=True)
    assert packed.hf_model is theirs and packed_weights(theirs)
    assert gen.generate(packed, "abc", **arguments) == text == gen.generate(model, "abc", **arguments)
    assert packed_weights(gen.from_transformers(theirs, byte_tokenizer()).hf_model)  # it is as it is


@pytest.mark.parametrize("pack", [1, "yes", 0.5])
def test_pack_is_a_flag(pack: Any, saved: Path) -> None:
    unread: Any = None
    with pytest.raises(gen.ArgumentError):
        gen.load(saved, pack=pack)
    with pytest.raises(gen.ArgumentError):
        gen.from_transformers(unread, unread, pack=pack)


def test_what_cannot_be_packed_says_why_and_stays_as_it_is() -> None:
    small = tiny_model()
    with pytest.raises(gen.ModelError, match="pack=True: LlamaForCausalLM has no linear layers that this machine"):
        gen.from_transformers(small, byte_tokenizer(), pack=True)
    half = tiny_model().half()
    with pytest.raises(gen.ModelError, match="pack=True"):
        gen.from_transformers(half, byte_tokenizer(), pack=True)
    assert {one.dtype for one in half.parameters()} == {torch.float16}
    with (
        virtual_gpus(1),
        pytest.raises(gen.ArgumentError, match="pack=True is for models that are on the CPU as a whole"),
    ):
        gen.from_transformers(tiny_model().to("cuda"), byte_tokenizer(), pack=True)


def test_packed_where_that_is_faster_on_this_kind_of_cpu(
    tmp_path: Path, small_layers: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored(tiny_model(), tmp_path)

    def packs(maker: str, instructions: str, dtype: str = "float32") -> bool:
        monkeypatch.setattr(packed_linear, "_maker", lambda: maker)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
        return packed_weights(gen.load(tmp_path, device="cpu", dtype=dtype).hf_model) > 0

    needs(torch.float32)
    assert not packs("AuthenticAMD", "AVX512")  # it fits into caches
    monkeypatch.setattr(packed_linear, "_BEYOND_CACHES", 1)
    with caplog.at_level(logging.INFO, "gen"):
        assert packs("AuthenticAMD", "AVX512")
    assert "pack=False" in caplog.text
    assert not packs("AuthenticAMD", "AVX2") and not packs("GenuineIntel", "AVX512") and not packs("", "DEFAULT")
    assert packs("AuthenticAMD", "AVX512", "bfloat16") == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert not packs("AuthenticAMD", "AVX512", "float64")
    assert packed_weights(gen.load(tmp_path, device="cpu", pack=True).hf_model)
    packs("AuthenticAMD", "AVX512")
    assert not packed_weights(gen.load(tmp_path, device="cpu", pack=False).hf_model)


def test_layers_whose_forward_or_weight_others_have_stay_plain(small_layers: None) -> None:
    needs(torch.float32)
    model = tiny_model(tie_word_embeddings=False, num_hidden_layers=2)
    first, second, third = (model.model.layers[0].mlp.up_proj, model.model.layers[1].mlp.up_proj, model.lm_head)
    first.forward = lambda states: nn.functional.linear(states, first.weight)
    second.other = nn.Bilinear(1, 1, 1)
    second.other.weight = second.weight
    nn.utils.parametrizations.weight_norm(third)
    assert pack_(model)
    assert not any(isinstance(one, PackedWeight) for part in (first, second, third) for one in part.parameters())
    assert isinstance(model.model.layers[0].mlp.down_proj.weight, PackedWeight)


def test_packed_again_after_it_was_unpacked(small_layers: None) -> None:
    needs(torch.float32)
    model = tiny_model()
    count = pack_(model)
    assert pack_(model) == 0
    model.double().float()
    assert packed_weights(model) == 0 and pack_(model) == count


def test_a_compiled_model_has_its_texts(small_layers: None) -> None:
    needs(torch.float32)
    theirs = tiny_model()
    text = gen.generate(gen.from_transformers(theirs, byte_tokenizer()), "abc", seed=1, max_new_tokens=8)
    pack_(theirs)
    compiled = torch.compile(theirs, backend="eager")
    assert gen.generate(gen.from_transformers(compiled, byte_tokenizer()), "abc", seed=1, max_new_tokens=8) == text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wide_steps_give_the_bits_of_plain_steps(
    dtype: str, small_layers: None, soon_worth_it: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(getattr(torch, dtype))
    monkeypatch.setattr("gen.loop.speculation.widths.Widths.looks", lambda widths, rows: True)
    monkeypatch.setattr("gen.loop.speculation.widths.Widths.choose", lambda widths, count, texts: widths.widest)
    model: Any = gen.load("demo", device="cpu", dtype=dtype, pack=True)
    try:
        rows = model.find_step_rows()
    except gen.ModelError as reason:
        pytest.skip(f"this machine promises no equal bits: {reason}")
    if rows > 1:
        pytest.skip("on this machine a single row is summed in another order than several")
    arguments: Any = {"max_new_tokens": 60, "details": True, "seed": [1, 2, 3], "top_logprobs": 3}
    prompts = ["ha ha ha ha ha ha", "Once upon a time", "Describe Ada as JSON.\n"]
    plain = gen.generate(model, prompts, **arguments, speculate=False)
    wide = gen.generate(model, prompts, **arguments, speculate=gen.Speculation(most=7))
    assert sum(one.accepted for one in wide) > 1
    assert wide == plain


def test_with_them_texts_are_exact_and_prompts_have_the_same_bits(small_layers: None) -> None:
    needs(torch.float32)
    plain: Any = short_demo()
    try:
        plain.find_step_rows()
    except gen.ModelError as reason:
        pytest.skip(f"this machine promises no equal bits without them either: {reason}")
    model: Any = gen.from_transformers(plain.hf_model, plain.tokenizer._tokenizer, pack=True)
    assert isinstance(model.hf_model.model.layers[0].mlp.up_proj, PackedLinear)
    model.find_step_rows()
    assert compare(model, 12, longest=70, new_tokens=9).none
    assert compare_prompts(model, 12, longest=200) == 0
