"""How output types are read: their texts, their values, and the messages of those that are refused."""

import json
import re
from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import gen
from benchmarks.constraints.fuzz import LAYOUTS
from gen.constraints.plans import read_plan
from gen.errors import ConstraintError


class Color(Enum):
    RED = "red"
    ONE = 1


def accepts(output_type: Any, text: str) -> bool:
    plan = read_plan(output_type)
    assert plan.table is not None
    return plan.table().accepts(text.encode())


class TestRegex:
    def test_the_whole_text_must_match_and_is_the_value(self) -> None:
        plan = read_plan(gen.regex(r"\d{4}"))
        assert accepts(gen.regex(r"\d{4}"), "1815")
        assert not accepts(gen.regex(r"\d{4}"), "18150")
        assert plan.parse("1815") == "1815"

    @pytest.mark.parametrize("flags", [re.IGNORECASE, re.DOTALL, re.VERBOSE, re.IGNORECASE | re.DOTALL, re.ASCII, 0])
    @pytest.mark.parametrize("pattern", ["a . b  # or so", "(?i)a . b"])
    def test_a_compiled_pattern_keeps_its_flags(self, flags: int, pattern: str) -> None:
        compiled = re.compile(pattern, flags)
        for text in ("axb", "a x b  # or so", "A X B  # OR SO", "a\nb", "a \n b  # or so", "AxB", "A \n B"):
            assert accepts(compiled, text) == bool(compiled.fullmatch(text))

    def test_anything_with_a_pattern_counts_but_no_type(self) -> None:
        assert accepts(SimpleNamespace(pattern="[ab]"), "a")

        class Holder:
            pattern = "x"

        with pytest.raises(ConstraintError, match="is no output type"):
            read_plan(Holder)
        with pytest.raises(ConstraintError):
            read_plan(SimpleNamespace(pattern=b"x"))

    def test_a_compiled_pattern_of_another_package_is_refused_since_its_flags_and_syntax_are_others(self) -> None:
        for pattern in (SimpleNamespace(pattern="abc", flags=flags) for flags in (0, re.IGNORECASE, 0x2022)):
            with pytest.raises(ConstraintError, match=r"is not a pattern of re; give it as gen\.regex\(\.\.\.\)"):
                read_plan(pattern)

    def test_no_str_is_refused(self) -> None:
        with pytest.raises(ConstraintError, match="a regular expression must be a str, got 5"):
            gen.regex(5)  # type: ignore[arg-type]
        with pytest.raises(ConstraintError, match=r"must be a str, got re.compile.*; give it as it is, w"):
            gen.regex(re.compile("a"))  # type: ignore[arg-type]


class TestChoice:
    OPTIONS = ("yes", 1, 2.5, None, True, Color.RED, [1, "a"], {"k": None}, "")

    def test_texts_are_strings_as_they_are_and_json_of_the_rest(self) -> None:
        plan = read_plan(gen.choice(self.OPTIONS))
        for text, option in zip(
            ("yes", "1", "2.5", "null", "true", "red", '[1, "a"]', '{"k": null}', ""), self.OPTIONS, strict=True
        ):
            assert accepts(gen.choice(self.OPTIONS), text)
            value = plan.parse(text)
            assert value == option and type(value) is type(option)
        assert not accepts(gen.choice(self.OPTIONS), '"yes"')

    def test_an_enum_is_its_members(self) -> None:
        assert read_plan(gen.choice(Color)).parse("1") is Color.ONE

    def test_what_comes_twice_is_one_option(self) -> None:
        assert list(gen.choice(["a", "b", "a"]).options) == ["a", "b"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "choice needs at least one option"),
            ("yes", "choice takes a list of options, got 'yes'"),
            (5, "choice takes a list of options, got 5"),
            ([1, "1"], "1 and '1' are both written '1'; give one of them"),
            ([True, "true"], "True and 'true' are both written"),
            ([float("nan")], "the option nan cannot be written as JSON"),
            ([object()], "cannot be written as JSON"),
            (["\ud800"], "surrogate"),
        ],
    )
    def test_what_cannot_be_written_or_told_apart_is_refused(self, options: Any, message: str) -> None:
        with pytest.raises(gen.GenError, match=message):
            gen.choice(options)


