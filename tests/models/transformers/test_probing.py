"""The probe that runs when a model is taken: what it refuses, what it lets pass, and that it leaves no trace."""

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import gen
from benchmarks.architectures.tiny_models import tiny_model as listed_model
from gen.models.transformers.probing import TOLERANCE, distance, tolerance_of
from gen.models.transformers.rows import TransformersRows
from tests.helpers import HYBRIDS, SHAPES, byte_tokenizer, plain_greedy, tiny_model
from tests.models.transformers.vision_helpers import FAMILIES, tiny_processor, tiny_vision_model

WRONG = ["bart", "blenderbot", "marian", "mbart", "mvp", "pegasus", "bigbird_pegasus", "plbart", "trocr", "roformer"]
WRONG += ["camembert", "rwkv"]
FAILING = ["minimax", "openai-gpt", "cpmant", "xlnet"]
CPU = torch.device("cpu")
NOT_IN_FLOAT64 = {  # in transformers itself
    **dict.fromkeys(("mixtral", "qwen3_next", "jamba", "nemotron_h", "granitemoehybrid"), "gen cannot run .*Double"),
}


@pytest.mark.parametrize("name", WRONG)
def test_models_that_would_be_run_wrongly_are_refused_with_what_differs(name: str) -> None:
    found = r"its logits for row [01] of a batch of prompts of 7 and 3 tokens, after [012] new tokens, "
    size = (
        r"differ from its own forward of that prompt alone by [\d.e-]+ of their spread, more than the 0.01 that float32"
    )
    with pytest.raises(gen.ModelError, match=rf"gen would run \w+ForCausalLM wrongly: {found}{size}"):
        gen.from_transformers(listed_model(name), byte_tokenizer())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_in_modules_are_refused_in_any_dtype(dtype: torch.dtype) -> None:
    model = listed_model("recurrent_gemma").to(dtype)
    with pytest.raises(gen.ModelError, match="RecurrentGemmaForCausalLM keeps its recurrent states in modules"):
        gen.from_transformers(model, byte_tokenizer())


@pytest.mark.parametrize("name", FAILING)
def test_models_whose_forward_fails_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(gen.ModelError, match=r"gen cannot run \w+: \w+Error: |keeps keys beside those of its tokens"):
        gen.from_transformers(listed_model(name), byte_tokenizer())


def compress(hf_model: PreTrainedModel) -> None:
    """Keep linear layers' weights as compressed-tensors does: a hook before the first forward makes them anew."""
    linear = [part for part in hf_model.modules() if isinstance(part, nn.Linear)]
    for part in linear:
        part._parameters["packed"] = part._parameters.pop("weight")

    def unpack(model: Any, args: object) -> None:
        for part in linear:
            part._parameters = {"weight": part._parameters["packed"], "bias": None}
        model.ct_decompress_hook.remove()
        del model.ct_decompress_hook

    hf_model.ct_decompress_hook = hf_model.register_forward_pre_hook(unpack)


def test_the_probe_leaves_weights_whole_that_the_first_forward_unpacks() -> None:
    hf_model = tiny_model()
    expected = plain_greedy(hf_model, [1, 2, 3], 8)
    compress(hf_model)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    greedy = gen.samplers.greedy()
    text = gen.generate(model, [1, 2, 3], sampler=greedy, max_new_tokens=8, eos_token_id=[], details=True)
    assert list(text.token_ids) == expected == plain_greedy(hf_model, [1, 2, 3], 8)


class Laid(nn.Module):
    """A layer like gptqmodel's: its weight is a buffer, which its first forward puts into another layout."""

    __module__ = "gptqmodel.nn_modules"
    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.laid = False

    def forward(self, states: Tensor) -> Tensor:
        if not self.laid:
            self.weight, self.laid = self.weight.t().contiguous(), True
        return states @ self.weight


