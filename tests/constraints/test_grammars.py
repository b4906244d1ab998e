"""Grammars for llguidance: the automaton's texts, JSON that jsonschema accepts, and grammars that are refused."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from benchmarks.constraints.host_walks import walk
from benchmarks.constraints.random_types import random_schema
from gen.constraints import host_engine
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.automata.regexes import regex_table
from gen.constraints.automata.rust_syntax import choice_grammar, regex_grammar
from gen.constraints.host_engine import Grammar, problem_of
from gen.constraints.output_types import Whitespace
from gen.constraints.schema import schema_grammar, string_grammar, string_table
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
    "(?i)[a-k]",
    "(?s:.)",
    "^(?:a|bc)$",
]


def accepts(grammar: str, text: str) -> bool:
    return Grammar(grammar, VOCABULARY).accepts(text.encode())


@pytest.mark.parametrize(
    "pattern", [*PATTERNS, "(?=a)[ab]+", "(?!ab)..", r"(?=.*\d$)\w+", r"(?m)\Aab?", r"(?a)(?u:\W)"]
)
def test_a_pattern_means_what_it_means_to_the_automaton(pattern: str) -> None:
    grammar, table = Grammar(regex_grammar(pattern), VOCABULARY), regex_table(pattern)
    for text in TEXTS:
        assert grammar.accepts(text.encode()) == table.accepts(text.encode()), text


@pytest.mark.parametrize("pattern", [*PATTERNS, "^(?!.*ab)[a-z]*", "^a|b$", "(?:^a|\\d)"])
def test_the_pattern_of_a_schema_matches_anywhere_in_strings_with_and_without_quotes(pattern: str) -> None:
    for schema in ({"type": "string", "pattern": pattern}, {"type": "string", "not": {"pattern": pattern}}):
        try:
            table = string_table(schema)
        except Empty:
            continue
        bare = Grammar(string_grammar(schema), VOCABULARY)
        quoted = Grammar(schema_grammar(schema, closed=True, whitespace="line", ecma=False), VOCABULARY)
        for text in TEXTS:
            plain, own = text.encode(), json.dumps(text, ensure_ascii=False).encode()
            assert bare.accepts(plain) == quoted.accepts(own) == table.accepts(plain), text


@pytest.mark.parametrize("pattern", [r"\ba", "a^b", "a$b", r"(a)\1", "a(?=b)", "a(?<!b)", "[", "a++", "(?m)^a$"])
def test_what_rust_cannot_say_is_refused(pattern: str) -> None:
    with pytest.raises(Unsupported):
        regex_grammar(pattern)


def test_what_python_warns_of_is_read_without_a_warning() -> None:
    grammar = regex_grammar("[[a]")
    assert [accepts(grammar, text) for text in ("[", "a", "]")] == [True, True, False]


def test_choices_are_taken_letter_by_letter() -> None:
    texts = ["", "a", 'q"uo"te', "back\\slash", "line\n", "tab\t", "\x01", "\x7f", "\x00", "é😀", "/x/", "a\u2028b"]
    for text in texts:
        grammar = choice_grammar([text, "zzz"])
        assert accepts(grammar, text) and accepts(grammar, "zzz")
        assert not accepts(grammar, text + "x") and not accepts(grammar, "zz")


def test_a_choice_may_have_many_options() -> None:
    texts = [f"option {number}" for number in range(20_000)]
    grammar = Grammar(choice_grammar(texts), VOCABULARY)
    matcher = grammar.matcher()
    for byte in b"option 1":  # it can go on token by token; a rule of so many alternatives would fail
        matcher.compute_bitmask()
        assert matcher.consume_token(byte)
    assert matcher.is_accepting() and grammar.accepts(texts[-1].encode()) and not grammar.accepts(b"option 20000")


def test_texts_have_any_number_of_patterns_lengths_formats_and_values() -> None:
    schema = {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "maxLength": 3, "not": {"const": "ab"}}
    assert [accepts(string_grammar(schema), text) for text in ("ab", "a\nb", "aéb", "abbb", "b")] == [
        *(False, True, True, False, False)
    ]
    date = string_grammar({"anyOf": [{"type": "string", "format": "date"}, {"enum": ["unknown", 5]}]})
    assert [accepts(date, text) for text in ("2024-02-29", "2023-02-29", "unknown", "5")] == [True, False, True, False]
    assert accepts(string_grammar({"type": "string", "minLength": 2, "maxLength": 100_000}), "é\n" * 2)


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
def test_json_is_what_jsonschema_takes(closed: bool, whitespace: Whitespace, separators: tuple[str, str]) -> None:
    grammar = schema_grammar(SCHEMA, closed=closed, whitespace=whitespace)
    validator = jsonschema.Draft202012Validator(SCHEMA | ({"additionalProperties": False} if closed else {}))
    for value in VALUES:
        assert accepts(grammar, json.dumps(value, separators=separators)) == validator.is_valid(value), value
    other = (",", ": ")
    assert not accepts(grammar, json.dumps(VALUES[1], separators=other))


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["leaf", [1], {"a": None}]}, "size": {"type": "integer", "minimum": 3}},
    "required": ["kind"],
    "oneOf": [
        {"properties": {"kind": {"const": "leaf"}}, "required": ["size"]},
        {
            "properties": {
                "kind": {"type": ["array", "object"]},
                "left": {"$ref": "#"},
                "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            },
            "required": ["left"],
        },
    ],
}


def test_a_schema_that_refers_to_itself_keeps_one_of_and_is_closed() -> None:
    leaf = {"kind": "leaf", "size": 12}
    node = {"kind": [1], "left": leaf}
    values: list[Any] = [leaf, node, {"kind": {"a": None}, "left": node, "right": None}, node | {"right": node}]
    values += [{}, {"kind": "leaf", "size": 2}, {"kind": "leaf", "left": leaf}, node | {"left": {}}, leaf | {"more": 1}]
    values += [node | {"left": leaf | {"more": [[[[]]]]}}, {"kind": [2], "left": leaf}, {"kind": [1], "size": 4}]
    validator = jsonschema.Draft202012Validator(TREE)
    for closed in (True, False):
        grammar = Grammar(schema_grammar(TREE, closed=closed, whitespace="line"), VOCABULARY)
        for value in values:
            expected = validator.is_valid(value) and not (closed and '"more"' in json.dumps(value))
            assert grammar.accepts(json.dumps(value).encode()) == expected, value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}}},
    ],
)
def test_a_schema_whose_values_would_never_end_is_empty(schema: Any) -> None:
    with pytest.raises(Empty, match="no value meets this schema"):
        schema_grammar(schema, closed=True, whitespace="line")


def test_a_value_that_never_ends_is_no_way_out() -> None:
    """A model that begins such a value can never end it."""
    endless = {"type": "object", "properties": {"x": {"$ref": "#/$defs/e"}}, "required": ["x"]}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/e"}, "b": {"type": "null"}},
        "$defs": {"e": endless},
    }
    grammar = Grammar(schema_grammar(schema, closed=True, whitespace="line"), VOCABULARY)
    assert grammar.accepts(b'{"b": null}')
    walker = grammar.walker()
    assert all(walker.push(byte) for byte in b'{"') and not walker.push(ord("a"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": {"$ref": "#"}, "b": {"disallow": "string"}}}, "disallow at #/properties/b"),
        ({"items": {"$ref": "#"}, "uniqueItems": True}, "uniqueItems at #, of items that are not few"),
        ({"$ref": "#"}, "refers to itself"),
    ],
)
def test_what_no_engine_can_say_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        schema_grammar(schema, closed=True, whitespace="line")


def test_equal_alternatives_are_written_once() -> None:
    """Each alternative has scalars in common with the others, and ends in the same ways."""
    ways = [{"required": [f"k{place}"], "properties": {f"k{place}": {"enum": [1, "x"]}}} for place in range(9)]
    written = schema_grammar({"anyOf": ways, "items": {"type": "integer"}}, closed=True, whitespace="line")
    rules = dict(line.split(": ", 1) for line in written.splitlines() if line.startswith("s"))
    alternatives = {name: said.split(" | ") for name, said in rules.items()}
    assert all(len(said) == len(set(said)) for said in alternatives.values())
    assert len(rules) == len({frozenset(said) for said in alternatives.values()})
    assert [accepts(written, text) for text in ('{"k3": "x"}', "[1]", "null", '{"k3": 2}')] == [
        *(True, True, True, False)
    ]


def test_what_compiles_can_be_walked_to_the_end_of_any_text() -> None:
    """Random schemas with a reference to themselves, six random texts each, up to 60 tokens."""
    chance, tokens = random.Random(3), np.random.default_rng(3)
    whole = 0
    for number in range(60):
        schema = random_schema(chance) | {"patternProperties": {"^next$": {"$ref": "#"}}}
        try:
            grammar = Grammar(schema_grammar(schema, closed=number % 2 == 0, whitespace="line"), VOCABULARY)
        except (Empty, Unsupported, TooLarge, ConstraintError):
            continue
        for _ in range(6):
            count, ended, problem = walk(grammar, tokens, 60)
            assert not problem, (schema, count, problem)
            whole += ended
    assert whole > 150


def test_a_class_of_a_thousand_optional_fields_is_followed() -> None:
    """After each of its fields any later one may come; by itself llguidance follows 2000 ways."""
    schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(1500)}}
    grammar = Grammar(schema_grammar(schema, closed=True, whitespace="line"), VOCABULARY)
    assert walk(grammar, np.random.default_rng(0), 40)[2] == ""
    assert grammar.accepts(b'{"p3": true, "p1499": false}') and not grammar.accepts(b'{"p4": true, "p3": true}')


def test_a_lexer_with_too_many_states_fails_the_texts_that_have_it_and_no_later_one() -> None:
    grammar = Grammar(regex_grammar("[ab]{90}c(a{1000}){1000}"), VOCABULARY)
    grammar.try_out()

    def text(grammar: Grammar) -> str:
        walker = grammar.walker()
        for byte in b"ab" * 45 + b"ca":
            if problem := walker.problem():
                return problem
            walker.push(byte)
        return ""

    assert "too many" in text(grammar)
    walker = grammar.walker()
    assert walker.push(ord("a")) and walker.problem() == ""


def test_no_error_tells_of_a_panic() -> None:
    class Failed:
        def __init__(self, said: str) -> None:
            self.said = said

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return self.said

    panicked: Any = Failed("panic: assertion failed: self.row < rows.len()\nat src/earley/parser.rs:1")
    assert problem_of(panicked) == "llguidance: an error of its own, since it is too complex"
    failed: Any = Failed("too many items\nmore")
    assert problem_of(failed) == "llguidance: too many items"


def test_a_grammar_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(ConstraintError, match="llguidance: ") as raised:
        Grammar('start: "a', VOCABULARY)
    assert "\n" not in str(raised.value)


def test_a_grammar_of_many_rules_one_after_another_ends_no_process() -> None:
    rules = "\n".join(f's{number}: "a" s{number + 1} | "b"' for number in range(8000))
    assert accepts(f'start: s0\n{rules}\ns8000: "c"', "aab")


def test_a_text_is_accepted_where_tokens_spell_all_of_it() -> None:
    """The oracle: every way to write a text with the tokens, tried by hand."""
    grammar = Grammar("start: /[abcxé]+/", Vocabulary([b"a", b"ab", b"abc", b"bcx", b"c", b""]))
    for text in ("a", "ab", "abc", "abcx", "aabcxc", "ababc"):  # "abcx" is a, bcx: the longest beginning leads nowhere
        assert grammar.accepts(text.encode()), text
    for text in ("", "b", "x", "abx", "xab", "aéb", "abcxx", "bc"):
        assert not grammar.accepts(text.encode()), text
    only = Grammar('start: "ab"', Vocabulary([b"a", b"b", b"", b"ab"]))
    assert [only.accepts(text.encode()) for text in ("ab", "axb", "xab", "abx", "aéb")] == [True, *[False] * 4]


def test_the_lexer_has_room_for_patterns_of_many_words() -> None:
    """With llguidance's own limit it forbids words of this pattern without an error."""
    words = {"type": "string", "maxLength": 500, "pattern": r"^(?:\S+\s+){0,49}\S+$"}
    schema = {"type": "object", "properties": {"words": words, "next": {"$ref": "#"}}}
    grammar = Grammar(schema_grammar(schema, closed=True, whitespace="line"), VOCABULARY)
    for count in (1, 25, 50, 51):
        text = json.dumps({"words": " ".join(["word"] * count)})
        assert grammar.accepts(text.encode()) == (count <= 50), count
    many = {name: words for name in "abcd"}
    grammar = Grammar(schema_grammar({"properties": many}, closed=True, whitespace="line"), VOCABULARY)
    assert grammar.accepts(json.dumps({name: " ".join(f"word{n}" for n in range(30)) for name in many}).encode())


def test_a_lexer_without_room_is_an_error_and_refuses_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_engine, "_FUEL", 200_000)  # llguidance's own
    monkeypatch.setattr(host_engine, "_FIRST_FUEL", 1_000_000)
    words = {"type": "string", "maxLength": 500, "pattern": r"^(?:\S+\s+){0,49}\S+$"}
    schema = {"type": "object", "properties": {"words": words, "next": {"$ref": "#"}}}
    grammar = Grammar(schema_grammar(schema, closed=True, whitespace="line"), VOCABULARY)
    text = json.dumps({"words": " ".join(["word"] * 50)}).encode()
    with pytest.raises(ConstraintError, match="llguidance: lexer error"):
        grammar.accepts(text)
    walker = grammar.walker()
    assert all(walker.push(byte) for byte in text)
    assert "llguidance: lexer error" in walker.problem()
