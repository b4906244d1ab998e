"""What a text may be asked to be: patterns, choices, JSON schemas, grammars and Python types, each read into a plan.

A plan says the same to both engines: how to make the automaton, how to write the grammar for llguidance, and how to
read a text as a value. `gen.constraints.compiling` carries it out.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal

from gen.arguments import check_flag, check_text
from gen.constraints import grammars
from gen.constraints.automata.regexes import choice_table, regex_table
from gen.constraints.automata.table import Table
from gen.errors import ConstraintError, show

Whitespace = Literal["line", "compact", "indent"]


@dataclass(frozen=True)
class Regex:
    """See `gen.regex`."""

    pattern: str


@dataclass(frozen=True)
class Choice:
    """See `gen.choice`."""

    options: Mapping[str, Any]


@dataclass(frozen=True)
class JsonSchema:
    """See `gen.json_schema`; the schema is kept as a text."""

    schema: str
    closed: bool
    whitespace: Whitespace


@dataclass(frozen=True)
class Grammar:
    """See `gen.grammar`."""

    lark: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What becomes of an output type.

    Attributes:
        key: equal for output types with equal texts.
        table: makes the automaton, and raises what is in its way; None where llguidance alone can say it.
        grammar: writes the grammar for llguidance. Raises ConstraintError where it cannot.
        parse: reads a whole text. Raises ValueError where the type refuses the value.
    """

    key: tuple[Hashable, ...]
    table: Callable[[], Table] | None
    grammar: Callable[[], str]
    parse: Callable[[str], Any]


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
        raise ConstraintError(f"a regular expression must be a str, got {show(pattern)}")
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
        raise ConstraintError(f"{show(schema)} is no JSON: {error}") from error
    if not isinstance(parsed, dict | bool) or not isinstance(schema, Mapping | bool | str):
        hint = "; give a type as it is, without json_schema" if isinstance(schema, type) else ""
        raise ConstraintError(f"a JSON Schema must be a dict, or its text, got {show(schema)}{hint}")
    check_text("the schema", text)
    return JsonSchema(json.dumps(parsed, ensure_ascii=False), closed, whitespace)


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


def read_plan(output_type: Any) -> Plan:
    """What becomes of an output type.

    Raises:
        ConstraintError: it is none.
    """
    if isinstance(output_type, Grammar):
        return Plan(
            key=("grammar", output_type.lark),
            table=None,
            grammar=partial(grammars.of_lark, output_type.lark),
            parse=str,
        )
    if isinstance(output_type, Choice):
        texts = list(output_type.options)
        return Plan(
            key=("choice", *texts),
            table=partial(choice_table, texts),
            grammar=partial(grammars.of_choice, texts),
            parse=output_type.options.__getitem__,
        )
    if isinstance(output_type, JsonSchema):
        return _json_plan(output_type, json.loads)
    if not isinstance(output_type, type) and isinstance(getattr(output_type, "pattern", None), str):
        pattern = _pattern_of(output_type)
        return Plan(
            key=("regex", pattern),
            table=partial(regex_table, pattern),
            grammar=partial(grammars.of_regex, pattern),
            parse=str,
        )
    for kind, hint in _HINTS.items():
        if isinstance(output_type, kind):
            raise ConstraintError(f"{show(output_type)} is no output type; {hint}.")
    return _type_plan(output_type)


_HINTS: dict[Any, str] = {
    str: "gen.regex takes a pattern, gen.choice a list of options",
    dict: "gen.json_schema takes a schema",
    list | tuple | set: "gen.choice takes options; a list of types is for a list of prompts, one for each",
}


def _type_plan(output_type: Any) -> Plan:
    """The plan of a Python type; where its JSON is always a string, without the quotes."""
    from gen.constraints.python_types import is_text, schema_of  # pydantic is not for those who ask for no type
    from gen.constraints.schema import string_table

    schema, adapter = schema_of(output_type)
    if not is_text(schema, schema):
        return _json_plan(JsonSchema(json.dumps(schema, ensure_ascii=False), True, "line"), adapter.validate_json)

    def parse(text: str) -> Any:
        return adapter.validate_json(json.dumps(text))

    return Plan(
        key=("text", json.dumps(schema, ensure_ascii=False)),
        table=partial(string_table, schema),
        grammar=partial(grammars.of_text, schema),
        parse=parse,
    )


def _json_plan(asked: JsonSchema, parse: Callable[[str], Any]) -> Plan:
    from gen.constraints.schema import schema_table

    schema = json.loads(asked.schema)
    return Plan(
        key=("json", asked.schema, asked.closed, asked.whitespace),
        table=partial(schema_table, schema, closed=asked.closed, whitespace=asked.whitespace),
        grammar=partial(grammars.of_schema, schema, closed=asked.closed, whitespace=asked.whitespace),
        parse=parse,
    )


def _pattern_of(output_type: Any) -> str:
    """A pattern with the flags that it was compiled with, if it was."""
    pattern: str = output_type.pattern
    if not isinstance(output_type, re.Pattern):
        return regex(pattern).pattern
    flags = "".join(letter for letter, flag in _FLAGS.items() if output_type.flags & flag)
    pattern = re.sub(r"^\(\?[aimsux]+\)", "", pattern)  # they are among its flags
    return f"(?{flags}){pattern}" if flags else pattern


_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def _text_of(option: Any) -> str:
    """How an option is written."""
    value = option.value if isinstance(option, Enum) else option
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the option {show(option)} cannot be written as JSON: {error}") from error
    check_text("an option", text)
    return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")
