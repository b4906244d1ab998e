"""A hundred constraints, for tests that go through all of them."""

from functools import cache
from typing import Any

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.regexes import regex_table
from gen.constraints.schema import schema_table

PATTERNS = [
    "",
    "a",
    "a*",
    "a+b?",
    "(ab)*",
    "a{3,5}",
    ".*",
    ".{0,40}",
    "[^a]",
    "[a-z]{2}[0-9]{2}",
    "yes|no",
    "yes|no, never",
    "foo|foobar",
    "a(bc)?",
    "a(bc{9})?",
    "(a|b)*abb",
    "(the|then|them)( cat| dog)?",
    r"\d{3}-\d{4}",
    r"\d+",
    r"-?(0|[1-9]\d*)(\.\d+)?",
    r"[+-]?\d{1,3}(,\d{3})*",
    r"\d{4}-\d{2}-\d{2}",
    r"([01]\d|2[0-3]):[0-5]\d",
    r"[\w.]+@[\w.]+\.(com|org)",
    r"https?://[a-z0-9.-]+(/[a-z0-9]*)*",
    r"#[0-9a-fA-F]{6}",
    r"\s*x\s*",
    r"\S+",
    r"\n{1,3}",
    "[A-Z][a-z]+ [A-Z][a-z]+",
    "(Mr|Mrs|Dr)\\. [A-Z][a-z]{1,8}",
    "é",
    "[é-ü]{2}",
    "日本|日記|月",
    "[\u4e00-\u9fff]{1,3}",
    "😀|😁|🎉",
    "[😀-😏]{2}",
    "Müller|Łukasz|señor",
    "[^\\x00-\\x7f]{2}",
    "(?i:abc)",
    "(?s:a.b)",
    "[ab]{10}",
    "(a|ab)(c|bcd)(d*)",
    "x{0,3}y{0,3}z",
    "((a{2}){2}){2}",
    r"\(\)|\[\]|\{\}",
    r"\[(\d(, \d)*)?\]",
    r'"[^"\\]*"',
    r'"([^"\\]|\\["\\nt])*"',
    r'\{"name": "[A-Z][a-z]{1,8}", "age": \d{1,2}\}',
    r'\{"ok": (true|false)(, "why": "[a-z ]{0,20}")?\}',
    "<b>[^<]*</b>",
    "(<p>[a-z]+</p>){1,3}",
    "def [a-z_]+\\(\\):\n    return \\d+\n",
    "(- [a-z ]{1,10}\n){2,4}",
    "(0|1)+",
    "0x[0-9a-f]{1,8}",
    "[a-e]{3}|[f-j]{4}|[k-o]{5}",
    "(one|two|three)( (one|two|three)){0,4}",
    " ?the( [a-z]+)?",
    " {4}x",
    "Once upon a time[a-z ,]{0,30}\\.",
    "Ada|Alan|Grace|Edsger|Barbara",
    "(GET|POST|PUT) /[a-z]{0,6}",
    "[^ ]+ [^ ]+ [^ ]+",
]

SCHEMAS: list[Any] = [
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "string"},
    {"type": "integer", "minimum": 0, "maximum": 150},
    {"type": "integer", "minimum": -17, "maximum": 2048},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "maxLength": 5},
    {"type": "string", "minLength": 3, "maxLength": 20},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "pattern": "ab"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "1", None, True, [2], {"a": 3}]},
    {"const": {"a": [1, 2.5, "x"]}},
    {"type": ["string", "null"], "maxLength": 4},
    {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    {"type": "array", "items": {"type": "boolean"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "minItems": 2, "items": False},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}}},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["red", "green"]},
        },
        "required": ["name", "age", "kind"],
    },
    {
        "type": "object",
        "properties": {
            "date": {"type": "string", "format": "date"},
            "x": {"type": "number", "minimum": -1, "maximum": 10},
        },
        "required": ["x"],
    },
    {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 4}},
        "required": ["tags"],
    },
    {
        "type": "array",
        "maxItems": 3,
        "items": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    },
    {
        "$ref": "#/$defs/point",
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x", "y"],
            }
        },
    },
    {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 700}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 0}]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "string", "enum": ["Müller", "Łukasz", "日本", "a\nb", "😀"]},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "array"}}}}},
]


@cache
def tables() -> list[Table]:
    """The automata of all these constraints."""
    made = [regex_table(pattern) for pattern in PATTERNS]
    return made + [schema_table(schema, closed=True, whitespace="line") for schema in SCHEMAS]
