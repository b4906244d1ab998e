"""Which width a step has, and when none is wide."""

import logging
from typing import Any

import pytest
import torch

import gen
from gen.loop.speculation.drafts import FORCED
from gen.loop.speculation.widths import Agreement, Widths
from gen.models.base import WideRows
from gen.models.transformers.model import TransformersModel
from gen.samplers import beam_search, greedy
from tests.helpers import byte_tokenizer, tiny_model


def text(real: int, kind: int) -> Agreement:
    made = Agreement()
    made.real, made.kind = real, kind
    return made


def widths(most: int = 7, *, fixed: bool = False, **seconds: float) -> Widths:
    """As after steps of one row that have taken so long, w1 to w8."""
    made = Widths(gen.Speculation(most=most), fixed=fixed)
    for name, one in seconds.items():
        made.learn(1, int(name[1:]), one)
    return made


def test_the_width_that_makes_most_tokens_a_second_is_taken() -> None:
    measured = widths(w1=1.0, w4=1.8, w8=1.9)
    assert measured.choose(1, [text(7, FORCED)]) == 8
    assert measured.choose(1, [text(1, FORCED)]) == 4
    assert measured.choose(1, [text(0, 0)]) == 1
    assert widths(w1=1.0, w4=1.8, w8=9.0).choose(1, [text(7, FORCED)]) == 4
    assert widths(w1=1.0, w4=9.0, w8=9.0).choose(1, [text(7, FORCED)]) == 1
    assert widths(most=3, w1=1.0).choose(1, [text(7, FORCED)]) == 4


def test_drafts_that_are_wrong_are_not_read_for_long() -> None:
    measured, one = widths(w1=1.0, w4=1.8, w8=1.9), text(7, 3)
    for _ in range(5):
        one.learn(measured.choose(1, [one]), 0)
    assert measured.choose(1, [one]) == 1
    for _ in range(12):  # beside plain steps the first draft is looked at all the same
        one.learn(1, 1)
    assert measured.choose(1, [one]) == 8


def test_a_cost_that_was_measured_long_ago_is_measured_anew() -> None:
    measured, one = widths(w1=1.0, w4=20.0, w8=20.0), text(7, FORCED)
    chosen = []
    for _ in range(100):
        chosen.append(measured.choose(1, [one]))
        measured.learn(1, chosen[-1], 1.0)
    assert chosen[0] == 1 and chosen[-1] == 8


def test_in_half_precision_a_clock_has_no_say(caplog: pytest.LogCaptureFixture) -> None:
    assert widths(fixed=True, w1=1.0, w4=9.0, w8=9.0).choose(1, [text(0, 0)]) == 8
    model = gen.load("demo", dtype="bfloat16")
    arguments: dict[str, Any] = {
        "seed": 1,
        "sampler": greedy(),
        "max_new_tokens": 30,
        "details": True,
        "eos_token_id": [],
    }
    with caplog.at_level(logging.INFO, "gen"):
        auto = gen.generate(model, "ha ha ha ha", speculate="auto", **arguments)
    assert "half precision" in caplog.text and not auto.drafted
    found = [gen.generate(model, "ha ha ha ha", speculate=gen.Speculation(), **arguments) for _ in range(2)]
    assert found[0] == found[1] and found[0].drafted == found[1].drafted > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sampler": beam_search(2)}, "a beam search"),
        ({"exact": True}, "exact=True"),
        ({"logits_processors": [lambda token_ids, lengths, logits: logits]}, "a logits processor"),
        ({"output_type": gen.grammar("start: /[ab]+/")}, "output type on the host engine"),
        ({"top_logprobs": 1}, "top_logprobs"),
    ],
    ids=["beams", "exact", "processors", "host engine", "top_logprobs"],
)
def test_what_goes_with_no_drafts_goes_without_and_says_so(
    arguments: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = gen.load("demo")
    given: dict[str, Any] = {"max_new_tokens": 8, "details": True, "seed": 1, "shorten": True} | arguments
    with caplog.at_level(logging.INFO, "gen"):
        found: Any = gen.generate(model, "ababababab", speculate=gen.Speculation(), **given)
    assert not found.drafted
    assert [line for line in caplog.messages if "reads drafts" in line and reason in line]
    assert len([line for line in caplog.messages if "reads drafts" in line]) == 1


@pytest.mark.parametrize("shape", ["bloom", "gpt_neo", "qwen3_next", "bamba"])
def test_models_that_cannot_go_back_are_not_asked_to(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    rows = model.new_rows(1, 32)
    assert not isinstance(rows, WideRows) or rows.widest == 1
    with caplog.at_level(logging.INFO, "gen"):
        gen.generate(model, "ababab", speculate="auto", max_new_tokens=4)
    assert "reads one token of a row in a step" in caplog.text


def test_a_model_whose_wide_steps_differ_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from gen.models.transformers.rows import TransformersRows

    step = TransformersRows.step_wide

    def wrong(self: TransformersRows, token_ids: torch.Tensor, view: int) -> torch.Tensor:
        return step(self, token_ids, view).flip(1)

    assert isinstance(model := gen.from_transformers(tiny_model(), byte_tokenizer()), TransformersModel)
    assert model.goes_wide
    monkeypatch.setattr(TransformersRows, "step_wide", wrong)
    assert isinstance(model := gen.from_transformers(tiny_model(), byte_tokenizer()), TransformersModel)
    assert not model.goes_wide


@pytest.mark.parametrize("given", [True, "on", 3, None])
def test_what_speculate_does_not_take_is_told(given: Any) -> None:
    with pytest.raises(gen.ArgumentError, match=r'speculate must be "auto", False or a gen\.Speculation'):
        gen.generate(gen.load("demo"), "a", speculate=given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"most": 0}, "most must be"),
        ({"most": 8}, "most must be"),
        ({"prompt": 1}, "prompt must be True or False"),
        ({"prompt": False, "output_type": False}, "nothing to draft from"),
    ],
)
def test_settings_that_cannot_be_used_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.Speculation(**arguments)
