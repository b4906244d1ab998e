"""Closing schemas for other engines. Oracle: jsonschema on the closed schema, and the schema itself."""

import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema import closed_schema
from tests.constraints.schema.random_schemas import random_schema, random_value


def test_objects_are_closed_wherever_they_list_properties() -> None:
    schema = {
        "properties": {"a": {"properties": {"b": {}}}, "c": {"type": "object"}},
        "items": [{"patternProperties": {"^x": {}}}],
        "anyOf": [{"required": ["a"]}, {"required": ["c"]}],
        "required": ["a", "z"],
        "$defs": {"d": {"properties": {"e": True}}, "open": {"properties": {"f": {}}, "additionalProperties": True}},
    }
    before = repr(schema)
    found = closed_schema(schema)
    assert repr(schema) == before
    assert found["additionalProperties"] is False and found["properties"]["z"] is True
    assert found["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in found["properties"]["c"]
    assert found["items"][0]["additionalProperties"] is False
    assert found["$defs"]["d"]["additionalProperties"] is False
    assert found["$defs"]["open"]["additionalProperties"] is True


def test_a_schema_of_alternatives_or_references_is_closed_in_each() -> None:
    schema = {"anyOf": [{"properties": {"a": {}}}, {"$ref": "#/x/y"}], "x": {"y": {"properties": {"b": {}}}}}
    validator = Draft202012Validator(closed_schema(schema))
    for value, expected in (({"a": 1}, True), ({"b": 1}, True), ({"a": 1, "b": 1}, False), (5, True)):
        assert validator.is_valid(value) == expected
    tree = {"properties": {"next": {"$ref": "#"}}}
    validator = Draft202012Validator(closed_schema(tree))
    assert validator.is_valid({"next": {"next": {}}}) and not validator.is_valid({"next": {"other": {}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {}]},
        {"properties": {"a": {}}, "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]},
        {"not": {"properties": {"a": {"const": 1}}}},
        {"properties": False, "patternProperties": {"a": {}}},
        {"properties": {"a": {}}, "required": "a"},
        {"properties": {"a": {}}, "required": [{}]},
        {"contains": {"$ref": "#/$defs/x"}, "$defs": {"x": {"properties": {"b": {}}}}},
    ],
)
def test_what_closing_would_break_is_refused(schema: Any) -> None:
    with pytest.raises(Unsupported, match="at #"):
        closed_schema(schema)


def test_what_meets_a_closed_schema_meets_the_schema() -> None:
    chance = random.Random(0)
    met = 0
    for _ in range(400):
        schema = random_schema(chance)
        try:
            closed = Draft202012Validator(closed_schema(schema))
        except Unsupported:
            continue
        for _ in range(20):
            value = random_value(chance, 2)
            if closed.is_valid(value):
                assert Draft202012Validator(schema).is_valid(value), (schema, value)
                met += 1
    assert met > 500