def test_layers_that_their_first_forward_lays_out_anew_stay_whole_and_are_no_checkpoint(tmp_path: Path) -> None:
    hf_model: Any = tiny_model()
    expected = plain_greedy(hf_model, [1, 2, 3], 8)
    for layer in hf_model.model.layers:
        layer.mlp.down_proj = Laid(layer.mlp.down_proj.weight.detach())
    model = gen.from_transformers(hf_model, byte_tokenizer())
    settings: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 8, "eos_token_id": [], "details": True}
    assert list(gen.generate(model, [1, 2, 3], **settings).token_ids) == expected
    hf_model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()  # its owner trains on
    with pytest.raises(gen.ModelError, match="it has layers of the kind Laid, which may depend on the batch"):
        gen.generate(model, [1, 2, 3], exact=True, **settings)
    with pytest.raises(gen.ModelError, match=r"copy the checkpoint's folder instead"):
        model.save(tmp_path / "new")


def test_compressed_weights_on_several_devices_are_refused() -> None:
    hf_model = tiny_model()
    compress(hf_model)
    hf_model.hf_device_map = {"model": 0, "lm_head": 1}
    with pytest.raises(
        gen.ModelError, match=r"compressed-tensors cannot unpack on several devices; give one device, or q"
    ):
        gen.from_transformers(hf_model, byte_tokenizer())


def test_a_model_without_a_static_cache_is_refused_with_or_without_the_probe() -> None:
    config = transformers.DeepseekV4Config(num_hidden_layers=2)
    with torch.device("meta"):
        model = transformers.DeepseekV4ForCausalLM(config)
    for probe in (True, False):
        with pytest.raises(gen.ModelError, match="gen cannot run DeepseekV4ForCausalLM: it has no static cache"):
            gen.from_transformers(model.eval(), byte_tokenizer(), probe=probe)


def test_probe_false_takes_the_model_all_the_same() -> None:
    model = gen.from_transformers(listed_model("bart"), byte_tokenizer(), probe=False)
    assert len(gen.generate(model, "hello", max_new_tokens=4, seed=1, details=True).token_ids) == 4


@pytest.mark.parametrize(
    ("dtype", "seed"), [(torch.float64, 0), (torch.float32, 1), (torch.float16, 0), (torch.bfloat16, 1)]
)
@pytest.mark.parametrize("shape", [*SHAPES, *HYBRIDS])
def test_right_models_pass_in_every_type(shape: str, dtype: torch.dtype, seed: int) -> None:
    if dtype == torch.float64 and shape in NOT_IN_FLOAT64:
        with pytest.raises(gen.ModelError, match=NOT_IN_FLOAT64[shape]):
            gen.from_transformers(tiny_model(shape).to(dtype), byte_tokenizer())
        return
    gen.from_transformers(tiny_model(shape, seed=seed).to(dtype), byte_tokenizer())


@pytest.mark.parametrize("family", FAMILIES)
def test_vision_models_pass_and_keep_nothing(family: str) -> None:
    model = tiny_vision_model(family)
    before = attributes(model)
    gen.from_transformers(model, tiny_processor(family))
    assert attributes(model) == before


def _nothing(*_: Any) -> None:
    """Stands in for a method that was forgotten."""


def _states_alone(rows: Any, view: int) -> Any:
    return [(tensor[..., :view, :] if columns else tensor, axis) for tensor, axis, columns in rows._sides]


def _counts_alone(rows: Any, view: int) -> Any:
    return [(rows._counts[:2], 1)]


def _no_recurrent_states(rows: Any, view: int) -> Any:
    columns = [(tensor[..., :view, :], axis) for tensor, axis, columns in rows._sides if columns]
    return [*columns, *_counts_alone(rows, view)]


def _copy_columns(state: Any, source: int, targets: slice, view: int) -> None:
    for columns in state.columns.values():
        columns[targets] = columns[source]


def _all_columns(masks: Any, kind: str, queries: Tensor, columns: Tensor) -> Tensor:
    """A faulty mask: it shows padding and what earlier texts left."""
    return (columns >= 0).expand(*queries.shape, -1)


