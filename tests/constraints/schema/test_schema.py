"""JSON Schema as automata. Oracle: the jsonschema package, and values and texts written out."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

import gen
from benchmarks.constraints.fuzz import LAYOUTS
from benchmarks.constraints.judge import Judge
from benchmarks.constraints.random_types import NAMES, random_schema, random_value, scalars_near
from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.output_types import Whitespace
from gen.constraints.schema import schema_table, string_table
from gen.constraints.schema.writing.automaton import AutomatonWriter
from gen.constraints.schema.writing.grammar import GrammarWriter
from tests.constraints.walks import random_texts
from tests.helpers import ScriptedModel


def table_of(schema: Any, closed: bool = True, whitespace: Whitespace = "line") -> Table | None:
    return _table_of(json.dumps(schema), closed, whitespace)


@lru_cache(maxsize=8)  # each layout of one schema, and of one beside it
def _table_of(schema: str, closed: bool, whitespace: Whitespace) -> Table | None:
    try:
        return schema_table(json.loads(schema), closed=closed, whitespace=whitespace)
    except Empty:
        return None


def accepts(schema: Any, value: Any, closed: bool = True) -> bool:
    """Whether json.dumps' text of a value is a text of the schema; every layout must agree."""
    found = set()
    for whitespace in LAYOUTS:
        text = json.dumps(value, ensure_ascii=False, **LAYOUTS[whitespace])
        table = table_of(schema, closed, whitespace)
        found.add(table is not None and table.accepts(text.encode()))
    assert len(found) == 1, (schema, value)
    return found.pop()


@pytest.mark.parametrize("seed", range(2))
def test_values_that_meet_a_schema_are_accepted_in_the_order_of_its_properties(seed: int) -> None:
    """Schemas of one object, so the order is clear, in the open reading, which is the validator's."""
    chance = random.Random(seed)
    met = 0
    for _ in range(60):
        drawn = json.dumps([random_schema(chance) for _ in range(5)])
        if '"definitions"' in drawn:
            continue
        schema, *parts = json.loads(drawn.replace('"format"', '"$comment"'))
        own = {"properties": {}, "type": "object", "$defs": schema["$defs"]}
        for name, part in zip(NAMES, parts, strict=False):
            if chance.random() < 0.7:
                own["properties"][name] = part | {"$defs": {}}
        own |= {
            word: schema[word] for word in ("minProperties", "maxProperties", "dependentRequired") if word in schema
        }
        try:
            table = table_of(own, closed=False, whitespace="compact")
        except (Unsupported, TooLarge):
            continue
        judge, scalars = Judge(own), [1.5, *(one for one in scalars_near(own) if not isinstance(one, float))]
        for _ in range(40):
            value = {name: random_value(chance, 0, scalars) for name in own["properties"] if chance.random() < 0.6}
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            if judge.takes(text):
                assert table is not None and table.accepts(text.encode()), (own, text)
                met += 1
    assert met > 50


def test_objects_have_what_they_list_unless_additional_properties_are_written() -> None:
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for more, closed, expected in (({}, True, False), ({}, False, True), ({"additionalProperties": True}, True, True)):
        assert accepts(listed | more, {"a": 1, "b": 2}, closed) == expected
    assert accepts({"type": "object"}, {"anything": [1]}) and not accepts(listed, {"a": "x"}, closed=False)
    merged = {"allOf": [listed, {"properties": {"b": {"type": "null"}}}]}
    assert accepts(merged, {"a": 1, "b": None}) and not accepts(merged, {"a": 1, "c": None})
    required = listed | {"required": ["a", "z"]}
    assert accepts(required, {"a": 1, "z": ["any"]}) and not accepts(required, {"a": 1, "y": 1, "z": 1})
    base = {"definitions": {"base": listed}, "$ref": "#/definitions/base", "properties": {"b": {"type": "null"}}}
    for dialect in ("draft-07", "draft-04"):
        inherits = base | {"$schema": f"http://json-schema.org/{dialect}/schema#"}
        assert accepts(inherits, {"b": None, "a": 1}) and not accepts(inherits, {"c": None, "a": 1})


