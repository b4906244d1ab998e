"""Texts for asyncio grow in an engine that the model keeps: they equal those of `generate`; cancelling frees rows."""

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

import gen
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers import ScriptedModel
from tests.helpers.engines import FailingModel, GatedModel, ends, engine_threads, text_of
from tests.helpers.forked import Forked


@pytest.fixture(autouse=True)
def alone(demo: Any) -> None:
    """The engines of earlier tests' models end once these models are collected."""
    demo.release()
    assert all(map(ends, engine_threads()))


def test_a_models_own_engine_ends_with_the_model() -> None:
    model = ScriptedModel("hello")
    stream = gen.astream(model, "x")
    [thread] = engine_threads()
    del model
    gc.collect()
    assert asyncio.run(text_of(stream)) == "hello"
    assert thread.is_alive()
    del stream
    assert ends(thread)


def test_release_closes_a_models_own_engine_and_the_next_call_makes_another(demo: Any) -> None:
    sampler = greedy()
    text = gen.generate(demo, "Once", sampler=sampler, max_new_tokens=8)
    assert asyncio.run(gen.agenerate(demo, "Once", sampler=sampler, max_new_tokens=8)) == text
    [thread] = engine_threads()
    assert asyncio.run(gen.agenerate(demo, "Once", sampler=sampler, max_new_tokens=8)) == text
    assert engine_threads() == {thread}
    demo.release()
    assert not thread.is_alive()
    assert asyncio.run(gen.agenerate(demo, "Once", sampler=sampler, max_new_tokens=8)) == text
    demo.release()
    assert len(engine_threads()) == 0


def test_a_models_own_engine_that_has_failed_is_made_anew() -> None:
    model = FailingModel()
    model.open()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(gen.agenerate(model, ["a", "b"]))
    model.idle.clear()


def test_a_model_without_a_place_for_an_engine_is_refused() -> None:
    model = ScriptedModel("hello")
    del model.idle
    with pytest.raises(gen.ArgumentError, match=r"has no place for an engine .*; make a gen.Engine of it"):
        asyncio.run(gen.agenerate(model, "x"))
    with gen.Engine(model) as engine:
        assert "".join(engine.submit("x")) == "hello"


def test_agenerate_returns_what_generate_does(demo: Any) -> None:
    prompts = ["Once upon a time", "One morning", "Describe Ada as JSON.\n"]
    calls: list[tuple[Any, dict[str, Any]]] = [
        (prompts[0], {"seed": 1}),
        (prompts[0], {"seed": 1, "details": True}),
        (prompts, {"seed": [1, 2, 3], "max_new_tokens": [4, 0, 20]}),
        (prompts, {"sampler": [greedy(), multinomial(temperature=0.6), greedy(repetition_penalty=1.1)], "seed": 4}),
        (prompts, {"seed": 5, "stop": [" ", "\n"], "details": True}),
        (prompts, {"sampler": multinomial(samples=2), "seed": 6}),
        (prompts[:2], {"sampler": beam_search(3), "num_return_sequences": 2}),
    ]

    async def together() -> list[Any]:
        return await asyncio.gather(
            *(gen.agenerate(demo, prompt, **{"max_new_tokens": 10, **given}) for prompt, given in calls)
        )

    for (prompt, given), made in zip(calls, asyncio.run(together()), strict=True):
        alone = gen.generate(demo, prompt, **{"max_new_tokens": 10, **given})
        if given.get("details"):
            made, alone = (
                [one.text for one in (texts if isinstance(texts, list) else [texts])] for texts in (made, alone)
            )
        assert made == alone
    demo.release()


def test_agenerate_keeps_the_order_of_a_list_and_has_no_limit_on_it() -> None:
    model = ScriptedModel(lambda prompt: prompt.encode() * (1 + len(prompt) % 3))
    prompts = [f"<{'x' * (number % 7)}{number}>" for number in range(600)]
    assert asyncio.run(gen.agenerate(model, prompts)) == [prompt * (1 + len(prompt) % 3) for prompt in prompts]
    model.idle.clear()


def test_a_cancelled_agenerate_frees_its_rows_and_what_waits_never_starts() -> None:
    model = GatedModel()

    async def run() -> None:
        prompts = [f"{number}" for number in range(40)]
        task = asyncio.create_task(gen.agenerate(model, prompts))
        await asyncio.sleep(0)
        stream = gen.astream(model, "other")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        model.open()
        assert await text_of(stream) == "hello"

    asyncio.run(run())
    assert len(model.read) <= 33  # 32 rows, and the other request
    assert model.read[-1] == "other"
    model.idle.clear()


def test_a_cancelled_search_in_a_worker_thread_ends() -> None:
    model = GatedModel("hello " * 9)

    async def run() -> None:
        task = asyncio.create_task(gen.agenerate(model, "x", sampler=multinomial(samples=2)))
        while not model.read:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        model.open()

    asyncio.run(run())  # waits for the worker thread
    assert model.steps <= 4


def test_a_process_that_is_forked_makes_an_engine_of_its_own_and_does_not_wait_for_the_others() -> None:
    def program() -> None:
        model = GatedModel()
        engine = gen.Engine(model)
        stream = engine.submit("a")
        own = gen.astream(model, "a")
        model.begun.acquire()
        reading = threading.Thread(target=lambda: [model.tokenizer.encode("x" * 10**5) for _ in range(20)])
        reading.start()  # another thread is within the tokenizer
        child = os.fork()
        if child == 0:
            model.open()
            told = []
            for call in (lambda: engine.submit("b"), lambda: list(stream), stream.completion, lambda: list(own)):
                try:
                    call()
                except gen.EngineClosed as error:
                    told.append("belongs to the process that this one was forked from; make another" in str(error))
            engine.close()
            with gen.Engine(model) as other:
                told.append("".join(other.submit("c")) == "hello")
            told.append(asyncio.run(gen.agenerate(model, "d")) == "hello")
            os._exit(0 if told == [True] * 6 else 1)
        reading.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        model.open()
        print("".join(stream), "".join(own))
        engine.close()

    code, out, err = Forked(program).end()
    assert (code, out) == (0, "0\nhello hello\n"), err
