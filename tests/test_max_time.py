"""Texts end as they are when their time is over. The clock is simulated, and each step takes one of its seconds."""

import threading
from typing import Any

import pytest
from torch import Tensor

import gen
from gen.calls import reading
from gen.constraints import compiling
from gen.loop import engine_thread, scheduler
from gen.samplers import multinomial
from tests.helpers import ScriptedModel, ScriptedRows
from tests.helpers.engines import GatedModel


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (scheduler, engine_thread, reading):
        monkeypatch.setattr(module, "monotonic", clock)
    return clock


class TickingModel(ScriptedModel):
    def __init__(self, script: Any, clock: Clock) -> None:
        super().__init__(script)
        self.clock = clock

    class rows(ScriptedRows):
        _model: "TickingModel"

        def step(self, token_ids: Tensor, view: int) -> Tensor:
            self._model.clock.now += 1
            return super().step(token_ids, view)


def test_texts_end_as_they_are_and_say_so(clock: Clock) -> None:
    model = TickingModel(lambda prompt: b"abcdefgh"[: len(prompt)], clock)
    made: Any = gen.generate(model, ["xxxxxxxx", "xx"], max_time=2.5, details=True)
    assert [(one.text, one.finish_reason) for one in made] == [("abcd", "timeout"), ("ab", "eos")]
    assert [len(one.token_ids) for one in made] == [4, 2]
    for stop in ("cdx", "cd"):  # text that was held back for a stop string comes too
        one: Any = gen.generate(model, "xxxxxxxx", max_time=1.5, stop=stop, details=True)
        assert (one.text, one.finish_reason, one.stop_reason) == ("abc", "timeout", None)
    stream = gen.stream(model, "xxxxxxxx", max_time=1.5, stop="cdx")
    assert ["".join(stream), stream.completion().finish_reason] == ["abc", "timeout"]
    several: Any = gen.generate(model, "xxxxxxxx", sampler=multinomial(samples=2), max_time=1.5)
    assert several == ["abc", "abc"]
    assert gen.generate(model, "xxxxxxxx", max_time=1e9) == "abcdefgh"


def test_a_typed_text_is_incomplete_unless_what_is_whole_will_do(clock: Clock) -> None:
    model = TickingModel("abcdefgh", clock)
    for kind, whole in ((gen.regex("[a-h]+"), True), (gen.regex("[a-h]{8}"), False)):
        with pytest.raises(gen.IncompleteError, match=r"Give more max_time") as caught:
            gen.generate(model, "x", kind, max_time=1.5)
        assert (caught.value.completion.text, caught.value.completion.finish_reason) == ("abc", "timeout")
        if whole:
            one = gen.generate(model, "x", kind, max_time=1.5, shorten=True, details=True)
            assert (one.value, one.finish_reason) == ("abc", "timeout")
        else:
            with pytest.raises(gen.IncompleteError):
                gen.generate(model, "x", kind, max_time=1.5, shorten=True)


def test_the_time_that_a_request_waits_in_an_engine_counts(clock: Clock) -> None:
    model = GatedModel("hello")
    with gen.Engine(model, rows=1) as engine:
        running = engine.submit("a")
        assert model.begun.acquire(timeout=60)
        late, patient = engine.submit("b", max_time=5), engine.submit("c", max_time=50)
        clock.now += 6
        model.gate.release()
        assert "".join(late) == ""
        assert (late.completion().finish_reason, patient.so_far().finish_reason) == ("timeout", None)
        model.open()
        assert ["".join(running), "".join(patient)] == ["hello", "hello"]
        assert model.read == ["a", "c"]


def test_a_request_whose_type_is_not_compiled_in_time_is_told_so(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, carry_out = threading.Event(), threading.Event(), compiling.carry_out

    def slowly(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return carry_out(*given)

    monkeypatch.setattr(compiling, "carry_out", slowly)
    with gen.Engine(ScriptedModel("ab")) as engine:
        stream = engine.submit("x", gen.regex("a(b|c)(d|f)?"), max_time=5)
        assert begun.wait(60)
        clock.now += 6
        assert engine.submit("y").completion().text == "ab"  # wakes the engine
        with pytest.raises(gen.IncompleteError, match="was over before its output type was compiled") as caught:
            list(stream)
        assert caught.value.completion.finish_reason == "timeout"
        go_on.set()


def test_the_time_in_which_a_call_compiles_its_type_counts(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, compile = gen.regex("[a-h]{1,8}"), compiling.compile

    def slowly(*given: Any) -> Any:
        clock.now += 2
        return compile(*given)

    monkeypatch.setattr(compiling, "compile", slowly)
    model = TickingModel("abcdefgh", clock)
    for seconds, text in ((3.5, "abc"), (1, "")):
        with pytest.raises(gen.IncompleteError, match="Give more max_time") as caught:
            gen.generate(model, "x", kind, max_time=seconds)
        assert caught.value.completion.text == text
