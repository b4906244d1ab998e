"""Rows of transformers models that come and go, compared with transformers itself on each prompt alone.

Greedy texts are compared with a plain forward of each, without cache, padding or mask, and beams with generate.

Every kind of architecture: windows, chunks, ALiBi, shared keys and values, recurrent layers, images; eager and sdpa.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import gen
from gen.loop import runner
from gen.loop.decoder import Decoder
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.loop.searches.by_sampler import kind_of_search
from gen.models.base import Inputs
from gen.models.transformers import rows
from gen.models.transformers.aligned_rows import AlignedRows
from gen.models.transformers.layer_state import LayerState, Side, side_by_side
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from gen.requests.images import Illustrated
from gen.requests.request import Request
from gen.runtime.streams import Streams
from gen.samplers import Sampler
from gen.stages.penalties import PenaltyStage
from tests.helpers import HYBRIDS, OTHERS, SHAPES, by_transformers, byte_tokenizer, plain_choices, tiny_model
from tests.helpers.noting import noted
from tests.models.transformers.vision_helpers import FAMILIES, PICTURES, prompts, tiny_processor, tiny_vision_model
from virtual_gpus import virtual_gpus

EAGER_ALONE = ("bloom", "gpt_neo", "gemma2", "gpt_oss", "mpt")  # in transformers
ALIGNED = ("gpt_neo",)  # its rows are filled all at once, and its cache grows by one column a step
INEXACT_STEPS = ("nemotron_h",)  # its steps differ from its forward of all tokens by a hundredth, in transformers
ARCHITECTURES = [*SHAPES, *HYBRIDS, *OTHERS]
OTHER_KINDS = ["qwen3_5_text", "bamba", "mistral", "qwen2", "llama4_text", "gemma3n_text", "falcon_alibi"]
KINDS = [*SHAPES, *OTHER_KINDS]
LIKELY = [(shape, "eager" if shape in EAGER_ALONE else "sdpa") for shape in ARCHITECTURES]
ATTENTIONS = [*LIKELY, *((shape, "eager") for shape in KINDS if shape not in EAGER_ALONE)]  # a mask has two forms


@pytest.fixture(autouse=True)
def rows_look_each_at_their_own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows look at their own columns, as in large models; in tiny ones separate calls would not pay."""
    monkeypatch.setattr("gen.attention.plan._CALL", 0)


generator = torch.Generator().manual_seed(0)
PROMPTS = [torch.randint(1, 250, (length,), generator=generator).tolist() for length in (11, 4, 1, 6, 30, 16)]
REFILLED, IN_PARTS, GROWN = [8, 4, 6, 7, 5, 3], [5, 6, 5, 4, 3, 4], [10, 8, 6, 8, 13]  # new tokens


@cache
def model_of(shape: str, attention: str) -> PreTrainedModel:
    return tiny_model(shape, vocab_size=259, attn_implementation=attention)


def check_greedy(
    hf_model: PreTrainedModel,
    found: Sequence[Sequence[int]],
    limits: Sequence[int],
    prompts: Sequence[Sequence[int]] = PROMPTS,
) -> None:
    """Compare the texts of all prompts, of lengths `limits`, with the text of each prompt alone."""
    assert [*map(len, found)] == limits
    for prompt, tokens in zip(prompts, found, strict=True):
        if hf_model.config.model_type in INEXACT_STEPS:
            assert tokens == by_transformers(hf_model, prompt, len(tokens))
        else:
            assert tokens == plain_choices(hf_model, prompt, tokens)


