"""Requests join and leave an engine's running batch: texts equal those of `generate`, and nobody waits for ever."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, assert_type

import pytest
import torch
from pydantic import BaseModel
from torch import Tensor

import gen
from gen.calls.streams import EngineStream
from gen.loop.results import top_tokens
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers import ScriptedModel
from tests.helpers.demo import short_demo
from tests.helpers.engines import FailingModel, GatedModel, ends, engine_threads, text_of
from tests.helpers.noting import noted


@pytest.fixture(autouse=True)
def alone() -> None:
    """The engines of earlier tests' models end once these models are collected."""
    assert all(map(ends, engine_threads()))


def test_generate_gives_what_gen_generate_gives_from_threads_and_from_asyncio() -> None:
    class Person(BaseModel):
        name: str
        age: int

    demo = short_demo(6)  # with fewer layers, names have no end
    settings: dict[str, Any] = {"seed": 3, "max_new_tokens": 60}
    prompts = ["Once upon a time", "One morning", "Describe Ada as JSON.\n"]
    types = [None, bool, Person]
    wanted = [gen.generate(demo, prompt, kind, **settings) for prompt, kind in zip(prompts, types, strict=True)]
    with gen.Engine(demo) as engine, ThreadPoolExecutor() as pool:
        assert [*pool.map(lambda prompt, kind: engine.generate(prompt, kind, **settings), prompts, types)] == wanted
        told = engine.generate(prompts[0], details=True, **settings)
        assert told.token_ids == gen.generate(demo, prompts[0], details=True, **settings).token_ids

        async def together() -> list[Any]:
            return await asyncio.gather(
                *(engine.agenerate(prompt, kind, **settings) for prompt, kind in zip(prompts, types, strict=True)),
                engine.agenerate(prompts[0], details=True, **settings),
                engine.submit(prompts[0], **settings).acompletion(),
            )

        *values, one, two = asyncio.run(together())
        assert values == wanted
        assert one.token_ids == two.token_ids == told.token_ids
        assert_type(engine.generate("x"), str)
        assert_type(engine.generate("x", Person, seed=1, max_new_tokens=60), Person)
        with pytest.raises(gen.ArgumentError, match=r"agenerate takes no temperature; write sampler="):
            asyncio.run(engine.agenerate("x", temperature=0.7))  # type: ignore[call-overload]


def test_a_task_that_is_cancelled_while_it_waits_frees_its_row() -> None:
    model = GatedModel()
    with gen.Engine(model, rows=1, max_waiting=0) as engine:

        async def give_up() -> None:
            waiting = asyncio.create_task(engine.agenerate("x", max_new_tokens=1000, eos_token_id=[]))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(give_up())
        model.open()
        while True:
            try:
                assert len(engine.generate("y", max_new_tokens=2, eos_token_id=[], details=True).token_ids) == 2
                break
            except gen.EngineFull:
                pass


def close(streams: list[Any]) -> None:
    streams.pop().close()


def cancel(streams: list[Any]) -> None:
    streams.pop().cancel()


def drop(streams: list[Any]) -> None:
    streams.pop()
    gc.collect()


def aclose(streams: list[Any]) -> None:
    asyncio.run(streams.pop().aclose())


def leave_its_with_block(streams: list[Any]) -> None:
    with streams[0]:
        pass


def leave_its_async_with_block(streams: list[Any]) -> None:
    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            async with streams[0]:
                raise ZeroDivisionError

    asyncio.run(run())