ROWS = "gen.models.transformers.rows.TransformersRows"
MISTAKES = {
    "rows are not reordered": (f"{ROWS}.reorder", _nothing),
    "rows are not copied": (f"{ROWS}.copy", _nothing),
    "lengths are not moved": (f"{ROWS}._tensors", _states_alone),
    "keys and values are not moved": (f"{ROWS}._tensors", _counts_alone),
    "recurrent states are not moved": (f"{ROWS}._tensors", _no_recurrent_states),
    "recurrent states are not copied": ("gen.models.transformers.layer_state.LayerState.copy", _copy_columns),
    "recurrent states are not filled": ("gen.models.transformers.layer_state.LayerState.write_summaries", _nothing),
    "masks hide nothing": ("gen.models.transformers.masks.Masks._seen", _all_columns),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_rows_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen3_next" if "recurrent" in mistake else "llama")
    gen.from_transformers(model, byte_tokenizer())
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(gen.ModelError, match=r"wrongly: its logits for row . .*, after [012] new tokens"):
        gen.from_transformers(model, byte_tokenizer())


def test_a_mistake_of_a_row_that_is_filled_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = TransformersRows.prefill

    def after_what_was_there(rows: Any, where: slice, prompts: Any) -> Tensor:
        return prefill(rows, where, prompts, [min(2, int(rows._column[where.start]))] * len(prompts))

    monkeypatch.setattr(f"{ROWS}.prefill", after_what_was_there)
    with pytest.raises(gen.ModelError, match=r"wrongly: its logits for row 0 .*, after 0 new tokens"):
        gen.from_transformers(tiny_model(), byte_tokenizer())


def test_a_mistake_is_found_in_every_type_and_layer_type() -> None:
    """GPT-2 without its positions: the smallest mistake that the probe must still find in bfloat16."""
    for dtype in TOLERANCE:
        model = tiny_model("gpt2").to(dtype)
        forward = model.forward

        def without_positions(*args: Any, position_ids: Any = None, _forward: Any = forward, **kwargs: Any) -> Any:
            return _forward(*args, **kwargs)

        model.forward = without_positions
        with pytest.raises(gen.ModelError, match="gen would run GPT2LMHeadModel wrongly: its logits for row 1"):
            gen.from_transformers(model, byte_tokenizer())


def attributes(model: nn.Module) -> list[dict[str, int]]:
    """The attributes of each module, by identity."""
    return [{name: id(value) for name, value in vars(module).items()} for module in model.modules()]


@pytest.mark.parametrize("shape", ["llama", "mixtral", "qwen3_next"])
def test_the_probe_leaves_no_trace(shape: str) -> None:
    model = tiny_model(shape)
    torch.manual_seed(5), random.seed(5)
    before = attributes(model), torch.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    gen.from_transformers(model, byte_tokenizer())
    after = attributes(model), torch.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled()
    assert after == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_random_numbers_and_attributes_of_a_forward_that_fails_are_put_back() -> None:
    model = tiny_model()

    def draw(module: Any, *_: Any) -> None:
        module.drawn = torch.rand(3)
        raise ValueError("no")

    model.register_forward_hook(draw)
    state = torch.get_rng_state()
    with pytest.raises(gen.ModelError, match="gen cannot run LlamaForCausalLM: ValueError: no"):
        gen.from_transformers(model, byte_tokenizer())
    assert torch.equal(torch.get_rng_state(), state)
    assert not hasattr(model, "drawn")


def test_it_takes_ten_forwards_of_at_most_sixteen_tokens_a_row() -> None:
    model, shapes = tiny_model(), []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    gen.from_transformers(model, byte_tokenizer())
    plain = [(2, 8), (3, 1), (3, 1), (1, 16), (1, 9), (1, 5)]
    assert shapes == [*plain, (2, 8), (2, 4), (2, 4), (2, 1)]  # the last are steps that read several tokens


def test_special_tokens_stay_out_of_it() -> None:
    model, seen = tiny_model(), set()
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(30)])
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.update(kwargs["input_ids"][kwargs["input_ids"] > 0].tolist()), with_kwargs=True
    )
    gen.from_transformers(model, tokenizer)
    assert len(seen) > 10
    assert max(seen) < 256


@pytest.mark.parametrize("context", [1, 2, 3, 4, 8])
def test_a_short_context_shortens_the_prompts(context: int) -> None:
    model = gen.from_transformers(tiny_model("gpt2", n_positions=context), byte_tokenizer())
    assert model.context_length == context


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_tokenizer_may_have_few_ids_and_all_of_them_special(tokens: int) -> None:
    from tokenizers import Tokenizer, models

    words = [f"<{number}>" for number in range(tokens)]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<0>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=words)
    gen.from_transformers(tiny_model(), tokenizer)


