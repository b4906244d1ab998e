"""Grammars for llguidance: full matches of Python's own engine, JSON that jsonschema takes, and what is refused."""

import json
import re
from typing import Any

import jsonschema
import pytest

from gen.constraints import grammars
from gen.constraints.host_engine import Grammar
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError

VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b"", b"ab", b'": ', b"true"])
TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "aab",
    "abab",
    "a1",
    "é",
    "٣",
    "3",
    "_",
    " ",
    "\n",
    "\t",
    "A",
    "a\n",
    "x.y",
    "-",
    "]",
    "/",
    "😀",
]
PATTERNS = [
    "a",
    "a*b",
    "(?:ab)+",
    "(a|b)*a(a|b){1}",
    "^a$",
    "a$",
    "^",
    "[a-c]+?",
    "[^a]",
    "[^ab]{2}",
    ".",
    r"\d",
    r"\D",
    r"\w+",
    r"\W",
    r"\s",
    r"\S\S",
    r"[\d_]",
    r"[^\w]",
    r"[\s\S]*",
    r"x\.y",
    r"[\]-]",
    "/",
    "a|",
    "",
    "(?P<n>a)b",
    "é|😀",
    r"a\Z",
    r"\Aab",
]


def accepts(grammar: str, text: str) -> bool:
    return Grammar(grammar, VOCABULARY).accepts(text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_it_means_to_python(pattern: str) -> None:
    grammar = grammars.of_regex(pattern)
    for text in TEXTS:
        assert accepts(grammar, text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_pattern_of_a_schema_matches_anywhere(pattern: str) -> None:
    grammar = grammars.of_text({"type": "string", "pattern": pattern})
    for text in TEXTS:
        if not text.endswith("\n"):  # before which $ matches in Python, and not in JSON Schema
            assert accepts(grammar, text) == bool(re.search(pattern, text, re.ASCII)), text


@pytest.mark.parametrize(
    "pattern", [r"\b", "a^b", "a$b", "(^a|b)", r"(a)\1", "(?=a)a", "(?i)a", "(?i:a)", "a(?<!b)", "[", "a++", "\\ud800"]
)
def test_what_llguidance_reads_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError):
        grammars.of_regex(pattern)


def test_what_python_warns_of_is_read_without_a_warning() -> None:
    grammar = grammars.of_regex("[[a]")
    assert [accepts(grammar, text) for text in ("[", "a", "]")] == [True, True, False]


def test_choices_are_taken_letter_by_letter() -> None:
    texts = ["", "a", 'q"uo"te', "back\\slash", "line\n", "tab\t", "\x01", "\x7f", "\x00", "é😀", "/x/", "a\u2028b"]
    for text in texts:
        grammar = grammars.of_choice([text, "zzz"])
        assert accepts(grammar, text) and accepts(grammar, "zzz")
        assert not accepts(grammar, text + "x") and not accepts(grammar, "zz")


def test_a_choice_may_have_many_options() -> None:
    texts = [f"option {number}" for number in range(20_000)]
    grammar = Grammar(grammars.of_choice(texts), VOCABULARY)
    matcher = grammar.matcher()
    for byte in b"option 1":  # it goes on from token to token, where a rule of so many alternatives fails
        matcher.compute_bitmask()
        assert matcher.consume_token(byte)
    assert matcher.is_accepting() and grammar.accepts(texts[-1]) and not grammar.accepts("option 20000")


def test_texts_have_enum_pattern_or_length() -> None:
    assert accepts(grammars.of_text({"type": "string", "minLength": 2, "maxLength": 3}), "é\n")
    assert not accepts(grammars.of_text({"type": "string", "minLength": 2}), "é")
    assert accepts(grammars.of_text({"enum": ["a", "b"]}), "b")
    with pytest.raises(ConstraintError, match="pattern, maxLength"):
        grammars.of_text({"type": "string", "pattern": "a", "maxLength": 3})


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}, "extends": {"enum": [1, "disallow"]}},
    "required": ["name"],
}
VALUES: list[Any] = [
    {"name": "a"},
    {"name": "a", "next": {"name": "b", "extends": 1}},
    {"next": {"name": "a"}},
    {"name": "a", "next": {}},
    {"name": 1},
    {"name": "a", "other": 1},
    [],
]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("whitespace", "separators"), [("line", (", ", ": ")), ("compact", (",", ":"))])
def test_json_is_what_jsonschema_takes(closed: bool, whitespace: str, separators: tuple[str, str]) -> None:
    grammar = grammars.of_schema(SCHEMA, closed=closed, whitespace=whitespace)
    validator = jsonschema.Draft202012Validator(SCHEMA | ({"additionalProperties": False} if closed else {}))
    for value in VALUES:
        assert accepts(grammar, json.dumps(value, separators=separators)) == validator.is_valid(value), value
    other = (",", ": ")
    assert not accepts(grammar, json.dumps(VALUES[1], separators=other))


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        ({"disallow": "string"}, {}, "ignores disallow"),
        ({"properties": {"a": {"anyOf": [{"extends": {}}]}}}, {}, "ignores extends"),
        ({}, {"whitespace": "indent"}, "whitespace='indent'"),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {}, "cannot close it: objects at #"),
    ],
)
def test_what_it_cannot_say_is_refused(schema: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        grammars.of_schema(schema, **({"closed": True, "whitespace": "line"} | arguments))


@pytest.mark.parametrize("keyword", ["not", "if", "uniqueItems", "contains", "dependentRequired", "propertyNames"])
def test_llguidance_refuses_the_keywords_that_it_does_not_know(keyword: str) -> None:
    grammar = grammars.of_schema({"type": "array", keyword: {"type": "string"}}, closed=False, whitespace="line")
    with pytest.raises(ConstraintError, match=f"llguidance: .*{keyword}"):
        Grammar(grammar, VOCABULARY)


def test_a_grammar_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(ConstraintError, match="llguidance: ") as raised:
        Grammar(grammars.of_lark('start: "a'), VOCABULARY)
    assert "\n" not in str(raised.value)