def cancel_a_reading_task(streams: list[Any]) -> None:
    async def run() -> None:
        task = asyncio.create_task(text_of(streams.pop()))
        await asyncio.sleep(0)  # it has begun to read, and waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def cancel_a_task_that_does_something_else(streams: list[Any]) -> None:
    async def read(begun: asyncio.Event) -> None:
        async for _ in streams.pop():
            begun.set()
            await asyncio.Event().wait()

    async def run() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(read(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


LEAVING = [
    close,
    cancel,
    drop,
    aclose,
    leave_its_with_block,
    leave_its_async_with_block,
    cancel_a_reading_task,
    cancel_a_task_that_does_something_else,
]


@pytest.mark.parametrize("leave", LEAVING)
def test_who_leaves_frees_the_row_by_the_next_step(leave: Callable[[list[Any]], None]) -> None:
    model = GatedModel()
    with gen.Engine(model, rows=1) as engine:
        first = [engine.submit("a")]
        second = engine.submit("b")
        model.begun.acquire()
        if leave is not cancel_a_task_that_does_something_else:
            assert next(first[0]) == "h"  # the prompt's token; a step has begun
        leave(first)
        model.gate.release()
        assert next(second) == "h"
        assert model.steps == 3  # two prompts, and the step that had begun
        assert model.read == ["a", "b"]
        model.open()
        assert "".join(second) == "ello"
    assert len(engine_threads()) == 0


def test_a_reader_that_gives_up_waiting_leaves_the_text_to_others() -> None:
    model = GatedModel()
    with gen.Engine(model) as engine:
        stream = engine.submit("x")

        async def give_up() -> None:
            assert await anext(stream) == "h"
            for wait in (anext(stream), stream.acompletion()):
                task: asyncio.Task[object] = asyncio.ensure_future(wait)
                await asyncio.sleep(0)  # it has begun to wait
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(give_up())
        model.open()
        assert "".join(stream) == "ello"
        assert stream.completion().finish_reason == "eos"


def test_a_waiting_request_that_was_cancelled_never_starts() -> None:
    model = GatedModel()
    with gen.Engine(model, rows=1) as engine:
        streams = {name: engine.submit(name) for name in "abc"}
        streams["b"].cancel()
        model.open()
        assert ["".join(streams[name]) for name in "abc"] == ["hello", "", "hello"]
        assert model.read == ["a", "c"]
        with pytest.raises(gen.GenError, match="closed before its text had ended"):
            streams["b"].completion()


def test_a_full_queue_refuses_at_once_and_those_who_were_cancelled_do_not_count() -> None:
    model = GatedModel()
    with gen.Engine(model, rows=1, max_waiting=2) as engine:
        streams = [engine.submit(name) for name in "abc"]
        for _ in range(2):
            with pytest.raises(
                gen.EngineFull, match=r"3 requests run and wait, and 3 may \(rows=1 and max_waiting=2\); ask again"
            ):
                engine.submit("d")
        streams[1].cancel()
        streams.append(engine.submit("d"))
        with pytest.raises(gen.EngineFull):
            engine.submit("e")
        model.open()
        assert ["".join(stream) for stream in streams] == ["hello", "", "hello", "hello"]
        assert "".join(engine.submit("f")) == "hello"
        assert model.read == ["a", "c", "d", "f"]


def test_a_slow_reader_gets_the_whole_text_in_few_pieces_and_holds_nobody_up() -> None:
    with gen.Engine(ScriptedModel("hello " * 20)) as engine:
        slow = engine.submit("x", max_new_tokens=90)
        assert "".join(engine.submit("y")) == "hello " * 20
        assert len(slow.completion().token_ids) == 90
        assert list(slow) == [("hello " * 20)[:90]]


def test_arguments_are_refused_in_the_callers_thread() -> None:
    own: Any = SimpleNamespace(samples=1, penalties=None, step=greedy().step)
    model = ScriptedModel("hello", context_length=8)
    with gen.Engine(model) as engine:
        refused: list[tuple[Any, dict[str, Any], str]] = [
            (["a", "b"], {}, "submit takes one prompt; use gen.generate for a list"),
            ("a", {"sampler": multinomial(samples=2)}, "submit makes one text, the sampler makes 2 a prompt; use gen"),
            ("a", {"sampler": beam_search(3)}, "submit makes one text, the sampler makes 3"),
            (
                "a",
                {"sampler": beam_search(1)},
                "a search of one beam is gen.samplers.greedy, or goes through gen.generate",
            ),
            ("a", {"sampler": own}, "a sampler of your own, as SimpleNamespace, goes through gen.generate, or gen.age"),
            (
                "a",
                {"sampler": multinomial(temperature=torch.tensor([0.5]))},
                "give each parameter of the sampler as a number instead of a tensor, or let it go through gen.generate",
            ),
            ("longer than the context", {}, "Shorten the prompt"),
        ]
        for prompt, arguments, message in refused:
            with pytest.raises(gen.ArgumentError, match=message):
                engine.submit(prompt, **arguments)
        untold: list[tuple[Any, str]] = [
            ({"details": "tensors"}, "details must be True or False, got 'tensors'"),
            ({"top_logprobs": 2}, "top_logprobs are told with details=True"),
            ({"prompt_logprobs": 2}, "prompt_logprobs are told with details=True"),
        ]
        for told, message in untold:
            with pytest.raises(gen.ArgumentError, match=message):
                engine.generate("a", **told)
            with pytest.raises(gen.ArgumentError, match=message):
                asyncio.run(engine.agenerate("a", **told))
        with pytest.raises(gen.ArgumentError, match="submit takes no max_tokens; write max_new_tokens=1"):
            engine.submit("a", max_tokens=1)  # type: ignore[call-arg]
        assert engine.submit("x").completion().text == "hello"
    for wrong in (
        {"rows": 0},
        {"max_waiting": -1},
        {"max_batch_tokens": 0},
        {"admit_tokens": 0},
        {"replay": 1},
        {"cuda_graph": 0},
    ):
        with pytest.raises(gen.ArgumentError, match=next(iter(wrong))):
            gen.Engine(model, **wrong)  # type: ignore[arg-type]
    with pytest.raises(gen.ArgumentError, match="model must be a loaded model"):
        gen.Engine("demo")  # type: ignore[arg-type]
    assert len(engine_threads()) == 0


def test_a_prompt_that_the_model_fails_on_fails_its_own_reader_alone() -> None:
    def script(prompt: str) -> bytes:
        if "bad" in prompt:
            raise ValueError("this prompt is bad")
        return b"hello"

    model = GatedModel(script)
    with gen.Engine(model, rows=4) as engine:
        streams = [engine.submit(prompt) for prompt in ("a", "bad", "b")]
        model.open()
        assert ["".join(streams[number]) for number in (0, 2)] == ["hello", "hello"]
        with pytest.raises(ValueError, match="this prompt is bad"):
            next(streams[1])
        with pytest.raises(ValueError, match="this prompt is bad"):
            streams[1].completion()
        with pytest.raises(ValueError, match="this prompt is bad"):
            asyncio.run(text_of(engine.submit("bad")))
        assert "".join(engine.submit("c")) == "hello"


def test_a_loop_that_fails_tells_everybody_and_takes_no_more() -> None:
    model = FailingModel()
    engine = gen.Engine(model, rows=2)
    streams = [engine.submit(name) for name in "abcd"]

    async def read() -> None:
        readers = [asyncio.create_task(text_of(stream)) for stream in streams[1:]]
        await asyncio.sleep(0)
        model.open()
        for reader in readers:
            with pytest.raises(ZeroDivisionError):
                await reader

    asyncio.run(read())
    errors = []
    for stream in streams:
        for of in (list, EngineStream.completion):
            with pytest.raises(ZeroDivisionError, match="no step") as caught:
                of(stream)
            errors.append(caught.value)
    assert len(set(map(id, errors))) == 2 * len(streams)  # each reader has its own, which it may change
    with pytest.raises(gen.EngineClosed, match=r"has failed \(ZeroDivisionError: no step\); make another one"):
        engine.submit("e")
    engine.close()
    assert len(engine_threads()) == 0


def test_closing_ends_what_is_under_way_and_what_waits() -> None:
    model = GatedModel()
    engine = gen.Engine(model, rows=1)
    streams = [engine.submit(name) for name in "ab"]
    assert next(streams[0]) == "h"
    closing = threading.Thread(target=engine.close)
    closing.start()
    while True:
        try:
            streams.append(engine.submit("c"))
        except gen.EngineClosed as error:
            assert str(error) == "the engine was closed; make another one."
            break
    model.open()
    for stream in streams:
        with pytest.raises(gen.EngineClosed, match="the engine was closed while the request was under way"):
            "".join(stream)
        with pytest.raises(gen.EngineClosed):
            stream.completion()
    closing.join()
    engine.close()
    assert len(engine_threads()) == 0
    assert gen.generate(model, "x") == "hello"  # its rows are as good as new


def test_closing_waits_for_one_step_and_one_part_of_a_prompt_at_most() -> None:
    model = GatedModel("hello" * 20)
    engine = gen.Engine(model, rows=2, admit_tokens=4)
    running = engine.submit("a", max_new_tokens=100)
    assert model.begun.acquire(timeout=60)  # a step, which waits
    joining = engine.submit("x" * 60)
    model.gate.release(2)
    for _ in range(2):
        assert model.begun.acquire(timeout=60)
    steps, read = model.steps, len(model.read)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while True:
        try:
            engine.submit("c").cancel()
        except gen.EngineClosed:
            break
    model.open()
    closing.join()
    assert len(model.read) - read <= 1
    assert model.steps - steps <= 2
    for stream in (running, joining):
        with pytest.raises(gen.EngineClosed):
            stream.completion()


def test_threads_read_their_own_streams() -> None:
    with gen.Engine(ScriptedModel(lambda prompt: prompt.encode() * 5), rows=3) as engine:
        with ThreadPoolExecutor(8) as pool:
            names = [f"<{number}>" for number in range(40)]
            texts = list(pool.map(lambda name: "".join(engine.submit(name)), names))
        assert texts == [name * 5 for name in names]


def test_two_event_loops_share_an_engine() -> None:
    with gen.Engine(ScriptedModel(lambda prompt: prompt.encode() * 5), rows=3) as engine:

        async def read(names: list[str]) -> list[str]:
            return await asyncio.gather(*(text_of(engine.submit(name)) for name in names))

        names = [[f"<{letter}{number}>" for number in range(20)] for letter in "ab"]
        with ThreadPoolExecutor(2) as pool:
            texts = list(pool.map(lambda some: asyncio.run(read(some)), names))
        assert texts == [[name * 5 for name in some] for some in names]


def test_an_event_loop_that_is_gone_harms_no_other_reader() -> None:
    model = GatedModel()
    with gen.Engine(model) as engine:
        stream, other = engine.submit("a"), engine.submit("b")

        async def leave() -> None:
            await asyncio.wait_for(stream.__anext__(), 0)

        with pytest.raises(TimeoutError):
            asyncio.run(leave())
        model.open()
        assert "".join(other) == "hello"


def test_a_thousand_short_requests_leave_nothing_behind() -> None:
    model = ScriptedModel("ab")
    threads = threading.active_count()
    with gen.Engine(model, rows=32) as engine:

        def run(count: int) -> None:
            """Never idle: the next requests come before the earlier ones have ended."""
            older: list[Any] = []
            for start in range(0, count, 32):
                numbers = range(start, start + 32)
                new = [engine.submit("x", sampler=multinomial(temperature=1 + n / count)) for n in numbers]
                new[0].close()
                assert all("".join(stream) == "ab" for stream in older[1:])
                older = new
            assert all("".join(stream) == "ab" for stream in older[1:])
            gc.collect()

        run(320)
        before = sys.getallocatedblocks()
        run(1024)
        grown = sys.getallocatedblocks() - before
        assert threading.active_count() == threads + 1
    assert grown < 2 * 1024  # a request that is not freed has dozens; other tests leave some noise
    assert threading.active_count() == threads


def test_an_engine_that_a_processor_of_its_own_asks_for_a_text_does_not_wait_for_itself() -> None:
    with gen.Engine(ScriptedModel("hello")) as engine, gen.Engine(engine.model) as other:

        def asks(ask: Callable[[str], str]) -> list[Any]:
            return [lambda token_ids, lengths, logits: logits + ask("y").count("!")]

        with pytest.raises(gen.ArgumentError, match="it would wait for itself"):
            engine.generate("x", logits_processors=asks(engine.generate))
        for ask in (other.generate, lambda prompt: gen.generate(engine.model, prompt)):
            assert engine.generate("x", logits_processors=asks(ask)) == "hello"


def test_what_only_requests_that_are_over_have_asked_for_is_not_done_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions and likeliest tokens; the streams of these requests still exist."""
    calls: list[str] = []

    def named(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def processor(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
            calls.append(name)
            return logits

        return processor

    noted(monkeypatch, top_tokens, "likeliest", lambda *_: calls.append("likeliest"))
    model = GatedModel("hello " * 9)
    with gen.Engine(model, rows=2) as engine:
        long = engine.submit("x", logits_processors=[named("long")])
        short = [
            engine.submit("y", max_new_tokens=2, logits_processors=[named("short")]),
            engine.submit("y", max_new_tokens=2, top_logprobs=3),
        ]
        for stream in short:
            model.gate.release(3)
            assert stream.completion().text == "he"
        assert {"long", "short", "likeliest"} == set(calls)
        calls.clear()
        model.open()
        assert long.completion().text == "hello " * 9
    assert set(calls) == {"long"}


def test_functions_are_their_requests_own_in_the_rows_of_an_earlier_batch_too(demo: Any) -> None:
    def no_e(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return logits + banned

    banned = torch.zeros(demo.vocab_size)
    for token_id in range(demo.tokenizer.vocab_size):
        if "e" in demo.tokenizer.decode([token_id]):
            banned[token_id] = -torch.inf
    banned = banned[: demo.tokenizer.vocab_size]
    arguments: dict[str, Any] = {"sampler": greedy(), "max_new_tokens": 24, "eos_token_id": []}
    wanted = [gen.generate(demo, "Once", logits_processors=given, replay=False, **arguments) for given in ([no_e], [])]
    assert "e" not in wanted[0]
    with gen.Engine(demo, rows=2) as engine:
        for order in ([0, 1], [1, 0], [0, 1]):
            long = engine.submit("Once", **arguments)  # so that the others begin together
            streams = [engine.submit("Once", logits_processors=[[no_e], []][which], **arguments) for which in order]
            assert ["".join(stream) for stream in streams] == [wanted[which] for which in order]
            assert "".join(long) == wanted[1]


def test_an_engine_that_nobody_has_any_more_ends_its_thread() -> None:
    engine = gen.Engine(ScriptedModel("hello"))
    [thread] = engine_threads()
    stream = engine.submit("x")
    del engine
    gc.collect()
    assert "".join(stream) == "hello"  # a stream keeps it
    del stream
    assert ends(thread)


def test_a_program_may_end_while_an_engine_works() -> None:
    program = (
        "import gen; model = gen.load('demo', device='cpu', probe=False); engine = gen.Engine(model);"
        "stream = engine.submit('Once', max_new_tokens=400, eos_token_id=[]); print(bool(next(stream)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr


def test_nothing_of_the_caller_changes_what_an_engine_computes(demo: Any) -> None:
    text = gen.generate(demo, "Once", seed=3, max_new_tokens=8)
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), gen.Engine(demo) as engine:
        assert "".join(engine.submit("Once", seed=3, max_new_tokens=8)) == text
