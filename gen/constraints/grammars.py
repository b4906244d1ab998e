"""Grammars for llguidance, which takes what the automaton refuses. Only what it reads as gen does is written.

Its patterns are those of Rust, whose \\d and \\w are Unicode and whose anchors may stand anywhere without a meaning, so
that patterns are written out: "a\\d$" is a[0-9] there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from re import _constants  # type: ignore[attr-defined]  # of the trees that `parsed` makes
from typing import Any

from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.automata.parsing import parsed
from gen.errors import ConstraintError, show

_SEPARATORS = {"line": (", ", ": "), "compact": (",", ":")}
_CLASSES = {
    _constants.CATEGORY_DIGIT: r"0-9",
    _constants.CATEGORY_WORD: r"0-9A-Za-z_",
    _constants.CATEGORY_SPACE: r"\x{9}-\x{D}\x{20}",
}
_OTHERS = {  # what is in none of them
    _constants.CATEGORY_NOT_DIGIT: r"\x{0}-\x{2F}\x{3A}-\x{10FFFF}",
    _constants.CATEGORY_NOT_WORD: r"\x{0}-\x{2F}\x{3A}-\x{40}\x{5B}-\x{5E}\x{60}\x{7B}-\x{10FFFF}",
    _constants.CATEGORY_NOT_SPACE: r"\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{10FFFF}",
}
_ESCAPES = {code: f"\\x{{{code:X}}}" for code in range(128) if not chr(code).isalnum()}
_IGNORED = frozenset({"disallow", "extends", "divisibleBy"})  # of draft 3; llguidance refuses all newer ones
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_DATA = frozenset({"enum", "const", "default", "examples"})
_STARTS = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
_ENDS = (_constants.AT_END, _constants.AT_END_STRING)
_ANYTHING = r"[\x{0}-\x{10FFFF}]"


def of_lark(lark: str) -> str:
    """The grammar of a Lark grammar."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(lark)


def of_choice(texts: Iterable[str]) -> str:
    """One of the texts, as a pattern: llguidance takes few alternatives in a rule, and many in a pattern."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex("|".join(text.translate(_ESCAPES) or "(?:)" for text in texts))


def of_regex(pattern: str) -> str:
    """Texts that a pattern matches as a whole.

    Raises:
        ConstraintError: llguidance would read it otherwise than Python does.
    """
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(_written(pattern, search=False))


def of_text(schema: Mapping[str, Any]) -> str:
    """The strings of a schema, without their quotes.

    Raises:
        ConstraintError: it is neither a list of strings nor one of pattern and length.
    """
    from llguidance import LLMatcher

    asked = {name: value for name, value in schema.items() if name not in ("type", "title", "description", "default")}
    if "enum" in asked:
        return of_choice(asked["enum"])
    if asked.keys() == {"pattern"}:
        return LLMatcher.grammar_from_regex(_written(asked["pattern"], search=True))
    if asked.keys() <= {"minLength", "maxLength"}:
        bounds = f"{{{asked.get('minLength', 0)},{asked.get('maxLength', '')}}}"
        return LLMatcher.grammar_from_regex(_ANYTHING + bounds)
    raise ConstraintError(f"the host engine has no strings without quotes with {', '.join(asked)} together")


def of_any_text(without: Sequence[str], most: int | None) -> str:
    """All texts without some strings, of at most so many characters; named as that of a pattern is."""
    text = f"/{_ANYTHING}{{0,{'' if most is None else most}}}/"
    if without:
        named = "|".join(one.translate(_ESCAPES) for one in without)
        text += f" & ~/{_ANYTHING}*(?:{named}){_ANYTHING}*/"
    return json.dumps({"grammars": [{"name": "regex", "lark_grammar": f"start: {text}"}]})


def of_schema(schema: Any, *, closed: bool, whitespace: str) -> str:
    """JSON that meets a schema; see `gen.json_schema`.

    Raises:
        ConstraintError: it cannot be closed, or written with this whitespace.
    """
    from llguidance import LLMatcher

    from gen.constraints.schema import closed_schema

    for part in _schemas(schema):
        if ignored := sorted(_IGNORED & part.keys()):
            raise ConstraintError(f"the host engine ignores {', '.join(ignored)}")
    if whitespace not in _SEPARATORS:
        raise ConstraintError(f"the host engine writes no JSON with whitespace={whitespace!r}")
    if schema is True:
        schema = {}
    if closed:
        try:
            schema = closed_schema(schema)
        except Unsupported as error:
            raise ConstraintError(f"the host engine cannot close it: {error}") from error
    item, key = _SEPARATORS[whitespace]
    return LLMatcher.grammar_from_json_schema(
        schema, overrides={"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    )


def _schemas(node: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all schemas in it; properties and definitions have names, which are no keywords."""
    if isinstance(node, list):
        for part in node:
            yield from _schemas(part)
    elif isinstance(node, dict):
        yield node
        for keyword, value in node.items():
            if keyword in _NAMED and isinstance(value, dict):
                value = list(value.values())
            if keyword not in _DATA:
                yield from _schemas(value)


