"""Schemas are compiled in processes of their own: one that takes too much time or memory delays no other request."""

import asyncio
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.reduction import send_handle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import uvloop

import gen
from gen.constraints import compiling as constraints
from gen.constraints.automata.dfa import Table
from gen.constraints.automata.regexes import regex_table
from gen.constraints.composing.trees import Plan
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.server import app
from gen.server import compiling as server
from gen.server.compiling import Compiling
from tests.helpers import ScriptedModel
from tests.helpers.demo import short_demo
from tests.helpers.forked import Forked
from tests.server.client import Client
from tests.server.endless import begun, endless

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TREE = {"type": "object", "properties": {"of": {"$ref": "#"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
TYPES = [
    gen.json_schema(SCHEMA),
    gen.json_schema(TREE),
    gen.regex("a[0-9]+"),
    gen.choice(["a", "b"]),
    gen.grammar('start: "a"+'),
    gen.sequence("<", gen.either(gen.regex("x+"), gen.json_schema(TREE)), ">"),
    gen.tool_calls(TOOLS),
]


@pytest.mark.parametrize("output_type", TYPES)
def test_what_another_process_has_worked_out_is_what_would_be_worked_out_here(output_type: Any) -> None:
    model = ScriptedModel("x")
    plan, vocabulary = constraints.read_type(model, output_type), vocabulary_of(model)
    sent = pickle.loads(pickle.dumps((constraints.portable(plan), vocabulary)))
    worked = pickle.loads(pickle.dumps(constraints.work_out(*sent)))
    there, here = constraints.carry_out(model, plan, worked), gen.compile(ScriptedModel("x"), output_type)
    assert (there.engine, there.reason, there.states, there.special_ids) == (
        (here.engine, here.reason, here.states, here.special_ids)
    )
    if there.automaton is not None and here.automaton is not None:
        assert np.array_equal(there.automaton.table.next, here.automaton.table.next)
        assert np.array_equal(there.automaton.needed, here.automaton.needed)
    for text in ('{"a": 7}', "a1", "b", "<xx>", 'hi <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'):
        assert there.accepts(text) == here.accepts(text)
        if here.accepts(text):
            assert there.read(text) == here.read(text)


def huge() -> Table:
    return Table(np.ones((2**33,), np.uint8), *regex_table("a")[1:])


def plan_of(table: Any, key: object) -> Plan:
    return Plan(key=key, table=table, grammar=partial(str), parse=str)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Test plans instead of output types."""
    monkeypatch.setattr(server, "read_type", lambda model, plan: plan)
    monkeypatch.setattr(server, "compiled_before", lambda model, plan: None)
    yield


def test_a_small_type_is_compiled_while_eight_others_take_for_ever(plans: None) -> None:
    model = ScriptedModel("x")
    compiling = Compiling(model)

    async def run() -> None:
        slow = [asyncio.create_task(compiling.ready(plan_of(partial(endless, n), n))) for n in range(8)]
        await asyncio.sleep(0)
        await compiling.ready(plan_of(partial(regex_table, "[ab]{3}"), "small"))
        assert not any(task.done() for task in slow)
        compiling.close()
        assert all(isinstance(one, gen.EngineClosed) for one in await asyncio.gather(*slow, return_exceptions=True))

    asyncio.run(run())
    kept = constraints._kept[model.tokenizer]
    assert kept["small"].accepts("aba")


def test_a_type_that_nobody_waits_for_any_more_is_compiled_for_those_who_ask_later(plans: None) -> None:
    model = ScriptedModel("x")
    compiling = Compiling(model)
    plan = plan_of(partial(regex_table, "[ab]{4}"), "later")

    async def run() -> None:
        first = asyncio.create_task(compiling.ready(plan))
        await asyncio.sleep(0)
        first.cancel()
        await compiling.ready(plan)
        assert first.cancelled() and not compiling._running
        failing = asyncio.create_task(compiling.ready(plan_of(partial(regex_table, "("), "failing")))
        await asyncio.sleep(0)
        failing.cancel()
        while compiling._running:
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert constraints._kept[model.tokenizer]["later"].accepts("abab")
    compiling.close()


def test_nothing_waits_for_a_type_when_the_event_loop_ends_and_its_process_ends_too(
    plans: None, tmp_path: Path
) -> None:
    compiling, told, before = (
        Compiling(ScriptedModel("x"), seconds=10**6),
        tmp_path / "told",
        waited_for(),
    )

    async def run() -> None:
        waiting = asyncio.create_task(compiling.ready(plan_of(partial(begun, told), 0)))
        while not (told.exists() and told.read_text().endswith("\n")):
            await asyncio.sleep(0.001)
        assert not waiting.done()

    asyncio.run(run())
    assert waited_for() <= before
    with suppress(FileNotFoundError, ProcessLookupError):
        while not re.search(r"\) [ZX] ", Path(f"/proc/{int(told.read_text())}/stat").read_text()):
            pass  # until the system has ended it
    compiling.close()


def waited_for() -> set[threading.Thread]:
    """The threads that Python would wait for at its end."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


def test_what_takes_too_much_time_or_memory_is_refused(plans: None) -> None:
    compiling = Compiling(ScriptedModel("x"), seconds=1, memory=2**30)
    for table in (partial(endless, 0), huge):
        with pytest.raises(gen.ConstraintError, match="takes more than 1 seconds or 1024 MiB to compile"):
            asyncio.run(compiling.ready(plan_of(table, "plan")))
    asyncio.run(compiling.ready(plan_of(partial(regex_table, "a"), "after them")))
    compiling.close()


def test_a_fault_of_the_process_that_compiles_is_no_fault_of_the_type(
    plans: None, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(server, "get_context", get_context)  # so that it writes to this process's stderr
    compiling = Compiling(ScriptedModel("x"))
    with pytest.raises(RuntimeError, match="ValueError while a type was compiled: invalid literal"):
        asyncio.run(compiling.ready(plan_of(partial(int, "x"), "plan")))
    assert "Traceback" in capfd.readouterr().err
    compiling.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks for each type")
def test_a_process_that_ends_before_it_comes_to_a_type_is_no_fault_of_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(requests: Any, handle: int, process: int) -> None:
        send_handle(requests, handle, process)
        os.kill(process, signal.SIGKILL)

    compiling = Compiling(ScriptedModel("x"))
    compiling.begin()
    os.kill(compiling._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(server, "send_handle", sent)
    with pytest.raises(RuntimeError, match="has ended before it came to this one"):
        asyncio.run(compiling.ready(gen.regex("a[0-9]+")))
    compiling.close()


def test_a_schema_that_cannot_be_compiled_is_a_bad_request_and_others_give_the_texts_of_generate() -> None:
    demo = gen.load("demo", device="cpu")
    fields: dict[str, Any] = {"prompt": "Describe Ada as JSON.\n", "temperature": 0, "max_tokens": 40}
    with gen.Engine(demo) as engine:
        client = Client(app(engine))
        made = client.post("/v1/completions", {**fields, "structured_outputs": {"json": SCHEMA}})
        wanted = gen.generate(
            demo,
            fields["prompt"],
            gen.json_schema(SCHEMA),
            sampler=gen.samplers.greedy(),
            max_new_tokens=40,
            details=True,
        )
        assert made.json["choices"][0]["text"] == wanted.text
        steps = engine.stats().steps
        for structure, said in [
            ({"regex": "a(?=b)c"}, "not regular"),
            ({"regex": "[ab]c(a{1000}){1000}"}, "lexer error: too many"),  # which is found after two tokens
            ({"grammar": 'start: "a'}, "lexer error"),
        ]:
            refused = client.post("/v1/completions", {**fields, "structured_outputs": structure})
            assert refused.status == 400 and said in refused.json["error"]["message"], refused.json
            assert engine.stats().steps == steps


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks for each type")
def test_a_server_that_ends_at_once_leaves_no_word_of_the_process_that_compiles() -> None:
    def program() -> None:
        compiling = Compiling(short_demo())
        threading.Thread(target=compiling.begin).start()
        while compiling._process is None or compiling._process.pid is None:  # its vocabulary is sent next
            time.sleep(0.001)
        os._exit(0)

    code, out, err = Forked(program).end()  # when both processes have ended
    assert (code, out) == (0, "") and "Traceback" not in err


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_result_that_is_larger_than_a_pipe_comes_whole_in_every_event_loop(make_loop: Any) -> None:
    results, written = Pipe(duplex=False)
    large = b"x" * 2**22

    async def received() -> Any:
        await server._readable(results)
        return await asyncio.to_thread(results.recv)

    with results, written, asyncio.Runner(loop_factory=make_loop) as runner:
        sending = threading.Thread(target=written.send, args=(large,))
        sending.start()
        assert runner.run(received()) == large
        sending.join()


def test_the_process_does_not_run_the_servers_program_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = ModuleType("__main__")
    program.__file__ = str(tmp_path / "program.py")
    Path(program.__file__).write_text("raise SystemExit('the program runs again')\n")
    monkeypatch.setitem(sys.modules, "__main__", program)

    async def compiled() -> None:
        compiling = Compiling(ScriptedModel("x"))
        await compiling.ready(gen.regex("a[0-9]+b"))
        compiling.close()

    asyncio.run(compiled())
    assert sys.modules["__main__"] is program and "runs again" not in capfd.readouterr().err