class TestJsonSchema:
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}}},
        "required": ["a", "b"],
    }
    VALUE: ClassVar[dict[str, Any]] = {"a": 1, "b": [True, False]}

    @pytest.mark.parametrize(("whitespace", "how"), LAYOUTS.items())
    def test_whitespace_is_that_of_json_dumps(self, whitespace: Any, how: dict[str, Any]) -> None:
        plan = read_plan(gen.json_schema(self.SCHEMA, whitespace=whitespace))
        assert plan.table is not None
        assert plan.table().accepts(json.dumps(self.VALUE, **how).encode())
        assert plan.parse(json.dumps(self.VALUE, **how)) == self.VALUE
        others = [json.dumps(self.VALUE), json.dumps(self.VALUE, indent=2), json.dumps(self.VALUE, indent=None) + " "]
        assert not any(plan.table().accepts(one.encode()) for one in others if one != json.dumps(self.VALUE, **how))

    @pytest.mark.parametrize("listed", [{"properties": {}}, {"patternProperties": {}}])
    def test_an_empty_list_of_properties_closes_an_object_and_none_does_not(self, listed: dict[str, Any]) -> None:
        empty, text = {"type": "object", **listed}, '{"x": 1}'
        for within in ({}, {"allOf": [empty]}, {"anyOf": [empty]}, {"$ref": "#/$defs/a", "$defs": {"a": empty}}):
            schema = within or empty
            assert accepts(gen.json_schema(schema), "{}")
            assert not accepts(gen.json_schema(schema), text)
            assert accepts(gen.json_schema(schema, closed=False), text)
        more: list[dict[str, Any]] = [{"additionalProperties": True}, {"required": ["x"]}, {"properties": {"x": {}}}]
        for opened in more:
            assert accepts(gen.json_schema(empty | opened), text)
        assert accepts(gen.json_schema({"type": "object"}), text)

    def test_a_schema_may_be_a_text_and_is_not_changed_later(self) -> None:
        own = json.loads(json.dumps(self.SCHEMA))
        kept = gen.json_schema(own)
        own["properties"].clear()
        assert kept == gen.json_schema(json.dumps(self.SCHEMA))

    @pytest.mark.parametrize(
        ("schema", "arguments", "message"),
        [
            ("{", {}, "is no JSON"),
            ("[]", {}, "a JSON Schema must be a dict"),
            ([], {}, "a JSON Schema must be a dict"),
            (complex, {}, "is no output type|pydantic alone can check"),
            ({}, {"required": "all"}, "a JSON Schema says itself what is required"),
            (dict[str, int], {"required": ["a"]}, 'required must be "all" or None'),
            ({"enum": [float("nan")]}, {}, "is no JSON"),
            ('{"const": NaN}', {}, "JSON has no NaN"),
            ({"a": {1, 2}}, {}, "is no JSON"),
            ({}, {"whitespace": "none"}, 'whitespace must be "line", "compact", "indent" or "model"'),
            ({}, {"closed": 1}, "closed"),
        ],
    )
    def test_what_is_no_schema_is_refused(self, schema: Any, arguments: Any, message: str) -> None:
        with pytest.raises(gen.GenError, match=message):
            gen.json_schema(schema, **arguments)


@pytest.mark.parametrize(
    ("output_type", "hint"),
    [
        ("yes|no", "gen.regex takes a pattern"),
        ({"type": "string"}, "gen.json_schema takes a schema"),
        (["a", "b"], "gen.choice takes options"),
        ((int, str), "gen.choice takes options"),
    ],
)
def test_a_likely_mistake_gets_a_hint(output_type: Any, hint: str) -> None:
    with pytest.raises(ConstraintError, match=hint):
        read_plan(output_type)


def test_equal_contents_have_equal_keys() -> None:
    schema = {"type": "integer"}
    same = [(gen.regex("a"), re.compile("a")), (gen.choice(["a"]), gen.choice(["a"])), (int, gen.json_schema(schema))]
    for one, other in same:
        assert read_plan(one).key == read_plan(other).key
    different = [
        gen.json_schema(schema),
        gen.json_schema(schema, closed=False),
        gen.json_schema(schema, whitespace="compact"),
        gen.regex("integer"),
        gen.choice(["integer"]),
        gen.grammar("integer"),
    ]
    assert len({read_plan(one).key for one in different}) == len(different)


def test_types_of_outlines_mean_what_they_mean_there() -> None:
    from outlines.types import dsl as types

    assert read_plan(types.Choice(["a", 1])).key == read_plan(gen.choice(["a", 1])).key
    assert read_plan(types.JsonSchema({"type": "integer"})).key == read_plan(gen.json_schema({"type": "integer"})).key
    assert read_plan(types.CFG('start: "a"')).key == read_plan(gen.grammar('start: "a"')).key
    words = types.String("x") + types.Regex("[0-9]") + types.Optional(types.String("y"))
    assert accepts(words, "x1") and accepts(words, "x1y") and not accepts(words, "x")
    with pytest.raises(ConstraintError, match=r"takes no whitespace_pattern; take gen\.json_schema"):
        read_plan(types.JsonSchema({}, whitespace_pattern=" ?"))