def test_values_of_any_type_nest_four_or_five_deep_or_as_deep_as_there_is_room_for() -> None:
    for value, expected in (
        ([[[[1]]]], True),
        ({"a": [{"b": [1, {}]}]}, False),
        ({"a": [{"b": {"c": {"d": 1}}}]}, True),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, True),
        ({"a": {"b": {"c": {"d": [1]}}}}, True),
        ({"a": {"b": {"c": {"d": {"e": {}}}}}}, False),
        ([[[[[1]]]]], False),
        ({"a": {"b": {"c": [1]}}}, True),
        (1, True),
    ):
        assert accepts({}, value) == expected, value
    assert accepts({"type": "object"}, {"a": {"b": [[1]]}}) and not accepts({"type": "object"}, {"a": [[[[]]]]})
    for count, depth in ((0, None), (1, 4), (13, 4), (15, 3), (34, 2)):
        names: dict[str, Any] = {f"p{number}": {} for number in range(count)}
        table = schema_table(
            {"type": "object", "properties": names | {"x": {"type": "null"}}}, closed=True, whitespace="line"
        )
        assert table.depth == depth
        if depth is not None:
            within, beyond = ("[" * one + "1" + "]" * one for one in (depth, depth + 1))
            assert table.accepts(f'{{"p0": {within}}}'.encode()) and not table.accepts(f'{{"p0": {beyond}}}'.encode())
    deep: Any = {"type": "array"}
    for _ in range(5):
        deep = {"type": "array", "items": deep}
    assert accepts(deep, [[[[[[[1]]]]]]])
    for _ in range(5):
        deep = {"type": "array", "contains": deep}  # what stands beside it has no schema
    assert accepts(deep, [[[[[[[[[[[1]]]]]]]]]]])


