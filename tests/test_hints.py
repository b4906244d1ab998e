"""Arguments that people know from other libraries: each function says what to write instead, and that works."""

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import gen
from gen.hints import GENERATING, LOADING, STREAMING, refuse_unknown_arguments
from gen.requests.settings import Settings
from tests.helpers import ScriptedModel


def agenerate(model: Any, prompt: str, **arguments: Any) -> Any:
    return asyncio.run(gen.agenerate(model, prompt, **arguments))


def submit(model: Any, prompt: str, **arguments: Any) -> Any:
    with gen.Engine(model) as engine:
        return engine.submit(prompt, **arguments).completion().text


def call(name: str) -> Callable[..., Any]:
    functions: dict[str, Callable[..., Any]] = {"agenerate": agenerate, "submit": submit}
    return functions[name] if name in functions else getattr(gen, name)


FUNCTIONS = ["generate", "stream", "agenerate", "astream", "submit"]
SPEAKING: list[Any] = [gen.generate, gen.stream, gen.agenerate, gen.astream, gen.generate_iter]
SPEAKING += [gen.Engine.submit, gen.Engine.submit_all, gen.Engine.generate, gen.Engine.agenerate]
LOADERS: list[Any] = [gen.load, gen.from_transformers, gen.load_encoder]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"temperature": 0.7}, "sampler=gen.samplers.multinomial(temperature=0.7)"),
        ({"top_p": 0.9, "top_k": 3, "do_sample": True}, "sampler=gen.samplers.multinomial(top_p=0.9, top_k=3)"),
        ({"min_p": 0.1, "top_k": 0}, "sampler=gen.samplers.multinomial(min_p=0.1, top_k=None)"),
        ({"do_sample": True}, "sampler=gen.samplers.multinomial()"),
        ({"do_sample": False, "repetition_penalty": 1.2}, "sampler=gen.samplers.greedy(repetition_penalty=1.2)"),
        ({"bad_words_ids": [[3]]}, "sampler=gen.samplers.multinomial(bad_words=[[3]])"),
        ({"num_beams": 1, "length_penalty": 2}, "sampler=gen.samplers.beam_search(beams=1, length_penalty=2)"),
        (
            {"num_beams": 2, "temperature": 1},
            "sampler=gen.samplers.beam_search(beams=2), or sampler=gen.samplers.multinomial(temperature=1)",
        ),
        ({"n": 1}, "sampler=gen.samplers.multinomial(samples=1)"),
        ({"max_tokens": 5}, "max_new_tokens=5"),
        ({"max_length": 5}, "max_new_tokens=..., which does not count the prompt"),
        ({"stop_strings": ["l"]}, "stop=['l']"),
        ({"max_tokens": 5, "top_k": 2}, "max_new_tokens=5, and sampler=gen.samplers.multinomial(top_k=2)"),
    ],
    ids=str,
)
def test_each_function_says_what_to_write(function: str, arguments: dict[str, Any], advice: str) -> None:
    model = ScriptedModel("hello")
    with pytest.raises(gen.ArgumentError) as caught:
        call(function)(model, "x", **arguments)
    assert str(caught.value) == f"{function} takes no {', '.join(arguments)}; write {advice}."
    assert isinstance(caught.value, TypeError)
    assert model.steps == 0
    if "..." not in advice and ", or " not in advice and not (function in ("astream", "submit") and "beam" in advice):
        call(function)(model, "x", **eval(f"dict({advice.replace(', and ', ', ')})", {"gen": gen}))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_names_are_answered_with_the_nearest_and_all_that_there_are(function: str) -> None:
    model = ScriptedModel("hello")
    with pytest.raises(TypeError, match=r"takes .*\bseed\b.*, got 'max_new_token'; did you mean 'max_new_tokens'\?"):
        call(function)(model, "x", max_new_token=3)
    for name in ("colour", "\ud800", "x" * 1000):
        with pytest.raises(gen.ArgumentError) as caught:
            call(function)(model, "x", **{name: 3})
        assert len(str(caught.value)) < 500
        str(caught.value).encode()
    assert model.steps == 0


@pytest.mark.parametrize("function", [*SPEAKING, *LOADERS])
def test_no_function_is_said_to_take_what_it_does_not_take(function: Callable[..., Any]) -> None:
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    hints = LOADING if function in LOADERS else GENERATING
    for name in {name for names in (*hints, *STREAMING) for name in names} - {*known}:
        with pytest.raises(gen.ArgumentError) as caught:
            refuse_unknown_arguments(function.__name__, {name: 1}, known, hints)
        advice = str(caught.value).partition("; write ")[2]
        assert {*re.findall(r"(?<!\()\b(\w+)=", advice)} <= {*known}, advice


@pytest.mark.parametrize("name", [name for names in GENERATING for name in names])
def test_no_advice_is_for_a_name_that_there_is(name: str) -> None:
    assert name not in Settings.__annotations__
    with pytest.raises(gen.ArgumentError, match=f"stream takes no {name}; write ") as caught:
        call("stream")(ScriptedModel("hello"), "x", **{name: "{}\n" * 1000})
    assert len(str(caught.value)) < 200


def test_signatures_stay_as_they_are_written() -> None:
    for function in (gen.generate, gen.stream):
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
        assert [*parameters][:3] == ["model", "prompt", "output_type"]
        assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        assert function.__doc__
    assert inspect.iscoroutinefunction(gen.agenerate)
