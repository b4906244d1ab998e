"""The tables of docs/output_types.md on what differs from JSON Schema: each line has a case here, which shows it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

import gen
from gen.constraints.schema import schema_table, string_table
from tests.docs.pages import DOCS
from tests.helpers import ScriptedModel

Case = tuple[Any, list[str], list[str]]
"""A schema, texts that gen takes and texts that it does not take, in the specification's reading."""

DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}
LATER = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
SCHEMAS: dict[str, list[Case]] = {
    "names of an object": [
        ({"properties": {"b": {}, "a": {}}}, ['{"b": 1, "a": 2, "c": 3}'], ['{"a": 2, "b": 1}', '{"c": 3, "b": 1}'])
    ],
    "a name that comes twice": [
        ({"properties": {"a": {}}, "additionalProperties": False}, ['{"a": 1}'], ['{"a": 1, "a": 1}']),
        ({"patternProperties": {"^[xy]$": {}}, "additionalProperties": False}, ['{"x": 1}'], ['{"x": 1, "x": 1}']),
        ({"type": "object"}, ['{"x": 1, "x": 1}'], []),
    ],
    "values of any type": [
        (True, ["[[[[1]]]]", '{"a": [[[1]]]}'], ["[[[[[1]]]]]"]),
        ({"properties": {str(n): {} for n in range(20)}}, ['{"0": [[[1]]]}'], ['{"0": [[[[1]]]]}']),
        ({"properties": {str(n): {} for n in range(40)}}, ['{"0": [[1]]}'], ['{"0": [[[1]]]}']),
    ],
    "numbers": [
        ({}, ["9" * 19, f"0.{'1' * 20}", "1E+99"], ["9" * 20, f"0.{'1' * 21}", "1e100"]),
        ({"type": "number", "minimum": 0}, ["1e-05", "1.5e+16", "0.5"], ["1e2", "1E-05", "15e+16"]),
        ({"multipleOf": 0.5}, ["1.5", "1" * 14 + ".5"], ["1" * 15 + ".5", "5e-1", "5e+16"]),
        ({"type": "integer", "multipleOf": 421}, ["421" + "0" * 16], []),
        ({"type": "integer", "multipleOf": 997}, ["997000"], ["997" + "0" * 16]),
    ],
    "whole numbers": [({"type": "integer"}, ["4"], ["4.0"]), ({"enum": [4.0, 2]}, ["4.0", "2"], ["4", "2.0"])],
    "unlisted properties that `not` or `oneOf` ask for": [
        (
            {"type": "object", "not": {"patternProperties": {"^a": {"type": "string"}}}},
            ['{"b": 1, "a": 1}'],
            ['{"a": 1, "b": 1}', '{"b": 1}'],
        ),
    ],
    "`minProperties` of unlisted names": [
        ({"type": "object", "minProperties": 2}, ['{"a": 1, "b": 2}', '{"xa": 1, "xb": 2}'], ['{"xa": 1, "ya": 2}']),
        ({"type": "object", "minProperties": 4}, ['{"a": 1, "b": 2, "c": 3, "d": 4}'], ['{"a": 1, "g": 2, "c": 3}']),
    ],
    "`uniqueItems` of more than 1,024 sets of values": [
        ({"uniqueItems": True, "items": {"enum": [*range(20)]}, "type": "array"}, ["[0, 5, 19]"], ["[5, 0]"]),
        ({"uniqueItems": True, "items": {"enum": [*range(10)]}, "type": "array"}, ["[5, 0]"], ["[5, 5]"]),
    ],
    "`format`": [
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"today"']),
        ({"prefixItems": [{"format": "ipv4"}], "enum": [["12"], ["1.1.1.1"]]}, ['["1.1.1.1"]'], ['["12"]']),
        (
            {"properties": {"a": {"anyOf": [{"format": "date"}]}}, "const": {"a": "2024-02-29"}},
            ['{"a": "2024-02-29"}'],
            [],
        ),
        ({"type": "string", "format": "colour"}, ['"today"'], []),
    ],
    "`nullable: true`": [
        ({"type": "string", "nullable": True}, ["null"], []),
        (LATER | {"type": "string", "nullable": True}, ['""'], ["null"]),
    ],
    "`contentEncoding: base64`": [
        (DRAFT | {"type": "string", "contentEncoding": "base64"}, ['"QQ=="'], ['"Q"']),
        (LATER | {"type": "string", "contentEncoding": "base64"}, ['"Q"'], []),
    ],
}
REFUSED: dict[str, list[Any]] = {
    "`pattern`": [
        {"type": "string", "pattern": pattern} for pattern in ("^[^]]*$", "^a{,3}$", r"^\Aab\Z$", r"^\a$", "^[]a]$")
    ]
}
FORMATS: dict[str, list[str]] = {
    "date": ["0000-01-01"],
    "time": ["23:59:60Z", "12:00:00z", "12:00:00.0123456789Z"],
    "date-time": ["0000-01-01T12:00:00Z", "2024-01-01t12:00:00Z"],
    "duration": ["P1234567890D"],
    "email": ['"a b"@c.de', "a@[1.1.1.1]", "a/b@c.de", "a" * 60 + "@c.de", "ä@c.de", "a@localhost"],
    "idn-email": ["ä@c.de"],
    "hostname": [".".join(["abc"] * 16) + "d", "xn--abc", "ab--cd"],
    "idn-hostname": ["bücher.de"],
    "ipv6": ["::ffff:1.1.1.1", "fe80::1%eth0"],
    "uri": ["http://bücher.de", "http://[::1]/", "http://a.b:12345", "http:///a", "http://a_b.c"],
    "iri": ["http://bücher.de"],
    "uri-template": ["http://a.b/{c}"],
    "regex": ["(a(b(c)))", "(?=a)", "a{2,3}"],
    "json-pointer": [],
    "relative-json-pointer": ["0+1", "1234567890"],
    "ipv4": [],
    "uuid": [],
}


def rows(header: str) -> Iterator[str]:
    """The first cells of the table below this header."""
    page = (DOCS / "output_types.md").read_text(encoding="utf-8")
    table = page.partition(f"| {header} |")[2].partition("\n\n")[0]
    return (line.split("|")[1].strip() for line in table.splitlines()[2:])


def test_each_line_of_the_tables_has_a_case() -> None:
    assert {*rows("what | `gen`")} == SCHEMAS.keys() | REFUSED.keys()
    named = {name for row in rows("format | what it leaves out") for name in re.findall("`([a-z0-9-]+)`", row)}
    assert named == FORMATS.keys()


@pytest.mark.parametrize("row", SCHEMAS)
def test_schemas_are_read_as_the_table_says(row: str) -> None:
    for schema, taken, left_out in SCHEMAS[row]:
        table = schema_table(schema, closed=False, whitespace="line")
        assert [text for text in taken if not table.accepts(text.encode())] == [], schema
        assert [text for text in left_out if table.accepts(text.encode())] == [], schema


@pytest.mark.parametrize("row", REFUSED)
def test_schemas_are_refused_as_the_table_says(row: str) -> None:
    for schema in REFUSED[row]:
        with pytest.raises(gen.ConstraintError, match="at #: Python and ECMA 262 read"):
            gen.compile(ScriptedModel("x"), gen.json_schema(schema))


@pytest.mark.parametrize("name", FORMATS)
def test_formats_leave_out_what_the_table_says(name: str) -> None:
    table = string_table({"type": "string", "format": name})
    assert [text for text in FORMATS[name] if table.accepts(text.encode())] == []