def test_alternatives_of_one_of_hold_one_at_a_time_in_the_open_reading_too() -> None:
    """A closed text of one alternative is valid under another one that is open: {"a": 1} meets both of these."""
    overlap = {"oneOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {}}}]}
    for closed in (True, False):
        try:
            table = table_of(overlap, closed)
        except Unsupported:
            continue
        assert table is not None and not table.accepts(b'{"a": 1}')
    tagged = {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "size": {"type": "integer"}},
                "required": ["kind"],
            }
            for kind in ("x", "y")
        ]
    }
    assert accepts(tagged, {"kind": "y", "size": 2}) and not accepts(tagged, {"kind": "z"})
    formats = {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}]}
    with pytest.raises(Unsupported, match="oneOf at #"):  # for a reader who ignores formats any text meets both
        schema_table(formats, closed=True, whitespace="line")
    needs = {"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert accepts(needs, {"b": 1}) and not accepts(needs, {"a": 1, "b": 1}) and not accepts(needs, {})


def test_alternatives_of_one_of_stay_apart_where_other_schemas_list_their_properties() -> None:
    """Each alternative is closed by itself, but not beside a schema that lists the properties of both."""
    names: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
    one_of = {"oneOf": [{"properties": {name: {"type": "integer"}}, "required": [name]} for name in "ab"]}
    for schema in (
        {"type": "object", "allOf": [one_of, names]},
        {"type": "object", "allOf": [{"$ref": "#/$defs/x"}, names], "$defs": {"x": one_of}},
        {"type": "object", **one_of, "if": names, "then": {}},
        {"type": "object", **one_of, "dependentSchemas": {"b": names}},
        {"type": "object", **one_of},
        {"properties": {}, "oneOf": [{}, {"properties": {"a": False}}, {"required": ["a"]}]},
    ):
        for value in ({"a": 1}, {"b": 1}, {"a": 1, "b": 2}):
            assert accepts(schema, value) == Draft202012Validator(schema).is_valid(value), (schema, value)


def test_alternatives_of_one_of_stay_apart_where_other_schemas_list_what_is_in_their_properties() -> None:
    """The first alternative is closed within "x", or within its items, but not beside a schema that lists "q" there."""
    lists_p = {"type": "object", "properties": {"p": {"type": "integer"}}}
    for begin, wrap in (("", dict), ("[", lambda one: {"type": "array", "minItems": 1, "items": one})):
        mine, theirs, names = (
            {"type": "object", "properties": {"x": wrap(one)}, "required": ["x"]}
            for one in (lists_p, {"type": "object", "required": ["q"]}, {"properties": {"q": {"type": "null"}}})
        )
        one_of = {"oneOf": [mine, theirs]}
        for schema in (
            {"allOf": [one_of, names]},
            {"allOf": [{"$ref": "#/$defs/x"}, names], "$defs": {"x": one_of}},
            {"anyOf": [one_of], **names},
        ):
            for one in ({"p": 1}, {"q": None}, {"p": 1, "q": None}, {}):
                value = {"x": [one] if begin else one}
                if accepts(schema, value):
                    Draft202012Validator(schema).validate(value)
            assert accepts(schema, {"x": [{"p": 1}] if begin else {"p": 1}})


def test_not_if_and_dependencies_are_held() -> None:
    assert not accepts({"type": "string", "not": {"enum": ["no", 5]}}, "no")
    assert accepts({"type": "string", "not": {"enum": ["no", 5]}}, "non")
    assert not accepts({"type": "integer", "not": {"minimum": 3, "maximum": 5}}, 4)
    assert accepts({"type": "integer", "not": {"minimum": 3, "maximum": 5}}, 6)
    when = {
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"required": ["size"]},
        "type": "object",
    }
    for value in ({"kind": "a"}, {"kind": "a", "size": 1}, {"kind": "b"}, {}, {"size": 1}):
        assert accepts(when, value) == Draft202012Validator(when).is_valid(value)
    needs = {"type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}
    for value in ({"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {}):
        assert accepts(needs, value) == Draft7Validator(needs).is_valid(value)


def test_names_are_held_by_patterns_and_counts() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "patternProperties": {"^n_": {"type": "null"}, "_x$": {"enum": [None, 1]}},
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    }
    for value in (
        {"id": 1, "n_a": None, "n_x": None},
        {"n_x": 1},
        {"b_x": 1, "other": True},
        {"other": None},
        {"a": True, "b": True, "c": True, "d": True},
        {"id": True},
    ):
        assert accepts(schema, value, closed=False) == Draft202012Validator(schema).is_valid(value), value
    found = schema_table(schema, closed=True, whitespace="compact")
    for text in ('{"id":1,"id":2}', '{"other":true,"id":1}', '{"\\u0069d":true}', '{"id" :1}', '{"id":1,}', "{,}"):
        assert not found.accepts(text.encode()), text


def test_references_are_resolved_as_their_draft_says() -> None:
    schema = {
        "$defs": {
            "a/b": {"type": "integer"},
            "c%": {"$anchor": "named", "type": "null"},
            "i": {"$ref": "#/$defs/a~1b"},
        },
        "prefixItems": [{"$ref": "#/$defs/i"}, {"$ref": "#named"}, {"$ref": "#/$defs/c%25"}],
        "type": "array",
        "minItems": 3,
        "items": False,
    }
    assert accepts(schema, [1, None, None]) and not accepts(schema, [1, None, 1])
    beside = {"$ref": "#/$defs/i", "minimum": 5, "$defs": {"i": {"type": "integer"}}}
    assert not accepts(beside, 4)
    assert accepts(beside | {"$schema": "http://json-schema.org/draft-07/schema#"}, 4)
    base = {"type": "object", "properties": {"id": {"type": "integer"}}}
    twice = {
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"inner": {"$ref": "#/$defs/base"}},
        "$defs": {"base": base},
    }
    assert accepts(twice, {"inner": {"id": 1}, "id": 2})  # used within itself, not a circle


def test_references_start_from_the_root_and_never_mean_data() -> None:
    address = "http://a.example/root"
    schema = {
        "$id": address,
        "$defs": {
            "data": {"enum": [{"$anchor": "y", "type": "null"}]},
            "named": {"$anchor": "y", "type": "integer"},
            "name": {"properties": {"$id": {"$anchor": "z", "type": "string"}}},
        },
        "prefixItems": [{"$ref": "#y"}, {"$ref": f"{address}#z"}, {"$ref": f"{address}#/$defs/named"}],
        "type": "array",
        "minItems": 3,
        "items": False,
    }
    for value in ([1, "a", 1], [None, "a", 1], [1, 1, 1], [1, "a", "a"]):
        assert accepts(schema, value) == Draft202012Validator(schema).is_valid(value)
    with pytest.raises(Unsupported, match="no such anchor"):
        accepts({"$ref": "#y", "$defs": {"a": {"const": {"$anchor": "y"}}}}, 1)


def arrays_of(schema: Any, items: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Every array of up to three of the items, and whether it is a text of the schema."""
    table = table_of(schema, False, "compact")
    for length in range(4):
        for value in itertools.product(items, repeat=length):
            text = json.dumps(value, separators=(",", ":"))
            yield list(value), table is not None and table.accepts(text.encode())


CONTAINS: list[dict[str, Any]] = [
    {"contains": True},
    {"contains": {}, "minContains": 2},
    {"contains": False},
    {"contains": {"const": 1}},
    {"contains": {"const": 1}, "minContains": 0},
    {"contains": {"const": 1}, "maxContains": 1},
    {"contains": {"type": "string"}, "minContains": 2, "maxContains": 2, "maxItems": 3},
    {"contains": {"type": "string"}, "prefixItems": [{"type": "null"}], "items": {"type": ["string", "null"]}},
    {"not": {"contains": {"const": 1}}},
    {"allOf": [{"contains": {"const": 1}}, {"contains": {"type": "string"}}]},
    {"allOf": [{"contains": {"const": 1}, "maxContains": 1}, {"contains": {"type": ["string", "integer"]}}]},
    {"contains": {"type": ["string", "null"]}, "not": {"contains": {"const": "a"}, "minContains": 2}, "minItems": 1},
    {"items": {"enum": [1, "a"]}, "anyOf": [{"contains": {"const": n}, "minContains": 2} for n in (1, "a")]},
    {"oneOf": [{"contains": {"const": 1}}, {"contains": {"type": "string"}}, {"minItems": 3}]},
]


@pytest.mark.parametrize("schema", CONTAINS, ids=str)
def test_contains_counts_the_items_that_meet_it(schema: dict[str, Any]) -> None:
    schema = {"type": "array"} | schema
    for value, accepted in arrays_of(schema, [1, "a", None]):
        assert accepted == Draft202012Validator(schema).is_valid(value), value


def test_keywords_that_a_draft_does_not_know_are_none() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    none_needed: dict[str, Any] = {"type": "array", "contains": {"const": 1}, "minContains": 0}
    assert accepts(none_needed, []) and not accepts(none_needed | draft, [])
    encoded: dict[str, Any] = {"type": "string", "contentEncoding": "base64"}
    assert accepts(encoded, "%") and not accepts(encoded | draft, "%") and accepts(encoded | draft, "YQ==")


UNIQUE: list[dict[str, Any]] = [
    {"items": {"enum": [1, 1.0, True, "a"]}},
    {"items": {"type": ["boolean", "null"]}, "minItems": 2},
    {"items": {"type": "integer", "minimum": 0, "maximum": 2}, "maxItems": 2},
    {"items": {"type": "string", "pattern": "^[ab]$"}, "minItems": 1},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "items": False, "maxItems": 3},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "maxItems": 20},
]


@pytest.mark.parametrize("schema", UNIQUE, ids=str)
def test_items_of_few_values_are_all_different(schema: dict[str, Any]) -> None:
    schema = {"type": "array", "uniqueItems": True} | schema
    for value, accepted in arrays_of(schema, [0, 1, 2, True, False, None, "a", "b"]):
        assert accepted == Draft202012Validator(schema).is_valid(value), value


def test_strings_are_all_different_where_all_of_their_texts_can_be_listed() -> None:
    schema: dict[str, Any] = {"type": "array", "uniqueItems": True, "maxItems": 3}
    for items in ({"pattern": "^[ab]{1,2}$"}, {"enum": ["a", "ab", "", "c"]}, {"pattern": "^a?b$", "maxLength": 1}):
        schema["items"] = {"type": "string"} | items
        table = schema_table(schema, closed=True, whitespace="compact")
        valid = Draft202012Validator(schema).is_valid
        for count in range(4):
            for value in map(list, itertools.product(["a", "b", "ab", "ba", "aa", "c", ""], repeat=count)):
                text = json.dumps(value, separators=(",", ":"))
                assert table.accepts(text.encode()) == valid(value), (items, value)
    schema |= {"items": {"type": "string", "pattern": "^(1[0-9]|[0-9])[0-9]$"}, "maxItems": 2}  # 200 texts, the most
    table = schema_table(schema, closed=True, whitespace="line")
    assert table.accepts(b'["07", "199"]') and not table.accepts(b'["07", "07"]')
    schema["items"]["pattern"] = "^(1[0-9]|[0-9]|20)[0-9]$"
    with pytest.raises(Unsupported, match="uniqueItems at #, of items that are not few"):
        schema_table(schema, closed=True, whitespace="compact")


def test_many_different_items_come_in_the_order_of_the_schema() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": list(range(20))}, "minItems": 2}
    assert accepts(schema, [0, 3, 19]) and not accepts(schema, [3, 0]) and not accepts(schema, [3, 3])
    with pytest.raises(Unsupported, match="uniqueItems at #, of items that are not few"):
        accepts({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, [])


@pytest.mark.parametrize(
    "items", [{"type": "string", "pattern": "^[0-9]{0,2}$"}, {"enum": [*range(200)]}], ids=["texts", "options"]
)
def test_arrays_of_too_many_different_items_are_refused_before_they_are_written(
    items: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of the first items are counted for all that may follow."""
    written = Counter[str]()
    for writer in (AutomatonWriter, GrammarWriter):
        listed = writer.listed

        def counted(*args: Any, listed: Any = listed) -> Any:
            written["values"] += 1
            return listed(*args)

        monkeypatch.setattr(writer, "listed", counted)
    with pytest.raises(gen.ConstraintError, match=r"more than 600000 states .* more than 300000 states of a grammar"):
        gen.compile(ScriptedModel("x"), gen.json_schema({"type": "array", "uniqueItems": True, "items": items}))
    assert written["values"] < 1000


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, r"\$ref"),
        ({"$ref": "other.json"}, r"\$ref 'other.json' at #"),
        ({"$ref": "#/$defs/none"}, r"\$ref '#/\$defs/none' at #"),
        ({"$ref": "one", "$defs": {"one": {"$id": "one", "type": "null"}}}, "only references within the schema"),
        ({"$ref": "#x", "$defs": {"one": {"$id": "one", "$anchor": "x"}}}, "no such anchor"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "a", "items": {"$ref": "#/$defs/b"}}, "b": {}}},
            "at #/.*items, within a schema that has an .id of its own",
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "properties": {"a": {"id": "a", "properties": {"b": {"$ref": "#/definitions/c"}}}},
                "definitions": {"c": {}},
            },
            "at #/properties/a/properties/b, within",
        ),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems at #/properties/a"),
        ({"type": "array", "unevaluatedItems": False}, "unevaluatedItems at #"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties at #"),
        ({"not": {"multipleOf": 0.5}}, "the opposite of multipleOf at #/not"),
        ({"type": "number", "multipleOf": 0}, "multipleOf of zero, or less, at #"),
        ({"not": {"uniqueItems": True}}, "the opposite of uniqueItems at #/not"),
        ({"type": "object", "minProperties": 5}, "minProperties at #"),
        ({"items": {"pattern": "(a)\\1"}}, "pattern at #/items"),
        ({"type": "whole"}, "type at #"),
        ({"minLength": "3"}, "minLength at #"),
        ({"properties": {"a": 5}}, "#/properties/a"),
        ({"required": "a"}, "required at #"),
        ({"type": ["object", [5]]}, "type at #"),
        ({"dependentRequired": {"a": [{}]}}, "dependentRequired at #"),
        ({"patternProperties": {pattern: {} for pattern in "abcde"}}, "patternProperties at #"),
        ({"oneOf": [{"minItems": 1}, {"type": "array", "uniqueItems": True}]}, "oneOf at #: alternatives"),
    ],
)
def test_what_cannot_be_said_is_named_with_its_path(schema: Any, word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        schema_table(schema, closed=True, whitespace="line")


def test_a_schema_that_refers_to_itself_is_too_large_for_an_automaton() -> None:
    with pytest.raises(TooLarge, match=r"\$ref at #/properties/a.*: the schema refers to itself"):
        schema_table({"properties": {"a": {"$ref": "#"}}}, closed=True, whitespace="line")


OPPOSITES: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": ["integer", "string", "object"]},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"type": "integer"}, {"const": "a"}]},
    {"contains": {"const": "a"}, "maxContains": 1},
    {"enum": [[1], {"a": 1}, "a", 2]},
    {"patternProperties": {"^a": {"type": "integer"}}},
    {"propertyNames": {"maxLength": 1}},
    {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"type": "array"}]},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"type": "object"}},
    {"dependentSchemas": {"a": {"required": ["b"]}}, "dependentRequired": {"b": ["ab"]}},
    {"maxProperties": 0},
]


