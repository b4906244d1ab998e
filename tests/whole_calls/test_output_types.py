"""Output types in every call: values, lists, samples, beams, streams, engines, and what is refused or incomplete."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from threading import current_thread
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import BaseModel, Field, ValidationError, field_validator

import gen
from gen.constraints import compiling
from gen.samplers import beam_search, multinomial
from tests.helpers import EOS, ScriptedModel, byte_tokenizer, spaced_tokenizer, tiny_model
from tests.helpers.noting import noted


class Person(BaseModel):
    name: Literal["Ada", "Alan"]
    age: int
    likes: list[Literal["tea", "maths"]]


@dataclass
class Point:
    x: bool
    y: bool


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _refuse_all(cls, value: int) -> int:
        raise KeyError("not even an error of pydantic's")


class Adult(BaseModel):
    age: int = Field(le=9, ge=0)

    @field_validator("age")
    @classmethod
    def _refuse_all(cls, value: int) -> int:
        raise ValueError("too young")


NESTED = gen.grammar('start: "(" start ")" | "(" ")"')


def new_model(**changes: Any) -> Any:
    return gen.from_transformers(
        tiny_model("llama", vocab_size=259, eos_token_id=EOS, max_position_embeddings=256, **changes), byte_tokenizer()
    )


@pytest.fixture(scope="module")
def model() -> Any:
    return new_model()


def test_a_value_of_the_type_is_returned(model: Any) -> None:
    person = gen.generate(model, "Ada\n", Person, seed=1)
    assert isinstance(person, Person)
    assert isinstance(gen.generate(model, "x", Point, seed=1), Point)
    number = gen.generate(model, "x", int, seed=1)
    assert type(number) is int
    assert isinstance(gen.generate(model, "x", date, seed=1), date)
    assert gen.generate(model, "x", type(None), seed=1) is None
    assert gen.generate(model, "x", gen.choice(["a", 2]), seed=1) in ("a", 2)
    assert gen.generate(model, "x", gen.json_schema({"const": {"a": [1]}}), seed=1) == {"a": [1]}
    assert isinstance(gen.generate(model, "x", str, seed=1, max_new_tokens=9), str)


def test_none_asks_for_nothing(model: Any) -> None:
    plain = gen.generate(model, "x", seed=1, max_new_tokens=9, details=True)
    assert gen.generate(model, "x", None, seed=1, max_new_tokens=9, details=True) == plain
    assert plain.engine is None and plain.value == plain.text


def test_a_list_has_one_type_for_all_or_one_each(model: Any) -> None:
    prompts, types = ["a", "b", "c", "d"], [bool, None, Point, NESTED]
    values = gen.generate(model, prompts, types, seed=[1, 2, 3, 4], max_new_tokens=80)
    alone = [gen.generate(model, *one, seed=n, max_new_tokens=80) for n, one in enumerate(zip(prompts, types), 1)]  # noqa: B905
    assert values == alone
    assert [type(value) for value in values] == [bool, str, Point, str]
    numbers = gen.generate(model, prompts, int, seed=5)
    assert [type(number) for number in numbers] == [int] * 4
    with pytest.raises(gen.ConstraintError, match="one for each of 4 prompts, got 2"):
        gen.generate(model, prompts, [int, bool])
    with pytest.raises(gen.ConstraintError, match="no output type"):
        gen.generate(model, "a", [int, bool])


def test_details_are_completions_with_text_value_and_engine(model: Any) -> None:
    made = gen.generate(model, ["x", "x"], [Person, NESTED], seed=3, details=True)
    assert isinstance(made[0].value, Person)
    assert json.loads(made[0].text) == made[0].value.model_dump()
    assert [one.engine for one in made] == ["device", "host"]
    assert made[1].value == made[1].text
    assert all(len(one.token_ids) == len(one.logprobs) for one in made)


def test_samples_and_beams_give_lists_of_values(model: Any) -> None:
    points = gen.generate(model, ["a", "b"], Point, sampler=multinomial(3), seed=1)
    assert [[type(point) for point in group] for group in points] == [[Point] * 3] * 2
    assert len({str(point) for group in points for point in group}) > 1
    best = gen.generate(model, "a", gen.choice(["yes", "no"]), sampler=beam_search(2), num_return_sequences=2)
    assert sorted(best) == ["no", "yes"]
    likeliest = gen.generate(model, "a", gen.choice(["yes", "no"]), sampler=beam_search(2))
    assert likeliest == best[0]


def test_a_stream_is_the_text_and_its_completion_has_the_value(model: Any) -> None:
    wanted = gen.generate(model, "x", Person, seed=2, details=True)
    stream = gen.stream(model, "x", Person, seed=2)
    assert "".join(stream) == wanted.text
    assert stream.completion() == wanted
    whole = gen.stream(model, "x", Person, sampler=beam_search(1))
    assert isinstance(Person.model_validate_json("".join(whole)), Person)


def test_engines_and_asyncio_give_the_same_values(model: Any) -> None:
    types: list[Any] = [Person, int, None, gen.compile(model, Point), NESTED, gen.regex("[a-z]{3}")]
    wanted = [gen.generate(model, "x", one, seed=4, max_new_tokens=80, shorten=True, details=True) for one in types]
    with gen.Engine(new_model(), rows=3) as engine:
        types[3] = Point  # what was compiled belongs to another model
        streams = [engine.submit("x", one, seed=4, max_new_tokens=80, shorten=True) for one in types]
        assert ["".join(stream) for stream in streams] == [one.text for one in wanted]
        assert [stream.completion().value for stream in streams] == [one.value for one in wanted]

    async def both() -> tuple[Any, list[str]]:
        own = new_model()
        values = await gen.agenerate(own, ["x"] * len(types), types, seed=4, max_new_tokens=80, shorten=True)
        pieces = [piece async for piece in gen.astream(own, "x", Person, seed=4, max_new_tokens=80, shorten=True)]
        sampled = await gen.agenerate(own, "x", Point, sampler=multinomial(2), seed=4)
        assert [type(point) for point in sampled] == [Point, Point]
        own.release()
        return values, pieces

    values, pieces = asyncio.run(both())
    assert values == [one.value for one in wanted]
    assert "".join(pieces) == wanted[0].text


def test_an_engine_raises_what_is_amiss_with_a_type_where_its_text_is_read(model: Any) -> None:
    with gen.Engine(new_model(), rows=2) as engine:
        with pytest.raises(gen.ConstraintError, match="no output type"):
            engine.submit("x", "int")
        empty = engine.submit("x", gen.json_schema({"type": "integer", "minimum": 2, "maximum": 1}))
        short = engine.submit("x", Person, max_new_tokens=3)
        fine = engine.submit("x", bool, seed=1)
        with pytest.raises(gen.ConstraintError, match="no text meets the output type"):
            list(empty)
        with pytest.raises(gen.ConstraintError, match="max_new_tokens is 3"):
            short.completion()
        assert isinstance(fine.completion().value, bool)
        with pytest.raises(gen.ConstraintError, match="max_new_tokens is 2"):
            engine.submit("x", Person, max_new_tokens=2)  # compiled by now, so checked at once


def test_engines_and_asyncio_compile_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    own, threads = new_model(), noted(monkeypatch, compiling, "_made", lambda *_: current_thread())
    with gen.Engine(own) as engine:
        first = engine.submit("x", bool, seed=1)
        assert isinstance(first.completion().value, bool)

    async def ask() -> Any:
        return await gen.agenerate(own, "x", int, seed=1), gen.astream(own, "x", type(None)).completion().value

    number, nothing = asyncio.run(ask())
    assert type(number) is int and nothing is None
    own.release()
    assert len(threads) == 3
    assert current_thread() not in threads


def test_what_stands_around_a_call_does_not_matter(model: Any) -> None:
    kinds: list[Any] = [Person, NESTED]
    wanted = gen.generate(model, ["x", "y"], kinds, seed=1)
    with torch.device("meta"), torch.autocast("cpu"):
        assert gen.generate(model, ["x", "y"], kinds, seed=1) == wanted
        assert gen.compile(model, gen.choice(["never", "seen"])).read("seen") == "seen"


def test_a_request_that_is_cancelled_or_whose_engine_closes_while_it_is_compiled_ends() -> None:
    own = new_model()
    with gen.Engine(own, rows=1) as engine:
        cancelled = engine.submit("x", gen.regex("(a|b)*a(a|b){7}"))
        cancelled.cancel()
        assert list(cancelled) == []
        left = engine.submit("x", gen.regex("(a|b)*a(a|b){8}"))
    with pytest.raises(gen.EngineClosed):
        list(left)


class TestIncomplete:
    def test_in_a_list_the_others_are_there(self, model: Any) -> None:
        with pytest.raises(gen.BatchError) as raised:
            gen.generate(model, ["a", "b"], [gen.grammar("start: /a{50}/"), bool], max_new_tokens=5, seed=1)
        [error, value] = raised.value.results
        assert isinstance(error, gen.IncompleteError)
        assert error.completion.text == "aaaaa"
        assert isinstance(value, bool)

    def test_at_the_end_of_a_stream(self, model: Any) -> None:
        endless = gen.grammar("start: /a{50}/")
        stream = gen.stream(model, "x", endless, max_new_tokens=4)
        assert [next(stream) for _ in range(4)] == ["a"] * 4
        with pytest.raises(gen.IncompleteError):
            next(stream)
        with pytest.raises(gen.IncompleteError):
            stream.completion()
        with gen.Engine(model, rows=1) as engine:
            submitted = engine.submit("x", endless, max_new_tokens=4)
            pieces = []
            with pytest.raises(gen.IncompleteError) as raised:
                for piece in submitted:
                    pieces.append(piece)
            assert "".join(pieces) == raised.value.completion.text == "aaaa"

    def test_only_texts_that_are_returned_must_be_whole(self, model: Any) -> None:
        """Some beams of a host constraint may be cut; they do not make the requested one fail."""
        kind = gen.grammar('start: "a" | "b" start')
        best = gen.generate(model, "x", kind, sampler=beam_search(3, length_penalty=-5.0), max_new_tokens=4)
        assert best in ("a", "ba", "bba", "bbba")

    def test_a_whole_beam_that_nothing_can_follow_is_a_value_where_the_limit_has_ended_the_search(self) -> None:
        own = tiny_model("llama", vocab_size=259, max_position_embeddings=256)
        own.generation_config.eos_token_id = own.config.eos_token_id = None
        without_eos, kind = gen.from_transformers(own, byte_tokenizer()), gen.grammar('start: "(" start ")" | "x"')
        given: dict[str, Any] = {"sampler": beam_search(3), "shorten": True, "details": True}
        made = [gen.generate(without_eos, f"x{limit}", kind, max_new_tokens=limit, **given) for limit in (3, 5, 8, 20)]
        assert {one.value for one in made} <= {"x", "(x)", "((x))"}
        assert "length" in {one.finish_reason for one in made}


def by_stream(model: Any, *arguments: Any, **others: Any) -> Any:
    list(gen.stream(model, *arguments, **others))


def by_engine(model: Any, *arguments: Any, **others: Any) -> Any:
    with gen.Engine(model, rows=1) as engine:
        engine.generate(*arguments, **others)


class TestValuesThatTheirTypesRefuse:
    @pytest.mark.parametrize("read", [gen.generate, by_stream, by_engine])
    def test_the_error_has_the_text_and_what_pydantic_says(self, model: Any, read: Callable[..., Any]) -> None:
        with pytest.raises(gen.ValueRefusedError, match="refuses a text that meets its schema") as raised:
            read(model, "x", Adult, seed=1)
        error = raised.value
        assert not isinstance(error, gen.IncompleteError)
        assert json.loads(error.text).keys() == {"age"} and error.text == error.completion.text
        assert (error.completion.value, error.completion.finish_reason) == (None, "eos")
        with pytest.raises(ValidationError) as expected:
            Adult.model_validate_json(error.text)
        assert repr(error.errors) == repr(expected.value.errors(include_url=False))
        assert [(one["type"], one["loc"], one["msg"]) for one in error.errors] == [
            ("value_error", ("age",), "Value error, too young")
        ]

    def test_errors_that_are_not_pydantics_are_the_cause_alone(self, model: Any) -> None:
        with pytest.raises(gen.ValueRefusedError) as raised:
            gen.generate(model, "x", Even)
        assert isinstance(raised.value.__cause__, KeyError)
        assert raised.value.errors == []
        assert json.loads(raised.value.text).keys() == {"number"}

    def test_arguments_of_tools_are_values_too(self, model: Any) -> None:
        with pytest.raises(gen.ValueRefusedError) as raised:
            gen.generate(model, "x", gen.tool_calls([Adult], choice="required", parallel=False), seed=1)
        assert raised.value.errors[0]["msg"] == "Value error, too young"


class TestRefused:
    def test_too_few_tokens_before_any_work(self) -> None:
        scripted: Any = ScriptedModel("x")
        least = gen.compile(scripted, Person).least_tokens
        assert least == len('{"name": "Ada", "age": 0, "likes": []}')
        with pytest.raises(
            gen.ConstraintError, match=f"has {least} tokens, max_new_tokens is {least - 1}; give at least"
        ):
            gen.generate(scripted, ["x", "y"], Person, max_new_tokens=[least, least - 1])
        tight: Any = ScriptedModel("x", context_length=20)
        with pytest.raises(gen.ConstraintError, match=f"has {least} tokens, the model's context leaves room for 15"):
            gen.generate(tight, "x" * 5, Person)
        assert scripted.steps == tight.steps == 0
        says: Any = ScriptedModel('{"name": "Ada", "age": 7, "likes": []}')
        assert gen.generate(says, "x", Person, max_new_tokens=least).age == 7

    def test_a_constraint_of_another_vocabulary(self, model: Any) -> None:
        other = gen.from_transformers(tiny_model(vocab_size=265), spaced_tokenizer())
        compiled = gen.compile(other, int)
        with pytest.raises(gen.ConstraintError, match="another vocabulary, of 265 tokens; this model's has 259"):
            gen.generate(model, "x", compiled)
        assert isinstance(gen.generate(other, "x", compiled), int)
        assert isinstance(gen.generate(new_model(), "x", gen.compile(model, int)), int)  # of the same tokenizer anew

    def test_an_eos_that_spells_text(self, model: Any) -> None:
        with pytest.raises(gen.ArgumentError, match=r"eos_token_id 34 spells b'\"', which a text"):
            gen.generate(model, "x", Person, eos_token_id=34)
        assert isinstance(gen.generate(model, "x", Person, eos_token_id=[], shorten=True), Person)

    @pytest.mark.parametrize(
        ("output_type", "message"),
        [
            (gen.json_schema({"not": {"type": "string"}, "unevaluatedItems": False}), "unevaluatedItems|not"),
            (gen.json_schema({"type": "integer", "minimum": 5, "maximum": 4}), "no text meets"),
            (gen.regex(r"(a)\1"), r"^a reference to a group in a regex is not regular"),
            (
                gen.json_schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}),
                "no text meets",
            ),
            (gen.grammar('start: "a'), "llguidance: .*lexer error"),
            (gen.regex("a{1000000000}"), r"(?s)llguidance: .*(too many|Too many|max is)"),
            (gen.regex("[ab]c(a{1000}){1000}"), r"(?s)llguidance: .*(too many|Too many|max is)"),  # after two letters
            (gen.regex("("), r"^the regex '\(': missing \), unterminated subpattern at position 0$"),
            (None, r"^None asks for no output type; type\(None\) is that of null"),
        ],
        ids=str,
    )
    def test_what_neither_engine_can_hold_to(self, model: Any, output_type: Any, message: str) -> None:
        with pytest.raises(gen.ConstraintError, match=message):
            gen.compile(model, output_type)

    def test_a_host_engine_that_fails_later_says_so_itself(self, model: Any) -> None:
        with pytest.raises(
            gen.ConstraintError, match=r"after \d+ new tokens the host engine failed: llguidance: .*too many"
        ):
            gen.generate(model, "x", gen.regex("[ab]{200}c(a{1000}){1000}"))

    @pytest.mark.parametrize(
        "output_type",
        [
            gen.grammar('start: /a+/ "ab"'),
            gen.repeat(gen.either(gen.regex("a+"), gen.grammar('start: "<" start? ">"')), separator="ab", least=2),
            gen.grammar("start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(30)) + 'a30: "x"'),
        ],
        ids=["the first part takes all", "the separator is taken", "doubled"],
    )
    def test_a_text_that_cannot_end_is_written_to_its_limit(self, model: Any, output_type: Any) -> None:
        """llguidance wrote ahead what must come, for ever, and compiling took all memory."""
        assert gen.compile(model, output_type).engine == "host"
        with pytest.raises(gen.IncompleteError):
            gen.generate(model, "x", output_type, max_new_tokens=5, sampler=gen.samplers.greedy())

    def test_the_model_chooses_tokens_where_a_grammar_leaves_one_text(self, model: Any) -> None:
        constraint: Any = gen.compile(model, gen.grammar('start: "hello" start?'))
        mask = constraint.grammar.matcher().compute_bitmask()
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        tokens = {model.tokenizer.decode([number]) for number in np.flatnonzero(allowed)}
        assert {"h"} <= tokens and all("hello".startswith(token) for token in tokens)


class TestCompile:
    def test_a_constraint_says_how_it_is_held_to(self, model: Any) -> None:
        on_device, on_host = gen.compile(model, gen.regex("ab?")), gen.compile(model, NESTED)
        assert (on_device.engine, on_device.states, on_device.least_tokens) == ("device", 3, 1)
        assert (on_host.engine, on_host.states, on_host.least_tokens) == ("host", None, None)
        assert on_host.reason and not on_device.reason
        assert "regex" not in repr(on_device) and "engine='device'" in repr(on_device)
        assert on_device.read("ab") == "ab"
        for constraint, text in ((on_device, "abb"), (on_host, "())")):
            with pytest.raises(ValueError, match="no full match"):
                constraint.read(text)
        assert gen.compile(model, on_device) is on_device

    def test_what_was_compiled_is_kept_by_its_content(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own, made = new_model(), noted(monkeypatch, compiling, "_made", lambda plan, *_: plan.key)
        for _ in range(2):
            gen.generate(own, "x", Point)
            gen.generate(own, ["x", "y"], [gen.regex("ab"), gen.regex("a" + "b")])
        with gen.Engine(own) as engine:
            engine.submit("x", Point).completion()
        assert len(made) == 2
        own_kept = compiling._kept[own.tokenizer]
        monkeypatch.setattr(compiling, "_MOST_KEPT", 2)
        gen.compile(own, int)
        assert len(own_kept) == 2
        assert made[0] not in own_kept or made[1] not in own_kept
        monkeypatch.setattr(compiling, "_MOST_BYTES", 1)
        gen.compile(own, bool)
        assert [one.states for one in own_kept.values()] == [gen.compile(own, bool).states]

    def test_what_the_automaton_cannot_be_goes_to_the_host(self, model: Any) -> None:
        nested = {"type": "object", "properties": {"of": {"$ref": "#"}}}
        constraint = gen.compile(model, gen.json_schema(nested))
        assert constraint.engine == "host" and "$ref" in constraint.reason
        assert constraint.read('{"of": {"of": {}}}') == {"of": {"of": {}}}
        assert not constraint.accepts('{"of":{}}') and not constraint.accepts('{"other": 1}')
        assert gen.compile(model, gen.json_schema(nested, closed=False)).accepts('{"other": 1}')
        compact = gen.compile(model, gen.json_schema(nested, whitespace="compact"))
        assert compact.accepts('{"of":{}}') and not compact.accepts('{"of": {}}')
        with pytest.raises(gen.ConstraintError, match="whitespace='indent'"):
            gen.compile(model, gen.json_schema(nested, whitespace="indent"))
