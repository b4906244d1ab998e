"""Which width a step has, and when no step is wide."""

import logging
import random
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]

import gen
from gen.loop.speculation.drafts import ENDING, FORCED
from gen.loop.speculation.widths import Agreement, Widths, ways_through, worth_of
from gen.loop.step_times import Costs
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from gen.samplers import GreedySampler, beam_search, greedy
from tests.helpers import byte_tokenizer, needs_kernels_that_agree, tiny_model
from virtual_gpus import virtual_gpus

marked, judged = Costs.mark, Costs.judge  # before `no_clock` replaces them


class Own(GreedySampler):
    """A user's sampler."""


def text(*kinds: int) -> Agreement:
    """A text whose next drafts are of these kinds, and which has place for them."""
    made = Agreement()
    made.kinds, made.left = kinds, 30
    return made


def made_costs() -> Costs:
    return Costs(torch.device("cpu"))


def widths(most: int = 7, *, fixed: bool = False, **seconds: float) -> Widths:
    """Widths after steps of one row with these times: w1 to w8 seconds."""
    costs = made_costs()
    for name, one in seconds.items():
        for _ in range(60):  # the averages are there then
            costs.learn(1, int(name[1:]), one)
    return Widths(gen.Speculation(most=most), costs, fixed=fixed)


def test_the_width_that_saves_the_most_time_is_taken() -> None:
    measured = widths(w1=1.0, w4=1.8, w8=1.9)
    assert measured.choose(1, [text(*[FORCED] * 7)]) == 8
    assert measured.choose(1, [text(FORCED)]) == 4
    assert measured.choose(1, [text()]) == 1
    assert widths(w1=1.0, w4=1.8, w8=9.0).choose(1, [text(*[FORCED] * 7)]) == 4
    assert widths(w1=1.0, w4=9.0, w8=9.0).choose(1, [text(*[FORCED] * 7)]) == 1
    assert widths(w1=0.6, w4=1.0, w8=1.4).choose(1, [text(*[FORCED] * 4)]) == 8  # else a plain step makes the fifth
    assert widths(w1=0.6, w4=1.0, w8=1.4).choose(1, [text(*[FORCED] * 3)]) == 4
    assert widths(most=3, w1=1.0).choose(1, [text(*[FORCED] * 7)]) == 4


def test_drafts_past_the_end_of_a_text_are_worth_nothing() -> None:
    measured, one = widths(w1=1.0, w4=2.2, w8=2.6), text(*[FORCED] * 7)
    for alone in (True, False):
        chosen = []
        for one.left in (8, 5, 4, 3, 2, 1, 0):
            chosen.append(measured.choose(1, [one] if alone else [one, one]))
        assert chosen == [8, 8, 4, 4, 1, 1, 1]


def test_a_text_that_ends_sooner_saves_little_while_another_one_goes_on() -> None:
    measured, ahead, behind = widths(w1=1.0, w4=1.8, w8=1.9), text(*[FORCED] * 7), text()
    ahead.left, behind.left = 10, 30
    assert measured.choose(1, [ahead, behind]) == 1
    ahead.left = 40
    assert measured.choose(1, [ahead, behind]) == 8
    ahead.left, measured.others_wait = 10, True  # its row is wanted
    assert measured.choose(1, [ahead, behind]) == 8


def test_plain_steps_of_calls_that_draft_are_recorded_once_with_those_of_others(soon_worth_it: None) -> None:
    model = gen.load("demo", device="cpu")
    first = gen.generate(model, "Once upon a time", max_new_tokens=40, seed=1, speculate=False)
    rows: Any = model.idle._kept[0]
    recorded = dict(rows.recordings)
    found = gen.generate(model, "Once upon a time", max_new_tokens=40, seed=1, details=True)
    assert found.text == first and recorded
    assert {shape: one for shape, one in rows.recordings.items() if shape[2] == 1} == recorded


def test_drafts_that_are_wrong_are_not_read_for_long() -> None:
    measured, one = widths(w1=1.0, w4=1.8, w8=1.9), text(*[3] * 7)
    for _ in range(5):
        one.learn(measured.choose(1, [one]), 0)
    assert measured.choose(1, [one]) == 1
    for _ in range(12):  # plain steps compare the first draft, too
        one.learn(1, 1)
    assert measured.choose(1, [one]) == 8


def test_drafts_behind_one_that_is_likely_wrong_are_worth_nothing() -> None:
    one = text(FORCED, ENDING, FORCED, FORCED)
    for _ in range(50):
        one.kinds = [ENDING]
        one.learn(1, 0)
    one.kinds = [FORCED, ENDING, FORCED, FORCED]
    assert worth_of(one.rates, 8) == pytest.approx(worth_of(one.rates, 2), abs=1e-3) == pytest.approx(1.98)
    assert widths(w1=1.0, w4=1.8, w8=1.9).choose(1, [one, text()]) == 1