@pytest.mark.parametrize("schema", OPPOSITES, ids=str)
def test_the_opposite_of_a_keyword_is_all_that_does_not_meet_it(schema: dict[str, Any]) -> None:
    """Tested in two ways: `not` of the schema, and a oneOf of the schema and its opposite."""
    values: list[Any] = [None, True, 0, 1, 1.5, 2, "", "a", [], [1], ["a"], [1, "a"], ["a", "a"], [2, 1], [1.5]]
    values += [{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"b": None}, {"a": 1, "b": 1}, {"ab": 1}, {"ab": None}]
    values += [{"a": 1, "ab": "x"}, {"b": 1, "ab": 1}, {"a": 1, "b": 1, "ab": 1}]
    for asked in ({"not": schema}, {"oneOf": [schema, {"not": schema, "type": ["object", "array"]}]}):
        table = table_of(asked, False, "compact")
        assert table is not None
        for value in values:
            accepted = any(
                table.accepts(text.encode())
                for text in (json.dumps(value, separators=(",", ":")), *_other_orders(value))
            )
            assert accepted == Draft202012Validator(asked).is_valid(value), value


def _other_orders(value: Any) -> list[str]:
    """A value's texts with its names in other orders; required names that are not listed come last."""
    orders = itertools.permutations(value.items()) if isinstance(value, dict) else ()
    return [json.dumps(dict(pairs), separators=(",", ":")) for pairs in orders]


