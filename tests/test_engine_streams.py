"""What a stream shows while its text grows, and the numbers that an engine gives about itself."""

import asyncio
import json
import re
import threading
from typing import Any

import pytest

import gen
from gen.constraints import compiling
from gen.loop import engine_thread, feed
from gen.samplers import beam_search, greedy, multinomial, sample_seed
from gen.tokens.tokenizers import Detokenizer, Tokenizer
from tests.helpers import EOS, ScriptedModel, byte_tokenizer
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


@pytest.mark.parametrize("events", [False, True])
def test_a_completion_in_another_thread_takes_no_piece_away(events: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a reader decodes, another thread asks for the completion: it decodes the same tokens, or waits its turn."""
    came, push = threading.Event(), Detokenizer.push

    class Turn:
        def __enter__(self) -> None:
            if threading.current_thread() is other:
                came.set()
            turn.acquire()

        def __exit__(self, *error: object) -> None:
            turn.release()

    def slow(self: Detokenizer, *token_ids: int, last: bool = False) -> str:
        if threading.current_thread() is other:
            came.set()
        elif other.ident is None:
            other.start()
            assert came.wait(60)
        return push(self, *token_ids, last=last)

    turn, made = threading.Lock(), list[gen.Completion]()
    with gen.Engine(ScriptedModel("hello")) as engine:
        stream = engine.submit("abc")
        monkeypatch.setattr(stream._feed, "_reading", Turn())
        other = threading.Thread(target=lambda: made.append(stream.completion()))
        stream._feed.wait(end=True)
        monkeypatch.setattr(Detokenizer, "push", slow)
        pieces = [event.text for event in stream.events()] if events else [*stream]
        other.join()
    assert ("".join(pieces), made[0].text) == ("hello", "hello")


def test_a_text_of_an_output_type_has_no_value_before_its_end_and_a_failed_one_tells_why(demo: Any) -> None:
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
    for read in (list, gen.Stream.events):
        with pytest.raises(gen.SamplingError, match="bad_words left none"):
            list(read(gen.stream(ScriptedModel("hello"), "x", sampler=beam_search(1, bad_words=["e"]))))


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


def test_each_sample_comes_alone_with_the_seed_that_is_told_for_it(demo: Any) -> None:
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


def thinking_model(script: str) -> Any:
    """A scripted model whose chats may begin with a thought, and may call tools in Hermes' form."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{# <tool_call> </think> #}"
    model = GatedModel(script)
    model.tokenizer = Tokenizer(tokenizer)
    return model


def joined(events: list[gen.StreamEvent]) -> tuple[str, str, list[int], list[float], list[gen.TopLogprobs]]:
    """The contents of all events of a text, joined; other tests look at its tool calls."""
    return (
        "".join(event.text for event in events),
        "".join(event.reasoning for event in events),
        [token_id for event in events for token_id in event.token_ids],
        [logprob for event in events for logprob in event.logprobs],
        [top for event in events for top in event.top_logprobs or []],
    )


THOUGHT = "<think>\nHm,\nwell.\n</think>\n\nTwo \u00e9."


@pytest.mark.parametrize("stop", [None, "END", "\u00e9"])
def test_events_joined_are_the_completion(stop: str | None) -> None:
    model = thinking_model(THOUGHT)
    model.open()
    given: dict[str, Any] = {"chat": True, "stop": stop, "max_new_tokens": 100, "top_logprobs": 1, "seed": 1}
    wanted = gen.generate(model, "x", details=True, **given)
    told = (wanted.text, wanted.reasoning, wanted.token_ids, wanted.logprobs, wanted.top_logprobs)
    assert told[:2] == ("Two " if stop == "\u00e9" else "Two \u00e9.", "Hm,\nwell.")
    stream = gen.stream(model, "x", **given)
    events = [*stream.events()]
    assert joined(events) == told
    assert stream.completion() == wanted
    assert all(event.text or event.reasoning for event in events[:-1])
    with gen.Engine(model) as engine:

        async def read() -> list[gen.StreamEvent]:
            return [event async for event in engine.submit("x", **given).events()]

        assert joined(asyncio.run(read())) == told
        slow = engine.submit("x", **given)
        assert slow.completion() == wanted
        [event] = slow.events()  # merged
        assert joined([event]) == told


def test_a_thought_is_told_while_it_grows_though_stops_are_looked_for() -> None:
    model = thinking_model(THOUGHT)
    with gen.Engine(model) as engine:
        stream = engine.submit("x", chat=True, stop="END", max_new_tokens=100)
        model.gate.release(THOUGHT.index("Hm,") + len("Hm,"))
        event = next(stream.events())
        assert (event.reasoning[:1], event.text) == ("H", "")
        assert model.begun.acquire(timeout=60)
        model.open()
        rest = joined([*stream.events()])
        assert (event.reasoning + rest[1], rest[0]) == ("Hm,\nwell.", "Two \u00e9.")


def test_calls_of_tools_come_as_deltas() -> None:
    arguments = '{"of": [{"x": "}\\""}]}'
    parameters = {"type": "object", "properties": {"of": {"type": "array", "items": {"type": "object"}}}}
    tool = {"type": "function", "function": {"name": "tree", "parameters": parameters}}
    call = f'<tool_call>\n{{"name": "tree", "arguments": {arguments}}}\n</tool_call>'
    model = thinking_model(f"<think>Hm.</think> Let me see. <b>\n{call}\n{call}")
    model.open()
    kind = gen.tool_calls([tool])
    given: dict[str, Any] = {"chat": True, "max_new_tokens": 400, "sampler": greedy()}
    with gen.Engine(model) as engine:
        for stream in (gen.stream(model, "x", kind, **given), engine.submit("x", kind, **given)):
            events = [*stream.events()]
            value = stream.completion().value
            assert joined(events)[:2] == (value.text, "Hm.") == ("Let me see. <b>", "Hm.")
            deltas = [delta for event in events for delta in event.tool_calls]
            for number, made in enumerate(value.calls):
                own = [delta for delta in deltas if delta.number == number]
                assert [delta.name for delta in own] == ["tree"] + [None] * (len(own) - 1)
                assert "".join(delta.arguments for delta in own) == arguments
                assert json.loads(arguments) == made.arguments
            assert len(value.calls) == 2


def test_a_stream_gives_either_pieces_or_events() -> None:
    with gen.Engine(ScriptedModel("hello")) as engine:
        for make in (engine.submit, lambda prompt: gen.stream(ScriptedModel("hello"), prompt)):
            stream: gen.Stream = make("x")
            first = next(iter(stream.events()))
            with pytest.raises(gen.GenError, match="the stream is read as events, and gives no pieces beside them"):
                next(stream)
            assert first.text + "".join(event.text for event in stream.events()) == "hello"
            stream = make("x")
            piece = next(stream)
            with pytest.raises(gen.GenError, match="is read as pieces, and gives no events"):
                stream.events()
            assert piece + "".join(stream) == "hello"


def test_events_of_a_search_come_at_its_end_and_a_text_that_is_not_whole_raises_behind_them(demo: Any) -> None:
    [event] = gen.stream(ScriptedModel("hello"), "x", sampler=beam_search(1)).events()
    assert (event.text, len(event.token_ids)) == ("hello", 5)
    kind, given = gen.regex("[ab]{4}"), {"stop": "a", "seed": 1, "max_new_tokens": 4}
    with gen.Engine(demo) as engine:
        for stream in (gen.stream(demo, "x", kind, **given), engine.submit("x", kind, **given)):  # type: ignore[arg-type]
            read: list[gen.StreamEvent] = []
            with pytest.raises(gen.IncompleteError) as caught:
                read.extend(stream.events())  # keeps what came before the error
            assert joined(read)[2] == caught.value.completion.token_ids != []


def test_requests_that_are_submitted_as_one_give_the_texts_of_generate(demo: Any) -> None:
    prompts = ["Once", "One morning", "Describe Ada as JSON.\n"]
    kinds = [None, gen.regex("[ab]{3}x"), bool]
    samplers: Any = [multinomial(samples=3, temperature=0.8), greedy(), multinomial(samples=2, top_k=5)]
    given: dict[str, Any] = {"sampler": samplers, "seed": [1, 2, 3], "max_new_tokens": [4, 5, 6]}
    wanted: Any = gen.generate(demo, prompts, kinds, **given)
    with gen.Engine(demo, rows=2, max_waiting=4) as engine:
        streams = engine.submit_all(prompts, kinds, **given)
        made = [stream.completion() for stream in streams]
        assert [one.value for one in made] == [*wanted[0], wanted[1], *wanted[2]]
        assert [one.seed for one in made[:3]] == [sample_seed(1, number) for number in range(3)]
        one = engine.submit_all("Once", sampler=samplers[0], seed=1, max_new_tokens=4)
        assert [stream.completion().text for stream in one] == wanted[0]
        with pytest.raises(gen.ArgumentError, match="an engine runs"):
            engine.submit_all(prompts, sampler=beam_search(2))
        with pytest.raises(gen.ArgumentError, match=r"7 texts are asked for at once, and the engine takes 6 \(rows=2 "):
            engine.submit_all("x", sampler=multinomial(samples=7))


def test_all_of_them_join_or_none() -> None:
    model = GatedModel("hello")
    with gen.Engine(model, rows=1, max_waiting=2) as engine:
        first = engine.submit("a")
        with pytest.raises(gen.EngineFull, match="1 requests run and wait, and 3 may"):
            engine.submit_all(["b", "c", "d"])
        assert engine.stats().waiting + engine.stats().running == 1
        streams = engine.submit_all(["b", "c"])
        model.open()
        assert ["".join(stream) for stream in (first, *streams)] == ["hello"] * 3
        assert model.read == ["a", "b", "c"]


def test_the_lowest_priority_is_next_unless_another_has_waited_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(engine_thread, "monotonic", lambda: now)
    for waited, wanted in ((59.0, "xdcab"), (60.0, "xadcb")):
        model = GatedModel("h")
        with gen.Engine(model, rows=1) as engine:
            streams = [engine.submit("x")]
            assert model.begun.acquire(timeout=60)
            streams.append(engine.submit("a", priority=7))
            now += waited
            streams += engine.submit_all(["b"], priority=9)
            streams += [engine.submit("c"), engine.submit("d", priority=-1)]
            model.open()
            assert ["".join(stream) for stream in streams] == ["h"] * 5
        assert "".join(model.read) == wanted
    with gen.Engine(ScriptedModel("h")) as engine, pytest.raises(gen.ArgumentError, match="priority must be a whole"):
        engine.submit("x", priority=0.5)  # type: ignore[arg-type]


def test_who_leaves_while_its_type_is_compiled_makes_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return carry_out(*given)

    carry_out = compiling.carry_out
    monkeypatch.setattr(compiling, "carry_out", slowly)
    with gen.Engine(ScriptedModel("ab"), rows=1, max_waiting=2) as engine:
        streams = engine.submit_all(["x", "y"], gen.regex("a(b|c)?(d|e)?"))
        assert begun.wait(60)
        streams.append(engine.submit("w", gen.regex("a(b|c)?(d|e)?"), max_new_tokens=0))
        assert engine.stats().compiling == 3
        with pytest.raises(gen.EngineFull):
            engine.submit("z")
        streams[0].cancel()
        assert engine.submit("z").completion().text == "ab"  # while the type is being compiled
        streams[2].cancel()
        for stream in (streams[0], streams[2]):
            so_far = stream.so_far()
            assert (so_far.value, so_far.finish_reason, list(stream)) == (None, "cancelled", [])
            with pytest.raises(gen.GenError, match="was closed before its text had ended"):
                stream.completion()
        go_on.set()
        assert streams[1].completion().value == "ab"


def test_a_panic_while_a_type_is_compiled_is_the_error_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As libraries written in Rust raise it."""

    def panic(*given: Any) -> Any:
        raise Panic("no such state")

    monkeypatch.setattr(compiling, "carry_out", panic)
    with gen.Engine(ScriptedModel("ab")) as engine:
        stream = engine.submit("x", gen.regex("a(b|c)?(d|f)?"))
        engine._thread._preparers.shutdown()  # which waits for what it compiles
        with pytest.raises(Panic, match="no such state"):
            stream.so_far()


def test_who_reads_in_a_thread_waits_a_moment_after_each_piece_and_is_not_woken_for_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, slept = GatedModel("hello"), list[float]()
    monkeypatch.setattr(feed, "monotonic", lambda: 100.0)
    with gen.Engine(model) as engine:
        stream = engine.submit("x")

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            model.gate.release(2)
            while len(stream.so_far().token_ids) < 3:
                threading.Event().wait(0.001)

        monkeypatch.setattr(feed, "sleep", sleep)
        assert next(stream) == "h"  # at once
        assert slept == []
        assert next(stream) == "el"
        assert slept == pytest.approx([feed.BETWEEN])
        model.open()
        stream.completion()
        assert next(stream) == "lo"  # it is there already
        assert slept == pytest.approx([feed.BETWEEN])