def test_the_callers_autocast_and_default_device_do_not_matter() -> None:
    for shape in ("gpt_neo", "llama"):
        model = tiny_model(shape)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            taken: Any = gen.from_transformers(model, byte_tokenizer())
        assert taken.goes_wide == (shape == "llama")


@pytest.mark.parametrize("shape", ["gpt2", "gpt_neo"])
def test_quantised_weights_are_compared_with_the_models_own_batch_padded_as_gen_pads_it(shape: str) -> None:
    right: Any = tiny_model(shape)
    wrong: Any = listed_model("bart")
    given: list[torch.Tensor] = []
    right.register_forward_pre_hook(lambda _, args, kwargs: given.append(kwargs["input_ids"]), with_kwargs=True)
    for model in (right, wrong):
        model.is_quantized = True
    gen.from_transformers(right, byte_tokenizer())
    prompts, whole = given[0], next(one for one in given if one.shape == (2, 9))
    assert prompts.shape == (2, 8 if shape == "gpt2" else 7)
    shorter = prompts[1].tolist()
    if shape == "gpt2":  # on the right, with the row's own last token
        assert shorter[3:] == shorter[2:3] * 5
        assert whole[1, :3].tolist() == shorter[:3] and len({*whole[1, 4:].tolist()}) == 1
    else:  # its windows are counted from the end
        assert shorter[:4] == shorter[4:5] * 4
        assert whole[1, 4:7].tolist() == shorter[4:] and whole[1, :4].tolist() == shorter[:4]
    with pytest.raises(gen.ModelError, match="differ from its own forward of the same batch"):
        gen.from_transformers(wrong, byte_tokenizer())
    lost: Any = listed_model("rwkv")
    lost.is_quantized = True
    with pytest.raises(
        gen.ModelError, match=r"forward of the same batch by .*, more than the 0.2 that quantised weights"
    ):
        gen.from_transformers(lost, byte_tokenizer())


def test_fast_float32_has_the_tolerance_of_its_digits() -> None:
    assert tolerance_of(tiny_model()) == (0.01, "float32")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert tolerance_of(tiny_model()) == (0.05, "TensorFloat-32")
    finally:
        torch.set_float32_matmul_precision(before)
    assert tolerance_of(tiny_model().to(torch.bfloat16)) == (0.2, "bfloat16")


def test_offloaded_models_are_let_pass_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    from accelerate import cpu_offload  # type: ignore[import-untyped]

    model = listed_model("bart")
    with caplog.at_level(logging.WARNING, logger="gen"):
        taken = gen.from_transformers(cpu_offload(model, execution_device=torch.device("cpu")), byte_tokenizer())
    assert taken.placement.offloaded
    assert "BartForCausalLM has offloaded weights and is not probed" in caplog.text


def test_the_distance_is_in_units_of_the_spread_and_sees_what_is_not_finite() -> None:
    logits = torch.tensor([1.0, 3.0, 5.0, 7.0])
    assert distance(logits + 0.5, logits) == pytest.approx(0.5 / 5**0.5)
    assert distance(100 * logits + 50, 100 * logits) == pytest.approx(0.5 / 5**0.5)
    masked = torch.tensor([1.0, 2.0, 3.0, -torch.inf, torch.finfo(torch.float32).min])
    assert distance(masked + 0.1, masked) == pytest.approx(0.1 / (2 / 3) ** 0.5)
    assert distance(masked.nan_to_num(neginf=0.0), masked) == float("inf")
    assert distance(1e30 * logits + 5e29, 1e30 * logits) == pytest.approx(0.5 / 5**0.5)
    assert distance(torch.full((4,), torch.nan), torch.full((4,), torch.nan)) == 0
    assert distance(torch.tensor([torch.nan, 3.0, 5.0, 7.0]), logits) == float("inf")
    assert distance(torch.zeros(4), torch.zeros(4)) == 0