def _no_name(pattern: str) -> dict[str, Any]:
    return {"propertyNames": {"not": {"pattern": pattern}}}


def _not_each(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [{"not": schema} for schema in schemas]}


SOME: list[dict[str, Any]] = [
    _not_each(_no_name("a"), _no_name("b")),
    _not_each(_no_name("a"), _no_name("b")) | {"maxProperties": 1, "properties": {"a": {"type": "string"}}},
    _not_each(_no_name("a"), _no_name("b"), _no_name("c")) | {"required": ["ac"], "minProperties": 2},
    _not_each(_no_name("a"), {"patternProperties": {"b": {"type": "integer"}}}),
    _not_each(*({"patternProperties": {f"^{one}": {"type": "integer"}}} for one in "ab")),
    _not_each(*({"propertyNames": {"not": {"enum": [*names]}}} for names in ("ab", "bc", "ca")))
    | {"patternProperties": {"^.$": {"type": "integer"}}, "additionalProperties": False},
    {"oneOf": [{"patternProperties": {one: {"type": "integer"}}} for one in ("^a", "^b", "^ab")]},
]


@pytest.mark.parametrize("schema", SOME, ids=str)
def test_some_properties_that_are_not_listed_are_as_several_schemas_ask(schema: dict[str, Any]) -> None:
    schema = {"type": "object"} | schema
    table = table_of(schema, False, "compact")
    assert table is not None
    validator = Draft202012Validator(schema)
    for names in itertools.chain.from_iterable(
        itertools.combinations(["a", "b", "ab", "ac", "bc"], n) for n in range(4)
    ):
        for values in itertools.product((1, "x"), repeat=len(names)):
            value = dict(zip(names, values, strict=True))
            accepted = any(table.accepts(text.encode()) for text in _other_orders(value))
            assert accepted == validator.is_valid(value), value
    for text in random_texts(table, 40, seed=0):
        assert validator.is_valid(json.loads(text)), text


