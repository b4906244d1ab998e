"""Verdicts on recorded texts: the oracle is making the text anew, and for margins the draw itself."""

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any
from weakref import ref

import pytest
import torch

import gen
from benchmarks.cases import verdicts
from benchmarks.cases.verdicts import anew, recorded
from gen.receipts.blocks import Reading
from gen.receipts.margins import margin, tolerance
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.demo import short_demo
from virtual_gpus import no_host_sync

SAMPLERS = gen.samplers
NESTED = gen.json_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
PARENTHESES = gen.grammar('start: "(" start ")" start | /[a-z]{1,4}/')
CASES: dict[str, Any] = {
    "greedy": (None, {"sampler": SAMPLERS.greedy(repetition_penalty=1.2)}),
    "temperature": (None, {"sampler": SAMPLERS.multinomial(temperature=0.8), "stop": ["."]}),
    "cuts": (None, {"sampler": SAMPLERS.multinomial(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01)}),
    "penalties": (
        None,
        {
            "sampler": SAMPLERS.multinomial(
                frequency_penalty=0.3, no_repeat_ngram_size=2, bad_words=["the"], min_new_tokens=20, logit_bias={5: 2.0}
            )
        },
    ),
    "samples": (None, {"sampler": SAMPLERS.multinomial(3)}),
    "a type": (NESTED, {}),
    "a number": (int, {"eos_token_id": []}),
    "the host engine": (PARENTHESES, {}),
    "beams": (None, {"sampler": SAMPLERS.beam_search(2), "max_new_tokens": 8}),
}


def receipts_of(model: Any, output_type: Any = None, **settings: Any) -> list[gen.Receipt]:
    """Receipts of several texts, made together; two prompts are equal, and all begin alike."""
    prompts = [f"Once upon a time there were {word}" for word in ("two", "three", "two", "many more than ten")]
    given: dict[str, Any] = {"max_new_tokens": [5, 14, 26, 18], "seed": [1, 2, 3, 4], "shorten": True, **settings}
    found: Any = gen.generate(model, prompts, output_type, details=True, errors="return", **given)
    made = [one for some in found for one in (some if isinstance(some, list) else [some])]
    assert sum(isinstance(one, gen.Completion) for one in made) > 2
    return [one.receipt for one in made if isinstance(one, gen.Completion)]


@pytest.mark.parametrize("case", CASES)
def test_unchanged_texts_are_equal(demo: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output_type, settings = CASES[case]
    receipts = receipts_of(demo, output_type, **settings)
    found = gen.verify(demo, receipts)
    assert [one.kind for one in found] == ["equal"] * len(receipts)
    assert all(one.logprob_difference < 1e-4 and not one.changed for one in found)
    assert all(one.at is None and one.ties == 0 for one in found)
    assert all(one.tokens >= len(receipt.token_ids) for one, receipt in zip(found, receipts, strict=True))
    assert gen.verify(demo, receipts[0]).kind == "equal"
    monkeypatch.setattr("gen.receipts.blocks._BLOCK", 4)  # as where the vocabulary is large
    assert [one.kind for one in gen.verify(demo, receipts)] == ["equal"] * len(receipts)


def test_verdicts_are_those_of_making_the_text_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "RECEIPTS", 24)
    counts = Counter[str]()
    for seed in (0, 5, 6, 9):  # two change settings, two change tokens
        found, wrong = verdicts.verdicts(Random(seed))
        assert wrong == []
        counts += found
    assert counts["token, another text, different"] > 30
    assert min(counts[f"setting, {truth}"] for truth in ("the same text, equal", "another text, different")) > 10


def test_a_changed_weight_is_found(demo: Any) -> None:
    receipts = receipts_of(demo, sampler=SAMPLERS.multinomial(temperature=0.8), max_new_tokens=30)
    model: Any = short_demo()
    with torch.no_grad():
        model.hf_model.lm_head.weight[:, 3] += 0.05
    found = gen.verify(model, receipts)
    for receipt, new, one in zip(receipts, anew(model, receipts), found, strict=True):
        assert (one.kind == "equal") == (new == recorded(receipt))
        assert [*one.changed] == ["weights"]
        if one.difference is not None and one.difference.found is not None:
            tokens = [*new[0], *model.eos_token_ids]
            assert tokens[one.difference.at] == one.difference.found  # the same up to there, and then this one
    assert "different" in {one.kind for one in found}
    assert max(one.logprob_difference for one in found) > 1e-3