def _written(pattern: str, *, search: bool) -> str:
    """A pattern of Python's in the syntax of Rust, matching whole texts.

    Args:
        search: whether the pattern may match anywhere in the text, unless it has anchors.
    """
    try:
        tree = parsed(pattern)
    except (Unsupported, TooLarge) as error:
        raise ConstraintError(str(error)) from error
    if tree.state.flags & ~(_constants.SRE_FLAG_UNICODE | _constants.SRE_FLAG_ASCII):
        raise ConstraintError(f"the host engine reads no flags in {show(pattern)}")
    items = list(tree)
    starts, ends = _anchored(items[:1], _STARTS), _anchored(items[-1:], _ENDS)
    items = items[1 if starts else 0 : len(items) - (1 if ends and len(items) > starts else 0)]
    before = _ANYTHING + "*" if search and not starts else ""
    after = _ANYTHING + "*" if search and not ends else ""
    return before + "".join(_item(item, pattern) for item in items) + after


def _anchored(items: Sequence[Any], places: Sequence[Any]) -> bool:
    return bool(items) and items[0][0] is _constants.AT and items[0][1] in places


def _item(item: Any, pattern: str) -> str:
    """A part of a parsed pattern in the syntax of Rust."""
    kind, value = item
    if kind is _constants.LITERAL:
        return _character(value)
    if kind is _constants.NOT_LITERAL:
        return f"[^{_character(value)}]"
    if kind is _constants.ANY:
        return r"[^\x{A}]"
    if kind is _constants.IN:
        negated = value[0][0] is _constants.NEGATE
        return f"[{'^' if negated else ''}{''.join(_member(member) for member in value[negated:])}]"
    if kind is _constants.BRANCH:
        return f"(?:{'|'.join(_items(branch, pattern) for branch in value[1])})"
    if kind is _constants.SUBPATTERN and not value[1] and not value[2]:
        return f"(?:{_items(value[3], pattern)})"
    if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        low, high, what = value
        most = "" if high is _constants.MAXREPEAT else high
        return f"(?:{_items(what, pattern)}){{{low},{most}}}"
    raise ConstraintError(f"neither engine has {str(kind).lower()} in {show(pattern)}")


def _items(items: Iterable[Any], pattern: str) -> str:
    return "".join(_item(item, pattern) for item in items)


def _member(member: Any) -> str:
    """A member of a class of characters."""
    kind, value = member
    if kind is _constants.LITERAL:
        return _character(value)
    if kind is _constants.RANGE:
        return f"{_character(value[0])}-{_character(value[1])}"
    return _CLASSES.get(value) or _OTHERS[value]


def _character(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise ConstraintError(f"\\u{code:x} is half of a pair of surrogates, which no text has")
    return f"\\x{{{code:X}}}"