def test_two_names_that_might_be_the_same_are_not_written() -> None:
    """Of equal names the last one counts, so one property must meet both schemas, or no text is written."""
    some: list[dict[str, Any]] = [{"patternProperties": {"^a": one}} for one in ({"minimum": 1}, {"maximum": 5})]
    with pytest.raises(Unsupported, match="two properties of like names at #"):
        table_of({"type": "object"} | _not_each(*some), False, "compact")
    some[1] = {"patternProperties": {"^a": {"minimum": 2}}}
    table = table_of({"type": "object"} | _not_each(*some), False, "compact")
    assert table is not None and table.accepts(b'{"a":0}') and not table.accepts(b'{"a":1}')


def test_multiples_of_fractions_are_told_by_their_decimals() -> None:
    for step, low in ((0.01, None), (0.5, 1), (2.5, None), (0.25, -3)):
        schema = {"type": "number", "multipleOf": step} | ({} if low is None else {"minimum": low})
        table = schema_table(schema, closed=True, whitespace="line")
        for cents in range(-1000, 1000):
            value = Fraction(cents, 100)
            expected = (value / Fraction(str(step))).denominator == 1 and (low is None or value >= low)
            assert table.accepts(f"{float(value):g}".encode()) == expected, (schema, cents)
    none = schema_table({"type": "integer", "not": {"multipleOf": 7}}, closed=True, whitespace="line")
    assert all(none.accepts(str(number).encode()) == (number % 7 != 0) for number in (*range(-60, 60), 7 * 10**17 + 1))
    whole = schema_table({"type": "integer", "multipleOf": 2.5}, closed=True, whitespace="line")
    assert whole.accepts(b"10") and not whole.accepts(b"2.5") and not whole.accepts(b"12")


def test_multiples_of_fractions_may_be_those_that_are_not_whole() -> None:
    schema = {"type": "number", "multipleOf": 0.5, "not": {"type": "integer"}}
    for value in (0.5, -1.5, 1, 2.0, 0.25):
        assert accepts(schema, value) == Draft202012Validator(schema).is_valid(value), value


def test_nullable_is_a_keyword_of_schemas_that_name_no_draft() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "nullable": True}}}
    assert accepts(schema, {"a": None}) and accepts(schema, {"a": "x"}) and not accepts(schema, {"a": 1})
    assert not accepts(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"}, {"a": None})


def test_names_that_are_few_come_once_and_in_order() -> None:
    for schema in (
        {"patternProperties": {"^(a|b)$": {"type": "integer"}}, "additionalProperties": False},
        {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}, "minProperties": 2},
    ):
        table = schema_table({"type": "object"} | schema, closed=True, whitespace="compact")
        texts = ('{"a":1,"b":2}', '{"a":1,"a":2}', '{"b":1,"a":2}', '{"c":1}')
        assert [table.accepts(text.encode()) for text in texts] == [True, False, False, False]


def test_a_keyword_about_another_type_does_not_matter() -> None:
    assert accepts({"type": "string", "uniqueItems": True, "contains": {}, "multipleOf": 0.1}, "a")
    assert accepts({"enum": [[1, 2], [1, 1]], "uniqueItems": True}, [1, 2])
    assert not accepts({"enum": [[1, 2], [1, 1]], "uniqueItems": True}, [1, 1])


def test_a_schema_without_values_is_empty() -> None:
    schemas: list[Any] = [False, {"enum": []}, {"type": "string", "const": 5}]
    for schema in [*schemas, {"type": "string", "minLength": 3, "maxLength": 2}]:
        with pytest.raises(Empty):
            schema_table(schema, closed=True, whitespace="line")
    impossible = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    with pytest.raises(Empty):
        schema_table(impossible, closed=True, whitespace="line")