class Calls:
    """The calls of rows' methods, in order: ("prefill", start, tokens), ("step", rows, view) or ("grow", length, 0)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, int, int]] = []
        for kind in (TransformersRows, AlignedRows):
            noted(monkeypatch, kind, "prefill", self._filled)
            noted(monkeypatch, kind, "step", lambda _, ids, view: self.made.append(("step", len(ids), view)))
            noted(monkeypatch, kind, "grow", lambda _, length: self.made.append(("grow", length, 0)))

    def _filled(self, _: Any, rows: slice, prompts: Any, starts: Any = (), *__: Any, **___: Any) -> None:
        self.made.append(("prefill", max(starts, default=0), sum(map(len, prompts))))

    def of(self, name: str) -> list[tuple[int, int]]:
        """The numbers of all calls of one name."""
        return [(first, second) for called, first, second in self.made if called == name]

    def comes_amid_steps(self, name: str, most: int = 2) -> bool:
        """Whether a call of this name comes after a step of at most `most` rows, and a step comes after it."""
        names = [called for called, _, _ in self.made]
        first, last = names.index("step"), len(names) - names[::-1].index("step")
        return name in names[first:last] and max(rows for rows, _ in self.of("step")) <= most


def ran(
    model: TransformersModel,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    options: Options,
    *,
    sampler: Sampler | None = None,
    inputs: Sequence[Inputs] | None = None,
) -> list[list[int]]:
    """The new tokens of each prompt, in rows that no call has used."""
    model.release()
    jobs = [
        new_job(
            model,
            Request(
                prompt_ids=[*prompt],
                sampler=sampler or gen.samplers.greedy(),
                seeds=(0,),
                limit=limit,
                illustrated=Illustrated(text="", images=(), add_special_tokens=True, inputs=inputs[number])
                if inputs
                else None,
                number=number,
            ),
        )
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    run_all(model, jobs, options)
    return [job.completions()[0].token_ids for job in jobs]


@pytest.mark.parametrize(("shape", "attention"), ATTENTIONS)
def test_refilled_rows_give_what_each_prompt_gives_alone(
    shape: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_model = model_of(shape, attention)
    model, calls = gen.from_transformers(hf_model, byte_tokenizer()), Calls(monkeypatch)
    found = ran(model, PROMPTS, REFILLED, Options(rows=2))
    check_greedy(hf_model, found, REFILLED)
    assert calls.comes_amid_steps("prefill")
    assert len({token for tokens in found for token in tokens}) > 15, "the texts hardly vary"


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("shape", "attention"), LIKELY)
def test_a_prompt_that_is_read_in_parts_while_others_go_on_gives_what_it_gives_as_a_whole(
    shape: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_model = model_of(shape, attention)
    model, calls = gen.from_transformers(hf_model, byte_tokenizer()), Calls(monkeypatch)
    found = ran(model, PROMPTS, IN_PARTS, Options(rows=2, admit_tokens=5))
    check_greedy(hf_model, found, IN_PARTS)
    parts = [tokens for start, tokens in calls.of("prefill") if start]
    if shape in HYBRIDS or shape in ALIGNED:
        assert not parts  # a recurrent layer's state is made from a whole prompt
        return
    assert len(parts) >= 5 + 3 + 2  # parts of the prompts of 30, 16 and 11 tokens, without their first ones
    assert max(parts) <= 5
    amid = zip(calls.made, calls.made[1:], calls.made[2:], strict=False)
    assert any(call[0] == "prefill" and call[1] and {before[0], after[0]} == {"step"} for before, call, after in amid)


@pytest.mark.parametrize("steps", [0, 1, 20])
@pytest.mark.parametrize("kept", [False, True])
def test_what_a_row_was_before_is_cleared_once_where_its_prompt_is_read_in_parts(
    steps: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN stands for the row's old contents; steps of other rows write tokens behind the part that has been read."""
    model, prompt = gen.from_transformers(model_of("llama", "sdpa"), byte_tokenizer()), [*range(1, 49)]
    with torch.inference_mode():
        alone = model.new_rows(2, 96)
        assert isinstance(alone, TransformersRows)
        alone.prefill(slice(0, 2), [[1, 2, 3], prompt[:16]])
        expected, rows = alone.prefill(slice(1, 2), [prompt[16:]], [16]), model.new_rows(2, 96)
        assert isinstance(rows, TransformersRows)
        rows.prefill(slice(0, 2), [[1, 2, 3], [4, 5]])
        tensors = [tensor for state in rows._states for tensor in state.columns.values()]
        for tensor in tensors:
            tensor[1].fill_(math.nan)
        if kept:  # the first part was kept from another text
            rows.load(1, 0, alone.save(1, 0, 16))
        else:
            rows.prefill(slice(1, 2), [prompt[:16]])
        used = noted(monkeypatch, LayerState, "write", lambda state, name, place, states: place.used)
        rows.prefill(slice(1, 2), [prompt[16:32]], [16])
        first = used[:1]
        for _ in range(steps):
            rows.step(torch.tensor([[7], [8]]), 96)
        rows.prefill(slice(1, 2), [prompt[32:48]], [32])
        assert (first, used[-1]) == ([3 if kept else 17], 33 + steps)
        assert not any(tensor[1, ..., 48:, :].any() for tensor in tensors)
        whole = model.new_rows(1, 96).prefill(slice(0, 1), [prompt])
        torch.testing.assert_close(rows.prefill(slice(1, 2), [prompt[47:]], [47]), whole)
    torch.testing.assert_close(expected, whole)


