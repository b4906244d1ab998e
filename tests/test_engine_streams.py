"""What a stream tells while its text grows, and what an engine tells of itself."""

import re
from typing import Any

import pytest

import gen
from gen.loop import engine_thread
from gen.samplers import beam_search, greedy, multinomial, sample_seed
from tests.helpers import EOS, ScriptedModel
from tests.helpers.engines import FailingModel, GatedModel


@pytest.mark.parametrize(
    ("arguments", "finish_reason", "stop_reason"),
    [
        ({}, "eos", None),
        ({"max_new_tokens": 2}, "length", None),
        ({"stop": ["xx", "lo", "l"]}, "stop", "l"),
        ({"stop": ["llo", re.compile("l+"), "lo"], "include_stop": True}, "stop", "l+"),
        ({"stop": re.compile("[k-m]l"), "max_new_tokens": 4}, "stop", "[k-m]l"),
        ({"eos_token_id": [EOS, ord("l")]}, "eos", ord("l")),
        ({"eos_token_id": [EOS, ord("z")]}, "eos", None),
        ({"eos_token_id": ord("o"), "stop": "z"}, "eos", ord("o")),
    ],
)
def test_a_completion_says_what_has_ended_its_text(arguments: Any, finish_reason: str, stop_reason: Any) -> None:
    model = ScriptedModel("hello")
    for sampler in (None, beam_search(1)):
        made = gen.generate(model, "x", sampler=sampler, details=True, **arguments)
        assert (made.finish_reason, made.stop_reason) == (finish_reason, stop_reason)


def test_a_stream_tells_what_has_come_so_far_and_gives_all_pieces_nevertheless() -> None:
    model = GatedModel("hello")
    with gen.Engine(model) as engine:
        stream = engine.submit("abc", seed=3, top_logprobs=2)
        assert stream.prompt_tokens == len(model.tokenizer.encode("abc"))
        assert model.begun.acquire(timeout=60)
        one = stream.so_far()
        assert (one.text, one.value, one.token_ids, one.logprobs) == ("h", "h", [ord("h")], [0.0])
        assert (one.finish_reason, one.stop_reason, one.seed, len(one.top_logprobs or [])) == (None, None, 3, 1)
        model.gate.release()
        assert model.begun.acquire(timeout=60)
        assert (one.token_ids, stream.so_far().text) == ([ord("h")], "he")
        left, failing = engine.submit("y"), engine.submit([1] * 999)
        left.cancel()
        assert (left.so_far().text, left.so_far().finish_reason) == ("", "cancelled")
        model.open()
        assert "".join(stream) == "hello"
        assert stream.so_far() == stream.completion()
        stream.cancel()
        assert stream.so_far().finish_reason == "eos"
        assert failing.completion().finish_reason == "length"


def test_a_text_of_an_output_type_has_no_value_before_its_end_and_a_failed_one_tells_why() -> None:
    demo = gen.load("demo", device="cpu")
    made = gen.stream(demo, "x", gen.regex("[ab]{4}"), max_new_tokens=4)
    begun = next(made)
    assert (made.so_far().text, made.so_far().value, made.so_far().engine) == (begun, None, "device")
    made.close()
    assert (made.so_far().text, made.so_far().finish_reason) == (begun, "cancelled")
    with gen.Engine(demo) as engine:
        whole = engine.submit("x", gen.regex("[ab]{4}"), max_new_tokens=4)
        assert whole.completion().value == whole.so_far().text
        assert whole.so_far().value is None
    model = FailingModel()
    engine = gen.Engine(model)
    stream = engine.submit("x")
    model.open()
    with pytest.raises(ZeroDivisionError):
        list(stream)
    with pytest.raises(ZeroDivisionError):
        stream.so_far()
    assert (engine.stats().closed, engine.stats().failure) == (True, "ZeroDivisionError: no step")


def test_a_search_tells_nothing_before_its_end() -> None:
    stream = gen.stream(ScriptedModel("hello"), "x", sampler=beam_search(1), seed=1)
    assert (stream.so_far().text, stream.so_far().finish_reason) == ("", None)
    assert "".join(stream) == stream.so_far().text == "hello"


def test_an_engine_tells_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(engine_thread, "monotonic", lambda: now)
    model = GatedModel("hello")
    with gen.Engine(model, rows=2) as engine:
        idle = gen.EngineStats(
            running=0,
            waiting=0,
            compiling=0,
            tokens=0,
            prompt_tokens=0,
            steps=0,
            progress_age=0.0,
            closed=False,
            failure=None,
        )
        now = 200.0
        assert engine.stats() == idle
        first = engine.submit("ab")  # from now on there is work
        assert model.begun.acquire(timeout=60)
        streams = [first, engine.submit("c"), engine.submit("d")]
        now = 207.0
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.compiling) == (1, 2, 0)
        assert (stats.tokens, stats.prompt_tokens, stats.steps, stats.progress_age) == (1, 2, 1, 7.0)
        model.gate.release()  # the first step
        assert model.begun.acquire(timeout=60)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.progress_age) == (2, 1, 0.0)
        model.open()
        assert ["".join(stream) for stream in streams] == ["hello"] * 3
    stats = engine.stats()
    assert (stats.running, stats.tokens, stats.prompt_tokens, stats.closed, stats.failure) == (0, 15, 4, True, None)


def test_each_sample_comes_alone_with_the_seed_that_is_told_for_it() -> None:
    demo = gen.load("demo", device="cpu")
    several = gen.generate(demo, "Once", sampler=multinomial(samples=3), seed=5, max_new_tokens=6)
    alone = [
        gen.generate(demo, "Once", seed=sample_seed(5, n), max_new_tokens=6, sampler=multinomial()) for n in (0, 1, 2)
    ]
    assert several == alone
    assert sample_seed(5, 0) == 5
    with pytest.raises(gen.ArgumentError, match="seed must be a whole number at least 0"):
        sample_seed(-1, 0)
    with pytest.raises(gen.ArgumentError, match="sample must be a whole number"):
        sample_seed(1, "1")  # type: ignore[arg-type]
    assert gen.generate(demo, "Once", sampler=greedy(), max_new_tokens=0) == ""