def test_strings_are_written_with_the_escapes_of_json_dumps_alone() -> None:
    found = schema_table({"type": "string"}, closed=True, whitespace="line")
    for code in (*range(0xD800), *range(0xE000, 0x10000, 7), 0x10000, 0x10FFFF):
        assert found.accepts(json.dumps(chr(code), ensure_ascii=False).encode())
    for text in ('"\\u0041"', '"\\/"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\n"', '"\\x"', '"a', 'a"'):
        assert not found.accepts(text.encode()), text
    two = schema_table({"type": "string", "minLength": 2, "maxLength": 2}, closed=True, whitespace="line")
    for value, expected in (("😀é", True), ('"\\', True), ("\n\x00", True), ("a", False), ("abc", False)):
        assert two.accepts(json.dumps(value, ensure_ascii=False).encode()) == expected


OF_FORMATS = {"email": ("a@b.co", "x-1"), "ipv4": ("10.0.0.1", "12"), "date": ("2024-02-29", "2023-02-29")}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", OF_FORMATS)
def test_a_format_is_held_where_values_are_listed_however_deep(name: str, closed: bool) -> None:
    right, wrong = OF_FORMATS[name]
    text, both = {"type": "string", "format": name}, [right, wrong]
    cases: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
        ({**text, "enum": both}, [right], [wrong]),
        ({"allOf": [text, {"enum": both}]}, [right], [wrong]),
        ({"anyOf": [{**text, "const": wrong}, {"const": right}]}, [right], [wrong]),
        ({"prefixItems": [text], "enum": [[right], [wrong]]}, [[right]], [[wrong]]),
        ({"items": {"items": text}, "enum": [[[one]] for one in both]}, [[[right]]], [[[wrong]]]),
        ({"properties": {"a": text}, "enum": [{"a": one} for one in both]}, [{"a": right}], [{"a": wrong}]),
        ({"properties": {"a": {**text, "enum": both}}, "required": ["a"]}, [{"a": right}], [{"a": wrong}]),
        ({"propertyNames": text, "enum": [{one: 1} for one in both]}, [{right: 1}], [{wrong: 1}]),
        ({"additionalProperties": text, "enum": [{"a": one} for one in both]}, [{"a": right}], [{"a": wrong}]),
        (
            {"properties": {"a": {"const": wrong}}, "patternProperties": {"a": text}, "type": "object"},
            [{}],
            [{"a": wrong}],
        ),
    ]
    for schema, accepted, refused in cases:
        checks = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        for value in (*accepted, *refused):
            wanted = value in accepted
            assert accepts(schema, value, closed) == checks.is_valid(value) == wanted, (schema, value)


def test_listed_values_are_laid_out_like_all_others() -> None:
    value = {"a": [1, {"b": []}], "c": {}, "d": "x\ny"}
    schema: Any = {"type": "object", "properties": {"k": {"enum": [value, 1.5, True]}}, "required": ["k"]}
    assert accepts(schema, {"k": value}) and accepts(schema, {"k": True}) and not accepts(schema, {"k": 1})


def test_the_content_of_a_string_stands_without_quotes() -> None:
    found = string_table({"type": "string", "pattern": "^a", "maxLength": 3})
    for text in ("a", 'a"\n', "aé😀", "b", "aaaa", '"a"'):
        assert found.accepts(text.encode()) == (text[0] == "a" and len(text) <= 3)
    assert string_table({"enum": ["x", "y z"]}).accepts(b"y z")
    assert string_table({"type": "string", "format": "date"}).accepts(b"2024-02-29")
    either = string_table({"anyOf": [{"format": "date", "type": "string"}, {"const": ""}, {"enum": ["x", 1]}]})
    assert all(either.accepts(text.encode()) for text in ("2024-02-29", "", "x"))
    assert not any(either.accepts(text.encode()) for text in ("2024-02-30", "1", "xx"))
    assert string_table({"type": "string", "maxLength": 0}).accepts(b"")
    for empty in ({"type": "integer"}, {"type": "string", "minLength": 1, "maxLength": 0}):
        with pytest.raises(Empty):
            string_table(empty)


def test_many_conditions_on_one_property_are_as_many_alternatives() -> None:
    ifs = [
        {"if": {"properties": {"type": {"const": f"t{number}"}}}, "then": {"properties": {"a": {"const": number}}}}
        for number in range(17)
    ]
    schema = {"type": "object", "properties": {"type": {"type": "string"}, "a": {"type": "integer"}}, "allOf": ifs}
    table = table_of(schema, False, "compact")
    assert table is not None
    for value in ({"type": "t3", "a": 3}, {"type": "t3", "a": 4}, {"type": "x", "a": 4}, {"a": 3}, {"type": "t4"}, {}):
        assert table.accepts(json.dumps(value, separators=(",", ":")).encode()) == Draft202012Validator(
            schema
        ).is_valid(value)