@pytest.mark.parametrize(("shape", "attention"), LIKELY)
def test_rows_that_grow_in_the_middle_of_texts_keep_them(
    shape: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows have room for 32 tokens at first; a prompt of 24 reaches that when all four rows are in use."""
    hf_model = model_of(shape, attention)
    monkeypatch.setattr(runner, "_HEADROOM", 1)
    model, calls = gen.from_transformers(hf_model, byte_tokenizer()), Calls(monkeypatch)
    prompts = [prompt[:24] for prompt in PROMPTS[:5]]
    found = ran(model, prompts, GROWN, Options(rows=4, speculate=False))
    check_greedy(hf_model, found, GROWN, prompts)
    assert calls.comes_amid_steps("grow", most=4)


@pytest.mark.parametrize(("shape", "attention"), LIKELY)
def test_beams_that_refill_rows_are_those_of_transformers(shape: str, attention: str) -> None:
    hf_model = model_of(shape, attention)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    few = PROMPTS[:3]
    found = ran(model, few, [5, 3, 4], Options(rows=4), sampler=gen.samplers.beam_search(2))
    expected = [by_transformers(hf_model, prompt, new, num_beams=2) for prompt, new in zip(few, [5, 3, 4], strict=True)]
    assert found == expected


@pytest.mark.parametrize("shape", ["llama", "qwen3_5_text", "gemma3n_text"])
def test_beams_of_layers_that_lie_side_by_side_are_those_of_layers_by_themselves(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, while rows grow and are filled again; the oracle is the CPU, where nothing is moved."""
    laid: list[Side] = []

    def seen(states: Sequence[LayerState]) -> list[Side]:
        laid[:] = side_by_side(states)
        return laid

    monkeypatch.setattr(rows, "side_by_side", seen)
    monkeypatch.setattr(runner, "_HEADROOM", 32)
    expected = beams_that_grow(gen.from_transformers(model_of(shape, "sdpa"), byte_tokenizer()))
    assert {side.axis for side in laid} == {0}
    with virtual_gpus(1):
        hf_model = tiny_model(shape, vocab_size=259, attn_implementation="sdpa").to("cuda")
        found = beams_that_grow(gen.from_transformers(hf_model, byte_tokenizer(), probe=False))
        assert 1 in {side.axis for side in laid if side.columns}
        assert all(side.tensor.shape[1] == 4 for side in laid if side.axis)
    assert found == expected


def beams_that_grow(model: Any) -> list[list[int]]:
    return ran(model, PROMPTS[:3], [9, 24, 7], Options(rows=4), sampler=gen.samplers.beam_search(2))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_with_images_refill_rows(family: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_model, processor = tiny_vision_model(family), tiny_processor(family)
    hf_model.set_attn_implementation(attention)
    model: Any = gen.from_transformers(hf_model, processor)
    given = [*zip(prompts(family), PICTURES, strict=True), ("and no picture in this longer one", [])]
    limits = [6, 4, 7, 5]
    expected = []
    for (prompt, images), limit in zip(given, limits, strict=True):
        encoded = processor(text=[prompt], images=[images] if images else None, return_tensors="pt")
        found = hf_model.generate(**encoded, max_new_tokens=limit, do_sample=False, pad_token_id=0)
        expected.append(found[0, encoded["input_ids"].shape[1] :].tolist())
    encoded = [model.encode(prompt, images) for prompt, images in given]
    for options in (Options(rows=2), Options(rows=2, admit_tokens=5)):
        with monkeypatch.context() as patches:
            calls = Calls(patches)
            found = ran(model, [ids for ids, _ in encoded], limits, options, inputs=[inputs for _, inputs in encoded])
        assert found == expected
        assert calls.comes_amid_steps("prefill")
        assert any(start for start, _ in calls.of("prefill")) == (options.admit_tokens == 5)


SAMPLERS: dict[str, Sampler] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(temperature=0.9, top_k=20),
    "beams": gen.samplers.beam_search(2),
    "penalties": gen.samplers.greedy(repetition_penalty=1.2, no_repeat_ngram_size=3),
}


@pytest.mark.parametrize(
    ("shape", "sampler"),
    [(shape, "greedy") for shape in ARCHITECTURES if shape not in ALIGNED] + [("llama", name) for name in SAMPLERS],
)
def test_no_memory_moves_in_steps_of_one_length(shape: str, sampler: str) -> None:
    model = gen.from_transformers(model_of(shape, dict(LIKELY)[shape]), byte_tokenizer())
    kind = kind_of_search(SAMPLERS[sampler])
    requests = [Request(prompt_ids=prompt, sampler=SAMPLERS[sampler], seeds=(0,), limit=50) for prompt in PROMPTS[:2]]
    count = kind.width * len(requests)
    with torch.inference_mode():
        rows = Decoder(model, count, 128, kind.key, kind.search, [PenaltyStage], Streams(model.placement))
        rows.begin()
        rows.fill(slice(0, count), requests, [request.prompt_ids for request in requests])
        rows.step(count, 128)
        before, kept = addresses(rows)
        for _ in range(4):
            rows.step(count, 128)
        assert addresses(rows)[0] == before
    assert len(before) > 8
    assert len(kept) == len(before)  # none was freed, so no other tensor can have its address


def addresses(rows: Decoder) -> tuple[list[int], list[Tensor]]:
    """The addresses of all tensors that a step may change, and the tensors, so that they stay alive."""
    tensors = [*rows.moving(), *(tensor for _, tensor, _ in rows.rows.parts())]
    return [tensor.data_ptr() for tensor in tensors], tensors


def test_rows_that_end_in_one_column_have_no_cache_before_they_are_filled() -> None:
    model = gen.from_transformers(tiny_model("gpt_neo"), byte_tokenizer())
    rows = model.new_rows(2, 32)
    assert isinstance(rows, AlignedRows)
    assert [name for name, _, _ in rows.parts()] == ["the attention mask", "the positions"]
    rows.prefill(slice(0, 2), [[1, 2], [3]])
    assert len([name for name, _, _ in rows.parts()]) > 2