def test_after_a_near_tie_the_text_goes_on(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [receipt, *_] = receipts_of(demo, max_new_tokens=40, eos_token_id=[], sampler=SAMPLERS.multinomial())
    other = replace(receipt, sampler={"name": "multinomial", "temperature": 0.9})
    alone = gen.verify(demo, other)
    assert alone.kind == "different"
    assert alone.tokens == alone.at + 1  # type: ignore[operator]
    monkeypatch.setattr("gen.receipts.blocks.tolerance", lambda *given: math.inf)
    found = gen.verify(demo, other)
    assert (found.kind, found.at, found.margin, found.tokens) == ("near tie", alone.at, alone.margin, 40)
    assert found.ties > 1


def test_the_tolerance_is_measured_on_the_model(demo: Any) -> None:
    """In bfloat16 it is larger by the ratio of the dtypes' precision, more or less."""
    receipts = receipts_of(demo, sampler=SAMPLERS.multinomial())
    wrong = replace(receipts[1], token_ids=[one + 1 for one in receipts[1].token_ids])
    fine = gen.verify(demo, wrong).tolerance
    half = gen.from_transformers(short_demo().hf_model.bfloat16(), short_demo().tokenizer._tokenizer)
    coarse = gen.verify(half, wrong).tolerance
    assert fine is not None and coarse is not None
    assert fine < 1e-3 < coarse < 2
    assert gen.verify(demo, replace(wrong, model={**wrong.model, "dtype": "bfloat16"})).tolerance > 100 * fine  # type: ignore[operator]


def test_beginnings_of_texts(demo: Any) -> None:
    [receipt, *_] = receipts_of(demo, max_new_tokens=20, eos_token_id=[])
    part: dict[str, Any] = {"token_ids": receipt.token_ids[:9], "logprobs": receipt.logprobs[:9]}
    for reason in ("timeout", "cancelled"):
        assert gen.verify(demo, replace(receipt, finish_reason=reason, **part)).kind == "equal"
    found = gen.verify(demo, replace(receipt, finish_reason="length", **part))
    assert (found.kind, found.at) == ("different", 9)
    assert found.difference is not None and found.difference.found == receipt.token_ids[9]


def test_how_a_text_ends_counts(demo: Any) -> None:
    [receipt, *_] = receipts_of(demo, max_new_tokens=20, eos_token_id=[])
    for wrong in ({"finish_reason": "eos"}, {"stop_reason": "x"}, {"text": "another one"}):
        found = gen.verify(demo, replace(receipt, **wrong))  # type: ignore[arg-type]
        assert (found.kind, found.at, found.margin) == ("different", 20, math.inf)
        assert found.difference is not None and next(iter(wrong)) in found.difference.reason


@pytest.mark.parametrize("architecture", ["qwen3_next", "llama"])
def test_rows_that_read_token_by_token_and_others(architecture: str) -> None:
    model = gen.from_transformers(tiny_model(architecture), byte_tokenizer())
    prompts = ["Once upon", "x", "Once upon a time, and then"]
    types = [gen.regex("[a-z]{9}"), None, None]
    made: Any = gen.generate(model, prompts, types, seed=[1, 2, 3], max_new_tokens=[9, 20, 4], details=True)
    receipts = [one.receipt for one in made]
    assert [one.kind for one in gen.verify(model, receipts)] == ["equal"] * 3
    wrong = replace(receipts[1], token_ids=[*receipts[1].token_ids[:7], 7, *receipts[1].token_ids[8:]])
    found = gen.verify(model, [receipts[0], wrong, receipts[2]])
    assert [(one.kind, one.at) for one in found] == [("equal", None), ("different", 7), ("equal", None)]


def test_the_tolerance_is_measured_again_where_torch_rounds_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    model, measured = short_demo(), iter([1.0, 2.0])
    monkeypatch.setattr("gen.receipts.margins._measure", lambda *given: next(measured))
    assert [tolerance(model, [1, 2]) for _ in range(2)] == [1.0, 1.0]
    matmul: Any = torch.backends.cuda.matmul
    try:
        matmul.allow_fp16_accumulation = True
        assert tolerance(model, [1, 2]) == 2.0
    finally:
        matmul.allow_fp16_accumulation = False


def test_margins_are_what_turns_a_draw() -> None:
    """In one block of 128 tokens: with so much more, the token is drawn, with a little less it is not."""
    generator = torch.Generator().manual_seed(0)
    for number in range(200):
        logits = torch.randn(1, 100, generator=generator, dtype=torch.float64) * 3
        key = torch.tensor([number * 7919])
        sampler = SAMPLERS.multinomial(temperature=0.7)
        found = int(sampler.step(logits, torch.zeros(1), key)[0])
        token = number % 100
        late = margin(logits[0], int(key), sampler, [token], found)
        if token == found:
            assert late == 0
            continue
        for factor, drawn in ((1 + 1e-3, True), (1 - 1e-3, False)):
            more = logits.clone()
            more[0, token] += late * 0.7 * factor
            assert (int(sampler.step(more, torch.zeros(1), key)[0]) == token) == drawn
        assert margin(logits[0], int(key), SAMPLERS.greedy(), [token], int(logits.argmax())) == pytest.approx(
            float(logits.max() - logits[0, token])
        )


@pytest.mark.parametrize(
    ("cut", "expected"),
    [({"top_k": 2}, math.log(4 / 2)), ({"min_p": 0.4}, math.log(3.2 / 2)), ({"top_p": 0.7}, math.log(12 / 11.2))],
)
def test_margins_of_cuts(cut: Any, expected: float) -> None:
    """The four tokens of docs/inside/drawing.md, of masses 8, 4, 2, 2: a cut takes the last two.

    top-p: the mass before them is 12 of 16, and 0.7 of 16 is 11.2.
    """
    logits = torch.tensor([8.0, 4.0, 2.0, 2.0]).log()
    keys = [
        key
        for key in range(40)
        if int(SAMPLERS.multinomial().step(logits[None], torch.zeros(1), torch.tensor([key]))[0]) == 2
    ]
    for key in keys:  # without the cut it is drawn, so the distance from the cut is all that keeps it away
        sampler = SAMPLERS.multinomial(**cut)
        found = int(sampler.step(logits[None], torch.zeros(1), torch.tensor([key]))[0])
        assert margin(logits, key, sampler, [2], found) == pytest.approx(expected, rel=1e-5)
    assert keys


def test_what_is_not_verified(demo: Any) -> None:
    with pytest.raises(gen.ArgumentError, match="takes receipts"):
        gen.verify(demo, ["x"])  # type: ignore[list-item]
    assert gen.verify(demo, []) == []


@pytest.mark.parametrize("case", ["greedy", "beams"])
def test_too_little_room_is_refused_before_a_text_is_read(
    demo: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output_type, settings = CASES[case]
    receipts: Any = receipts_of(demo, output_type, **settings)
    most = max(len(one.prompt_ids) + len(one.token_ids) for one in receipts) * (2 if case == "beams" else 1) + 9
    assert {one.kind for one in gen.verify(demo, receipts, max_batch_tokens=most)} == {"equal"}
    monkeypatch.setattr(type(demo), "new_rows", None)
    with pytest.raises(gen.ArgumentError, match="max_batch_tokens must be a whole number at least 1, got '99'"):
        gen.verify(demo, receipts, max_batch_tokens="99")  # type: ignore[call-overload]
    with pytest.raises(gen.ArgumentError, match="max_batch_tokens=9 is too little for receipt 0, whose"):
        gen.verify(demo, receipts, max_batch_tokens=9)


def test_memory_that_is_out_halves_what_is_read_together(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is out at a later block of more than one text: what was read there is freed, and does not count twice."""
    monkeypatch.setattr("gen.receipts.blocks._BLOCK", 8)
    receipts = receipts_of(demo, max_new_tokens=40, eos_token_id=[], sampler=SAMPLERS.multinomial())
    receipts[0] = replace(receipts[0], sampler={"name": "multinomial", "temperature": 0.9})
    monkeypatch.setattr("gen.receipts.blocks.tolerance", lambda *given: math.inf)
    expected = gen.verify(demo, receipts)
    assert expected[0].ties > 1
    block, begun, most = Reading._block, list[ref[Reading]](), 1

    def failing(self: Reading, at: int, width: int, going: int) -> None:
        if at == 0:
            assert [one() for one in begun if one() is not None] == []
            begun.append(ref(self))
        if at and len(self._checks) > most:
            raise torch.OutOfMemoryError("no room")
        block(self, at, width, going)

    monkeypatch.setattr(Reading, "_block", failing)
    found = gen.verify(demo, receipts)
    assert len(begun) == 7
    for one, other in zip(found, expected, strict=True):
        assert (one.kind, one.at, one.ties, one.tokens) == (other.kind, other.at, other.ties, other.tokens)
    most = 0
    with pytest.raises(gen.ModelError, match=r"receipt 0, of \d+ tokens, does not fit into the memory of cpu: no room"):
        gen.verify(demo, receipts)


def test_on_a_gpu_the_host_waits_once_a_block(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = short_demo(device=str(gpu))
    monkeypatch.setattr("gen.receipts.blocks._BLOCK", 8)
    receipts = [one for case in ("penalties", "a type") for one in receipts_of(model, CASES[case][0], **CASES[case][1])]
    with no_host_sync(count=True) as report:
        found = gen.verify(model, receipts)
    assert [one.kind for one in found] == ["equal"] * len(receipts)
    longest = max(one.tokens for one in found)
    assert report.count == math.ceil(longest / 8)