def test_patterns_of_names_may_be_many_where_few_match_together() -> None:
    schema = {
        "patternProperties": {f"^{letter}": {"type": "integer"} for letter in "abcdefghij"} | {"z$": {"minimum": 2}}
    }
    for value in ({"a": 1}, {"a": "x"}, {"az": 1}, {"az": 2}, {"k": "x"}, {"kz": 1}, {"kz": "x"}):
        assert accepts({"type": "object"} | schema, value, closed=False) == Draft202012Validator(schema).is_valid(value)


def test_multiples_of_large_numbers_have_fewer_digits() -> None:
    table = schema_table({"type": "integer", "multipleOf": 999}, closed=True, whitespace="line")
    assert table.accepts(b"999999") and not table.accepts(b"999998") and not table.accepts(b"999999" * 3)
    bounded = schema_table({"type": "integer", "multipleOf": 997, "maximum": 9999}, closed=True, whitespace="line")
    assert bounded.accepts(b"9970") and not bounded.accepts(b"9971")


@pytest.mark.parametrize(("least", "most"), [(2, None), (3, None), (4, None), (2, 2), (3, 5)])
@pytest.mark.parametrize("listed", [{}, {"a": {"type": "integer"}, "b": {"type": "integer"}}])
def test_as_many_names_come_as_must_and_none_of_them_twice(
    least: int, most: int | None, listed: dict[str, Any]
) -> None:
    """Names that end in different letters are told apart."""
    counts = {"minProperties": least} | ({} if most is None else {"maxProperties": most})
    schema = {"type": "object", "properties": listed, "additionalProperties": {"type": "boolean"}, **counts}
    table = schema_table(schema, closed=True, whitespace="compact")
    for text in random_texts(table, 60, seed=least, longest=20):
        value = json.loads(text)
        Draft202012Validator(schema).validate(value)
        assert least <= len(value)
    others: list[dict[str, Any]] = [{f"x{letter}": True for letter in "abcdefgh"[:count]} for count in range(8)]
    for value in [*others, *({"b": 5, **other} for other in others if listed)]:
        fits = least <= len(value) and (most is None or len(value) <= most)
        assert table.accepts(json.dumps(value, separators=(",", ":")).encode()) == fits, value
    assert not table.accepts(b'{"x":true,"x":true}')


def test_numbers_of_a_schema_have_at_most_300_digits() -> None:
    for word in ("minimum", "exclusiveMaximum", "multipleOf", "minLength", "maxItems"):
        with pytest.raises(Unsupported, match=f"{word} at # must be a number of at most 300 digits"):
            schema_table({word: 10**4000}, closed=True, whitespace="line")
    assert schema_table({"type": "integer", "minimum": 10**299}, closed=True, whitespace="line").accepts(
        b"1" + b"0" * 299
    )


def test_patterns_of_types_are_not_those_of_other_programs() -> None:
    for pattern in ("^[]a]$", r"^\Aab$", "^a{,3}$", "(?i)ab", "(?P<n>a)", "^(?x: a)", "(?a-i:a)", "a(?# b)"):
        for schema in ({"type": "string", "pattern": pattern}, {"type": "object", "patternProperties": {pattern: {}}}):
            with pytest.raises(Unsupported, match="at #: Python and ECMA 262 read"):
                schema_table(schema, closed=True, whitespace="line")
    for pattern in ("(?<n>a)", "(?i:a)", "(?s-i:.)", "^(?!a)b", "[(?i)]", r"\(?a"):
        assert schema_table({"type": "string", "pattern": pattern}, closed=True, whitespace="line")
    own = schema_table({"type": "string", "pattern": "^[]a]$"}, closed=True, whitespace="line", ecma=False)
    assert own.accepts(b'"]"') and own.accepts(b'"a"') and not own.accepts(b'""')


def test_a_schema_may_have_a_thousand_alternatives() -> None:
    kinds = [
        {"properties": {"kind": {"const": number}, "x": {"type": "boolean"}}, "required": ["kind"]}
        for number in range(900)
    ]
    table = schema_table({"type": "object", "anyOf": kinds}, closed=True, whitespace="line")
    assert table.accepts(b'{"kind": 899, "x": true}') and not table.accepts(b'{"kind": 900}')
    numbered = [{f"a{place}": {"const": number}} for place in range(2) for number in range(100)]
    pairs = [
        {"anyOf": [{"properties": one} for one in numbered[:100]]},
        {"anyOf": [{"properties": one} for one in numbered[100:]]},
    ]
    with pytest.raises(TooLarge, match="more than 2048 alternatives"):
        schema_table({"type": "object", "allOf": pairs}, closed=True, whitespace="line")
