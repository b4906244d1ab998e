"""What a text may be asked to be beside a Python type: a pattern, one of some options, a JSON schema, a grammar.

`gen.constraints.plans` says what becomes of them. Example: `gen.choice(["yes", 1])` has the texts yes and 1.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_origin

from gen.arguments import check_flag, check_text
from gen.errors import ConstraintError, show

Whitespace = Literal["line", "compact", "indent"]


MARK = "x-gen"
"""Marks a JSON schema of pydantic's in which one of these stood in Annotated; the value names it."""


class _Annotation:
    """Tells pydantic's JSON Schema that it stands in Annotated, which pydantic itself does not mind."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {**handler(schema), MARK: f"gen.{_NAMES[type(self).__name__]}"}


_NAMES = {"Regex": "regex", "Choice": "choice", "JsonSchema": "json_schema", "Grammar": "grammar"}


@dataclass(frozen=True)
class Regex(_Annotation):
    """See `gen.regex`."""

    pattern: str


@dataclass(frozen=True)
class Choice(_Annotation):
    """See `gen.choice`."""

    options: Mapping[str, Any]


@dataclass(frozen=True)
class JsonSchema(_Annotation):
    """See `gen.json_schema`; the schema is kept as a text."""

    schema: str
    closed: bool
    whitespace: Whitespace


@dataclass(frozen=True)
class Grammar(_Annotation):
    """See `gen.grammar`."""

    lark: str


def regex(pattern: str) -> Regex:
    """Texts that a regular expression matches as a whole; the value is the text.

    Args:
        pattern: in the syntax of Python's `re`, without what is not regular: references back, most look-around. \\d and
            \\w are ASCII. Wherever an output type is wanted, a compiled pattern, and whatever else has a `pattern`
            that is a str, counts as its pattern.
    Raises:
        ConstraintError: it is no str.
    """
    if not isinstance(pattern, str):
        hint = "; give it as it is, without gen.regex" if isinstance(getattr(pattern, "pattern", None), str) else ""
        raise ConstraintError(f"a regular expression must be a str, got {show(pattern)}{hint}")
    check_text("the regular expression", pattern)
    return Regex(pattern)


def choice(options: Iterable[Any]) -> Choice:
    """One of some options, written as they are: strings without quotes, other values as JSON; the value is the option.

    Args:
        options: strings, numbers, bools, None, members of an Enum (or the Enum itself), or lists and dicts of those.
    Raises:
        ConstraintError: there is none, one of them cannot be written, or two are written alike.
    """
    try:
        given = None if isinstance(options, str | bytes) else list(options)
    except TypeError:
        given = None
    if given is None:
        raise ConstraintError(f"choice takes a list of options, got {show(options)}")
    if not given:
        raise ConstraintError("choice needs at least one option, got none.")
    texts: dict[str, Any] = {}
    for option in given:
        text = _text_of(option)
        if text in texts and (type(texts[text]) is not type(option) or texts[text] != option):
            raise ConstraintError(
                f"{show(texts[text])} and {show(option)} are both written {text!r}; give one of them."
            )
        texts.setdefault(text, option)
    return Choice(texts)


def json_schema(
    schema: Mapping[str, Any] | bool | str, *, closed: bool = True, whitespace: Whitespace = "line"
) -> JsonSchema:
    """JSON that meets a schema; the value is the parsed JSON.

    Args:
        schema: a JSON Schema, as a dict or as a text.
        closed: whether objects have only the properties that they list, unless `additionalProperties` is written;
            values of any type then nest at most two deep. False is the specification's reading.
        whitespace: "line" is that of `json.dumps`, ", " and ": "; "compact" has none; "indent" is that of
            `json.dumps(indent=2)`.
    Raises:
        ConstraintError: it is no JSON Schema.
    """
    check_flag("closed", closed)
    if not isinstance(whitespace, str) or whitespace not in ("line", "compact", "indent"):
        raise ConstraintError(f'whitespace must be "line", "compact" or "indent", got {show(whitespace)}')
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False, allow_nan=False)
        parsed = json.loads(text, parse_constant=_no_constant)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(schema, type) or get_origin(schema) is not None:
            raise _no_schema(schema, "; give a type as it is, without json_schema") from error
        raise ConstraintError(f"{show(schema)} is no JSON: {error}") from error
    if not isinstance(parsed, dict | bool) or not isinstance(schema, Mapping | bool | str):
        raise _no_schema(schema)
    text = json.dumps(parsed, ensure_ascii=False)  # which has what the given text may have escaped
    check_text("the schema", text)
    return JsonSchema(text, closed, whitespace)


def grammar(lark: str) -> Grammar:
    """Texts of a context-free grammar, on the host engine; the value is the text.

    Args:
        lark: in llguidance's variant of Lark's syntax, with a rule `start`.
    Raises:
        ConstraintError: it is no str.
    """
    if not isinstance(lark, str):
        raise ConstraintError(f"a grammar must be a str, got {show(lark)}")
    check_text("the grammar", lark)
    return Grammar(lark)


def _text_of(option: Any) -> str:
    """How an option is written."""
    value = option.value if isinstance(option, Enum) else option
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the option {show(option)} cannot be written as JSON: {error}") from error
    check_text("an option", text)
    return text


def _no_schema(given: object, hint: str = "") -> ConstraintError:
    return ConstraintError(f"a JSON Schema must be a dict, or its text, got {show(given)}{hint}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")
