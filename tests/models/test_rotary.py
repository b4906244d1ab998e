"""Rotations of positions: no text depends on what is read beside it, or was read before; the oracle is transformers."""

import copy
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import gen
from gen.errors import ArgumentError, ContextError, ModelError
from gen.models.rotary import read_context
from gen.models.transformers.model import TransformersModel
from tests.helpers import by_transformers, byte_tokenizer, stored, tiny_model

GREEDY = gen.samplers.greedy()
TRAINED, MOST = 48, 160  # tokens
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": TRAINED, "factor": MOST / TRAINED}
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [9.0, 5.0, 7.0, 20.0]}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": LONGROPE | FACTORS,
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 16},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}
LAYERS = {"sliding_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}}


SHORT = (2, 7, 20, 47)


def model_of(kind: str) -> PreTrainedModel:
    """A tiny model whose texts vary, with a context of 48 tokens, or 160 if it has a set of factors for each."""
    positions = MOST if "longrope" in kind else TRAINED
    shape, name = kind.split(" ") if " " in kind else ("llama", kind)
    rope = {"rope_theta": 1e4} | ROPES[name]
    settings: dict[str, Any] = {"max_position_embeddings": positions}
    if shape.startswith("phi"):
        settings |= {"hidden_size": 32, "head_dim": 8, "sliding_window": None}
    if shape == "phi3":
        settings["original_max_position_embeddings"] = TRAINED
    if shape == "phimoe":
        rope |= {"short_mscale": 1.1, "long_mscale": 1.6}
    if shape == "gemma3":
        rope = {"full_attention": rope} | LAYERS
    return tiny_model(shape, **settings, rope_parameters=rope)


def taken(hf_model: PreTrainedModel, folder: Path | None, **settings: Any) -> Any:
    """The adapter of a caller's model, or of one that is saved in a folder and loaded."""
    if folder is None:
        return gen.from_transformers(hf_model, byte_tokenizer(), **settings)
    return gen.load(stored(hf_model, folder), device="cpu", **settings)


def prompts_of(*lengths: int) -> list[list[int]]:
    return [[3 + (7 * index + 31 * number) % 250 for index in range(length)] for number, length in enumerate(lengths)]


def by_a_fresh_model(model: PreTrainedModel, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """The text of a prompt alone, by a model that has read nothing before."""
    return by_transformers(copy.deepcopy(model), prompt, new_tokens, suppress_tokens=[*range(259, 300)])


def by_gen(model: Any, prompts: list[list[int]], new_tokens: int = 8, **settings: Any) -> list[list[int]]:
    made = gen.generate(model, prompts, sampler=GREEDY, max_new_tokens=new_tokens, details=True, **settings)
    return [completion.token_ids for completion in made]


def test_every_rope_type_of_transformers_is_here() -> None:
    assert {"default", *ROPE_INIT_FUNCTIONS} == ROPES.keys()


MIXED = ["phi3 longrope", "phimoe longrope", "gemma3 dynamic", "gemma3 longrope"]
LOADED = ["dynamic", "longrope", "phimoe longrope", "gemma3 dynamic"]  # others have nothing that is set at load


@pytest.mark.parametrize(
    ("kind", "loaded"), [*((kind, False) for kind in (*ROPES, *MIXED)), *((kind, True) for kind in LOADED)]
)
def test_a_text_is_that_of_its_prompt_alone_whatever_is_beside_it_and_was_read_before(
    kind: str, loaded: bool, tmp_path: Path
) -> None:
    hf_model = model_of(kind)
    prompts = prompts_of(3, 40, 17, 33, 40)
    expected = [by_a_fresh_model(hf_model, prompt, 8) for prompt in prompts]
    assert len({*map(tuple, expected)}) > 3, "the texts hardly vary"
    model = taken(hf_model, tmp_path if loaded else None)
    assert model.context_length == TRAINED
    for _ in range(2):
        assert by_gen(model, prompts) == expected
        with torch.inference_mode():
            model.hf_model(torch.tensor(prompts_of(100)))  # the caller's own: beyond what short factors are for
    assert [by_gen(model, [prompt])[0] for prompt in prompts] == expected
    with gen.Engine(model, rows=2) as engine:
        streams = [engine.submit(prompt, sampler=GREEDY, max_new_tokens=8) for prompt in prompts]
        assert [stream.completion().token_ids for stream in streams] == expected


@pytest.mark.parametrize(
    ("kind", "loaded"),
    [("longrope", True), ("phi3 longrope", False), ("phimoe longrope", False), ("gemma3 longrope", True)],
)
def test_a_longer_context_takes_the_long_factors_for_every_text(
    kind: str, loaded: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The oracle: transformers on a text that has more tokens than short factors are for; it sees the whole at once."""
    hf_model = model_of(kind)
    long = prompts_of(TRAINED + 1, 90, 130)
    expected = [by_a_fresh_model(hf_model, prompt, 8) for prompt in long]
    untouched = copy.deepcopy(hf_model)
    with caplog.at_level(logging.INFO, logger="gen"):
        model = taken(hf_model, tmp_path if loaded else None, context_length=150)
    told = [record.getMessage() for record in caplog.records if "factors" in record.getMessage()]
    assert len(told) == 1 and "its long factors in all texts of up to 150 tokens" in told[0]
    assert model.context_length == 150
    assert by_gen(model, long) == expected
    whole = prompts_of(120)[0]  # its short beginnings have the long factors, too
    with torch.inference_mode():
        logits = untouched(torch.tensor([whole])).logits[0, :, :259]  # more ids than the tokenizer has
    wanted = logits.log_softmax(-1).amax(-1)[[length - 1 for length in SHORT]]
    made = gen.generate(model, [whole[:length] for length in SHORT], sampler=GREEDY, max_new_tokens=1, details=True)
    found = torch.tensor([completion.logprobs[0] for completion in made])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    model.hf_model.save_pretrained(tmp_path)
    saved = type(hf_model).from_pretrained(tmp_path)  # as it was
    assert torch.equal(saved(torch.tensor(prompts_of(20))).logits, untouched(torch.tensor(prompts_of(20))).logits)


@pytest.mark.parametrize("loaded", [False, True])
def test_dynamic_frequencies_for_longer_texts_are_those_of_a_text_as_long_as_the_context(
    loaded: bool, tmp_path: Path
) -> None:
    hf_model = model_of("dynamic")
    whole = prompts_of(100)[0]
    with torch.inference_mode():
        expected = copy.deepcopy(hf_model)(torch.tensor([whole])).logits[0, :, :259].log_softmax(-1).amax(-1)
    model = taken(hf_model, tmp_path if loaded else None, context_length=100)
    lengths = (3, 40, 70, 99)
    made = gen.generate(model, [whole[:one] for one in lengths], sampler=GREEDY, max_new_tokens=1, details=True)
    found = torch.tensor([completion.logprobs[0] for completion in made])
    torch.testing.assert_close(found, expected[[one - 1 for one in lengths]], rtol=0, atol=1e-4)


def test_frequencies_of_a_models_own_rule_stay_at_load() -> None:
    """As HunYuan's with an alpha, whose rotation is called dynamic in transformers 5.17."""
    hf_model = model_of("dynamic")
    embedding: Any = hf_model.model.rotary_emb
    for own in (embedding.inv_freq, embedding.original_inv_freq):
        own.mul_(torch.tensor([1.0, 0.7, 0.5, 0.3]))
    expected = by_a_fresh_model(hf_model, prompts_of(40)[0], 8)
    model = TransformersModel(hf_model, byte_tokenizer(), own=True)
    assert by_gen(model, prompts_of(40)) == [expected] != [by_a_fresh_model(model_of("dynamic"), prompts_of(40)[0], 8)]


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "gemma3 dynamic", "phimoe longrope"])
def test_the_callers_model_still_chooses_for_the_callers_texts(kind: str) -> None:
    hf_model = model_of(kind)
    texts = [torch.tensor(prompts_of(length)) for length in (20, 100, 20)]
    expected = [copy.deepcopy(hf_model)(text).logits for text in texts]
    model = gen.from_transformers(hf_model, byte_tokenizer())
    for text, logits in zip(texts, expected, strict=True):
        by_gen(model, prompts_of(5))
        assert torch.equal(hf_model(text).logits, logits)


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "phi3 longrope"])
def test_steps_are_recorded_and_beginnings_stay_read(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hf_model = model_of(kind)
    with caplog.at_level(logging.INFO, logger="gen"):
        for model in (taken(hf_model, tmp_path), taken(hf_model, None)):
            with gen.Engine(model) as engine:
                texts = [engine.submit(prompts_of(36)[0], sampler=GREEDY).completion() for _ in range(3)]
            assert texts[0].token_ids == texts[1].token_ids == texts[2].token_ids
            assert texts[2].cached_tokens >= 32
    told = [record.getMessage() for record in caplog.records if "not replayed" in record.getMessage()]
    assert len(told) == (kind == "dynamic"), "a model that is the caller's, too, asks for the largest position"


def test_beginnings_stay_read_where_the_frequencies_lie_elsewhere_by_now() -> None:
    model = taken(model_of("longrope"), None)
    model.hf_model.double()
    with gen.Engine(model) as engine:
        texts = [engine.submit(prompts_of(36)[0], sampler=GREEDY).completion() for _ in range(3)]
    assert texts[2].cached_tokens >= 32


def test_a_context_length_is_a_bound_and_more_than_the_config_allows_is_refused() -> None:
    hf_model, tokenizer = model_of("default"), byte_tokenizer()
    model = gen.from_transformers(hf_model, tokenizer, context_length=20)
    assert model.context_length == 20
    assert by_gen(model, prompts_of(15), new_tokens=30) == [by_a_fresh_model(hf_model, prompts_of(15)[0], 5)]
    with pytest.raises(ContextError, match="context of 20 "):
        by_gen(model, prompts_of(20))
    for asked in (TRAINED + 1, 10**6):
        with pytest.raises(ArgumentError, match=f"at most {TRAINED}, .* got {asked}; .* rope_parameters"):
            gen.from_transformers(hf_model, tokenizer, context_length=asked)
    for wrong in (1, 0, -1, 2.5, "48", True):
        with pytest.raises(ArgumentError, match="context_length must be a whole number"):
            gen.from_transformers(hf_model, tokenizer, context_length=wrong)  # type: ignore[arg-type]


def test_a_limit_under_another_name_is_read() -> None:
    model = gen.from_transformers(tiny_model("mpt", max_seq_len=64), byte_tokenizer())
    assert model.context_length == 64
    [made] = gen.generate(model, prompts_of(40), sampler=GREEDY, max_new_tokens=30, eos_token_id=[], details=True)
    assert len(made.token_ids) == 24 and made.finish_reason == "length"


@pytest.mark.parametrize(
    ("rope", "positions", "usual", "most"),
    [
        (None, 100, 100, 100),
        (None, None, sys.maxsize, sys.maxsize),
        (None, -1, sys.maxsize, sys.maxsize),
        ({"rope_type": "linear", "factor": 4.0}, 100, 100, 400),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 100, 100, 400),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400, 400, 400),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 100}, 1000, 1000, 1000),
        ({"type": "su", "original_max_position_embeddings": 40}, 400, 40, 400),
        ({"a": {"rope_type": "default"}, "b": {"rope_type": "linear", "factor": 4.0}}, 100, 100, 100),
    ],
)
def test_what_a_config_allows(rope: Any, positions: int | None, usual: int, most: int) -> None:
    for name in ("rope_parameters", "rope_scaling"):
        context = read_context(SimpleNamespace(**{name: rope}), positions, None)
        assert (context.length, context.usual, context.most) == (usual, usual, most)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_model_whose_own_code_chooses_has_no_longer_context(kind: str) -> None:
    hf_model, tokenizer = model_of(kind), byte_tokenizer()
    del hf_model.model.rotary_emb.rope_type  # as in code that comes with a checkpoint
    with pytest.raises(ArgumentError, match=r"at most 48, got 49: LlamaForCausalLM chooses .* in code of its own"):
        gen.from_transformers(hf_model, tokenizer, context_length=TRAINED + 1, probe=False)
    assert gen.from_transformers(hf_model, tokenizer, probe=False).context_length == TRAINED


def test_one_model_has_one_choice() -> None:
    hf_model, tokenizer = model_of("longrope"), byte_tokenizer()
    short = gen.from_transformers(hf_model, tokenizer)
    long = gen.from_transformers(hf_model, tokenizer, context_length=100)
    with pytest.raises(ModelError, match="another context_length after you gave it to gen; load the model twice"):
        by_gen(short, prompts_of(5))
    by_gen(long, prompts_of(5))
    assert gen.from_transformers(hf_model, tokenizer).context_length == 100
    assert gen.from_transformers(hf_model, tokenizer, context_length=60).context_length == 60
    with pytest.raises(ArgumentError, match="was set to a context of 100 tokens when it was loaded"):
        gen.from_transformers(hf_model, tokenizer, context_length=TRAINED)