@pytest.mark.parametrize("seed", range(8))
def test_the_fastest_way_is_that_of_all_sequences_of_widths(seed: int) -> None:
    draw = random.Random(seed)
    rates = [draw.choice((0.2, 0.7, 0.95, 1.0)) for _ in range(seed % 6)]
    takes = {1: 1.0, 4: draw.uniform(1.0, 3.0), 8: draw.uniform(1.0, 4.0)}

    def expected(sequence: tuple[int, ...]) -> float:
        """Seconds of steps of these widths, for each first draft that may be wrong, and for none."""
        seconds = 0.0
        for right in range(len(rates) + 1):
            chance = prod(rates[:right]) * (1 - rates[right] if right < len(rates) else 1)
            made, steps = 0, iter(sequence)
            while made <= right:
                width = next(steps)
                seconds += chance * takes[width]
                made += width  # beyond the first wrong draft nothing counts
        return seconds

    ways = ways_through(rates, takes)
    for first in takes:
        sequences = product([first], *[takes] * len(rates))
        assert ways[first] == pytest.approx(min(map(expected, sequences)))


def test_costs_are_running_averages_in_plain_steps_that_begin_with_a_guess() -> None:
    costs = made_costs()
    guess = costs.of(1, (1, 8))
    assert guess[1] == 1.0 and 1.5 < guess[8] < 2.0
    costs.learn(1, 8, 50.0)  # no plain step was measured yet
    assert costs.of(1, (1, 8)) == guess
    costs.learn(1, 1, 50.0)
    costs.learn(1, 8, 110.0)
    assert costs.of(1, (8,))[8] == pytest.approx(guess[8] + 0.2 * (2.2 - guess[8]))
    for _ in range(60):  # something slows the machine for a while
        costs.learn(1, 1, 100.0)
        costs.learn(1, 8, 300.0)
    assert costs.of(1, (8,))[8] == pytest.approx(3.0, rel=0.01)
    assert costs.of(2, (1, 4, 8)) == made_costs().of(2, (1, 4, 8))  # no step of two rows was measured


def test_a_step_that_was_stopped_for_a_moment_counts_little() -> None:
    costs = made_costs()
    for width, seconds in ((1, 1.0), (1, 1000.0), (8, 1000.0)):
        costs.learn(1, width, seconds)
    assert costs.of(1, (8,))[8] < 2 * made_costs().of(1, (8,))[8]


def test_while_wide_steps_cost_more_than_they_save_only_sure_ones_are_taken() -> None:
    measured, likely, sure = widths(w1=1.0, w4=1.4, w8=1.9), text(2, 3, 4), text(*[FORCED] * 7)
    assert [measured.choose(1, [one]) for one in (likely, sure)] == [4, 8]
    for _ in range(3):
        judged(measured._costs, 1, 4, 1.0)
    assert [measured.choose(1, [one]) for one in (likely, sure)] == [1, 8]
    judged(measured._costs, 1, 8, 8.0)
    assert [measured.choose(1, [one]) for one in (likely, sure)] == [4, 8]


def test_after_steps_without_a_right_draft_drafts_are_looked_for_seldom() -> None:
    one = widths()

    def passed(rows: int = 8) -> int:
        count = 0
        while not one.looks(rows):
            count += 1
        return count

    def miss(times: int) -> None:
        for _ in range(times):
            one.note(False, wide=False)

    found = []
    for times in (0, 1, 1, 1, 1, 4, 100, 1):
        miss(times)
        found.append(passed())
    assert found == [0, 0, 0, 1, 1, 3, 8, 8]  # decided by the misses before
    assert [passed(rows) for rows in (1, 1, 32, 32)] == [8, 1, 1, 32]  # at most as many steps as rows
    one = Widths(gen.Speculation(), one._costs, fixed=False)
    assert [passed(), passed()] == [0, 8]  # a later call goes on from there
    one.note(True, wide=False)
    assert [passed(), passed()] == [8, 7]  # a right draft of a plain step halves the misses
    one.note(True, wide=True)
    assert [passed(), passed()] == [7, 0]
    one = widths(fixed=True)
    miss(100)
    assert passed() == passed() == 0  # all steps are wide


def test_of_widths_as_good_as_each_other_the_wider_one_is_taken() -> None:
    ways = ways_through(text(*[FORCED] * 7).rates, {1: 1.0, 4: 1.0, 8: 2.0})
    assert ways[4] < ways[8] < 1.05 * ways[4]
    assert widths(w1=1.0, w4=1.0, w8=2.0).choose(1, [text(*[FORCED] * 7)]) == 8
    assert widths(w1=1.0, w4=1.0, w8=2.2).choose(1, [text(*[FORCED] * 7)]) == 4


def test_steps_are_measured_as_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costs, "mark", marked)  # as it is without `no_clock`
    model: Any = gen.load("demo")
    gen.generate(model, "ha ha ha ha", sampler=greedy(), max_new_tokens=20, eos_token_id=[])
    assert 0 < model.idle.take().costs._plain[1] < 1


def test_where_nothing_is_measured_it_is_reckoned_what_a_step_costs_as_a_rule() -> None:
    made = Widths(gen.Speculation(), made_costs(), fixed=False)
    assert made.choose(1, [text(*[FORCED] * 7)]) == 8
    assert made.choose(32, [text(*[FORCED] * 7), *[text()] * 31]) == 1  # the others would wait for one text's drafts


