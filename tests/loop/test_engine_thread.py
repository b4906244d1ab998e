"""A request that fails in an engine's thread fails alone, and one that leaves costs waiting requests nothing."""

import asyncio
import gc
import threading
from collections.abc import Hashable
from typing import Any
from weakref import ref

import pytest
from torch import Tensor

import gen
from gen.loop import engine_thread
from gen.loop.feed import Feed
from gen.loop.runner import Runner
from tests.helpers import ScriptedRows
from tests.helpers.engines import GatedModel, GatedRows, engine_threads
from tests.helpers.noting import noted


class CheckedModel(GatedModel):
    """A model that may have been changed so that it cannot be run."""

    changed = False

    def check(self) -> Hashable:
        if self.changed:
            raise gen.ModelError("it is in training mode")
        return None


@pytest.mark.parametrize("beside_another", [False, True])
def test_requests_that_join_while_a_model_cannot_be_run_fail_alone(beside_another: bool) -> None:
    model = CheckedModel("hello " * 3)
    with gen.Engine(model, rows=3) as engine:
        running = [engine.submit("a")] if beside_another else []
        for stream in running:
            assert next(stream)
        model.changed = True
        streams = [engine.submit(name) for name in "bc"]
        model.gate.release(2)  # the step that has begun, and the one after both have joined
        for stream in streams:
            with pytest.raises(gen.ModelError, match="it is in training mode"):
                next(stream)
        model.changed = False
        model.open()
        assert ["".join(stream) for stream in running] == ["ello " + "hello " * 2] * len(running)
        assert "".join(engine.submit("d")) == "hello " * 3


def test_rows_that_cannot_be_made_fail_the_request_that_they_are_for() -> None:
    class Full(GatedModel):
        failures = 1

        def new_rows(self, count: int, length: int) -> Any:
            if self.failures:
                self.failures -= 1
                raise gen.ModelError("no memory")
            return super().new_rows(count, length)

    model = Full()
    model.open()
    with gen.Engine(model) as engine:
        with pytest.raises(gen.ModelError, match="no memory"):
            engine.submit("a").completion()
        assert engine.submit("b").completion().text == "hello"


def test_a_models_own_engine_that_has_failed_leaves_nothing_behind() -> None:
    class Ended(BaseException):
        pass

    class Model(GatedModel):
        class rows(GatedRows):
            def step(self, token_ids: Tensor, view: int) -> Tensor:
                raise Ended

        def new_rows(self, count: int, length: int) -> ScriptedRows:
            made = super().new_rows(count, length)
            there.append(ref(made))
            return made

    there, engines, model = list[Any](), list[Any](), Model()
    for _ in range(3):
        with pytest.raises(Ended):
            asyncio.run(gen.agenerate(model, "x"))
        [thread] = engine_threads() or [None]
        if thread is not None:
            thread.join()
        engines.append(ref(model.idle._engine))
    gc.collect()
    assert [one() for one in there] == [None] * 3
    assert [one() is None for one in engines] == [True, True, False]


def test_a_text_that_ends_in_the_turn_in_which_its_engine_fails_is_whole() -> None:
    class Ended(BaseException):
        pass

    def script(prompt: str) -> bytes:
        if prompt.endswith("b"):
            raise Ended
        return b"he"

    model = GatedModel(script)
    with gen.Engine(model, rows=2) as engine:
        first = engine.submit("a")
        assert model.begun.acquire(timeout=60)
        second = engine.submit("b")  # it joins after this step, and the next one ends the first text
        model.open()
        with pytest.raises(Ended):
            second.completion()
        assert first.completion().text == "he"


@pytest.mark.parametrize("full", [False, True])
def test_many_that_wait_and_are_cancelled_are_each_looked_at_once(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(self: Feed, other: object) -> bool:
        nonlocal compared
        compared += 1
        return self is other

    monkeypatch.setattr(Feed, "__eq__", counted)
    monkeypatch.setattr(Feed, "__hash__", object.__hash__)
    model, count = GatedModel(), 300
    with gen.Engine(model, rows=1, max_waiting=count) as engine:
        first = engine.submit("a")
        waiting = [engine.submit("b") for _ in range(count)]
        for stream in waiting:
            stream.cancel()
            if full:
                engine.submit("c").cancel()
        model.open()
        assert "".join(first) == "hello"
        assert [list(stream) for stream in waiting] == [[]] * count
        assert model.read == ["a"]
    assert compared <= count


def test_prompts_are_read_together_where_the_last_ones_came_apart_and_else_nobody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fills = noted(monkeypatch, GatedRows, "prefill", lambda own, rows, *_, **__: rows.stop - rows.start)
    idle = threading.Semaphore(0)

    def close(runner: Runner) -> None:
        closed(runner)
        idle.release()

    closed = Runner.close
    monkeypatch.setattr(Runner, "close", close)
    monkeypatch.setattr(engine_thread, "_APART", 60.0)
    monkeypatch.setattr(engine_thread, "_AT_MOST", 60.0)
    model = GatedModel()
    with gen.Engine(model, rows=2) as engine:

        def begins_at_once() -> None:
            stream = engine.submit("a")
            assert model.begun.acquire(timeout=30)
            model.gate.release(10)
            assert "".join(stream) == "hello"
            assert idle.acquire(timeout=60)
            model.begun, model.gate = threading.Semaphore(0), threading.Semaphore(0)

        begins_at_once()
        begins_at_once()
        streams = [engine.submit("b")]
        assert model.begun.acquire(timeout=60)
        streams.append(engine.submit("c"))  # while the first text runs
        model.open()
        assert ["".join(stream) for stream in streams] == ["hello"] * 2
        assert fills == [1] * 4 and idle.acquire(timeout=60)
        streams = [engine.submit("d"), engine.submit("e")]
        assert ["".join(stream) for stream in streams] == ["hello"] * 2
        assert fills == [1, 1, 1, 1, 2] and idle.acquire(timeout=60)
        monkeypatch.setattr(engine_thread, "_APART", 0.0)
        assert "".join(engine.submit("f")) == "hello"  # others were waited for, in vain
        assert idle.acquire(timeout=60)
        monkeypatch.setattr(engine_thread, "_APART", 60.0)
        model.begun, model.gate = threading.Semaphore(0), threading.Semaphore(0)
        begins_at_once()