def test_in_half_precision_a_clock_has_no_say(caplog: pytest.LogCaptureFixture) -> None:
    assert widths(fixed=True, w1=1.0, w4=9.0, w8=9.0).choose(1, [text()]) == 8
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
        ({"sampler": Own()}, "a sampler of the caller's"),
        ({"exact": True}, "exact=True"),
        ({"logits_processors": [lambda token_ids, lengths, logits: logits]}, "a logits processor"),
        ({"output_type": gen.grammar("start: /[ab]+/")}, "output type on the host engine"),
    ],
    ids=["beams", "own sampler", "exact", "processors", "host engine"],
)
def test_what_goes_with_no_drafts_goes_without_and_says_so(
    arguments: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = gen.load("demo")
    if arguments.get("exact"):
        needs_kernels_that_agree(model)
    given: dict[str, Any] = {"max_new_tokens": 8, "details": True, "seed": 1, "shorten": True} | arguments
    with caplog.at_level(logging.INFO, "gen"):
        found: Any = gen.generate(model, "ababababab", speculate=gen.Speculation(), **given)
    assert not found.drafted
    assert [line for line in caplog.messages if "reads drafts" in line and reason in line]
    with caplog.at_level(logging.INFO, "gen"):
        gen.generate(model, "ababababab", speculate=gen.Speculation(), **given)
    assert len([line for line in caplog.messages if "reads drafts" in line]) == 1  # once for a model


@pytest.mark.parametrize("shape", ["bloom", "gpt_neo", "qwen3_next", "bamba"])
def test_models_that_cannot_go_back_are_not_asked_to(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    rows = model.new_rows(1, 32)
    assert rows.widest == 1
    with caplog.at_level(logging.INFO, "gen"):
        gen.generate(model, "ababab", speculate="auto", max_new_tokens=4)
    assert "reads one token of a row in a step" in caplog.text


def test_a_model_on_several_devices_goes_without(caplog: pytest.LogCaptureFixture) -> None:
    with virtual_gpus(2), caplog.at_level(logging.INFO, "gen"):
        parts = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1}
        spread = dispatch_model(tiny_model(num_hidden_layers=2), device_map=parts | {"model.norm": 1, "lm_head": 1})
        model = gen.from_transformers(spread, byte_tokenizer())
        assert len(model.placement.devices) == 2
        gen.generate(model, "ababab", speculate=gen.Speculation(), max_new_tokens=4)
    assert "reads one token of a row in a step, since it is on several devices" in caplog.text


@pytest.mark.parametrize("fault", ["logits of other places", "nothing is forgotten"])
def test_a_model_whose_wide_steps_differ_has_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, commit = TransformersRows.verify, TransformersRows.commit

    def shifted(self: TransformersRows, token_ids: torch.Tensor, view: int) -> torch.Tensor:
        return step(self, token_ids, view).flip(1)

    def all_count(self: TransformersRows, counts: torch.Tensor) -> None:
        commit(self, torch.full_like(counts, 4))

    assert isinstance(model := gen.from_transformers(tiny_model(), byte_tokenizer()), TransformersModel)
    assert model.goes_wide
    wrong = {"verify": shifted} if fault == "logits of other places" else {"commit": all_count}
    for name, method in wrong.items():
        monkeypatch.setattr(TransformersRows, name, method)
    assert isinstance(model := gen.from_transformers(tiny_model(), byte_tokenizer()), TransformersModel)
    assert not model.goes_wide


def test_a_float32_model_that_rounds_in_between_is_taken_as_one_of_half_precision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounded, model = (
        gen.from_transformers(one, byte_tokenizer())
        for one in (rounding(tiny_model(num_hidden_layers=2)), tiny_model())
    )
    assert isinstance(rounded, TransformersModel) and isinstance(model, TransformersModel)
    assert rounded.goes_wide and rounded.wide_difference > 1e-4 > 1e-5 > model.wide_difference > 0
    arguments: dict[str, Any] = {"max_new_tokens": 20, "sampler": greedy(), "eos_token_id": [], "details": True}
    with caplog.at_level(logging.INFO, "gen"):
        assert not gen.generate(rounded, "abababab", **arguments).drafted
    assert "quantised weights" in caplog.text
    assert gen.generate(rounded, "abababab", speculate=gen.Speculation(), **arguments).drafted


def test_steps_have_one_width_whatever_room_rows_have() -> None:
    model = gen.from_transformers(
        rounding(tiny_model(num_hidden_layers=2, max_position_embeddings=512)), byte_tokenizer()
    )
    arguments: dict[str, Any] = {"max_new_tokens": 400, "seed": 1, "eos_token_id": [], "details": True}
    first, second = (gen.generate(model, "abababab", speculate=gen.Speculation(), **arguments) for _ in range(2))
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)  # rows have grown in between


def rounding(hf_model: Any) -> Any:
    """Rounds activations by the largest one that is read at once, as quantised layers do."""

    def rounded(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        size = out.abs().max() / 1000
        return (out / size).round() * size

    hf_model.model.layers[0].mlp.register_forward_hook(rounded)
    return hf_model


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
