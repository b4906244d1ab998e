"""The plan of an output type: how to make its automaton, how to write it for llguidance, how to read a text of it.

Both engines get the same texts. `gen.constraints.compiling` carries a plan out. Example: the plan of `int` is that of
the schema {"type": "integer"}, whose texts pydantic reads.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gen.constraints import grammars
from gen.constraints.automata.dfa import Table
from gen.constraints.automata.regexes import choice_table, regex_table, text_table
from gen.constraints.composing.trees import Plan
from gen.constraints.outlines_types import as_own
from gen.constraints.output_types import Choice, Grammar, JsonSchema, Text, regex
from gen.constraints.schema import schema_table, string_table
from gen.errors import ConstraintError, show
from gen.tools.calls import ToolCallsType


def read_plan(output_type: Any) -> Plan:
    """The plan of a type that is not made of others.

    Raises:
        ConstraintError: it is no output type.
    """
    output_type = as_own(output_type)
    if output_type is None:
        raise ConstraintError("None asks for no output type; type(None) is that of null.")
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
    if isinstance(output_type, Text):
        without, most = output_type.without, output_type.max_chars
        return Plan(
            key=("any text", without, most),
            table=partial(text_table, without, most),
            grammar=partial(grammars.of_any_text, without, most),
            parse=str,
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
    ToolCallsType: "gen.tool_calls is a whole text, and no part of one",
    str: "gen.regex takes a pattern, gen.choice a list of options",
    dict: "gen.json_schema takes a schema",
    list | tuple | set: "gen.choice takes options; a list of types is for a list of prompts, one for each",
}


def _type_plan(output_type: Any) -> Plan:
    """The plan of a Python type as it is now; if its JSON is always a string, its texts have no quotes."""
    from gen.constraints.python_types import is_text, schema_of  # only those who ask for types need pydantic

    schema, adapter = schema_of(output_type)

    def parse(text: str) -> Any:
        return adapter.validate_json(json.dumps(text))

    if is_text(schema, schema):
        return replace(string_plan(schema), parse=parse, python_type=output_type)
    asked = JsonSchema(json.dumps(schema, ensure_ascii=False), closed=True, whitespace="line", ecma=False)
    return replace(_json_plan(asked, adapter.validate_json), python_type=output_type)


def string_plan(schema: Any) -> Plan:
    """The plan of the strings that meet a schema, without quotes."""
    return Plan(
        key=("text", json.dumps(schema, ensure_ascii=False)),
        table=partial(string_table, schema),
        grammar=partial(grammars.of_text, schema),
        parse=str,
    )


def _json_plan(asked: JsonSchema, parse: Callable[[str], Any]) -> Plan:
    key = ("json", asked.schema, asked.closed, asked.whitespace, asked.ecma and "attern" in asked.schema)
    table, grammar = partial(_json_table, asked), partial(_json_grammar, asked)
    return Plan(key=key, table=table, grammar=grammar, parse=parse, schema=asked.schema)


def _json_table(asked: JsonSchema) -> Table:
    return schema_table(json.loads(asked.schema), closed=asked.closed, whitespace=asked.whitespace, ecma=asked.ecma)


def _json_grammar(asked: JsonSchema) -> str:
    return grammars.of_schema(
        json.loads(asked.schema), closed=asked.closed, whitespace=asked.whitespace, ecma=asked.ecma
    )


def _pattern_of(output_type: Any) -> str:
    """A pattern, with its flags if it is a compiled one."""
    pattern: str = output_type.pattern
    if not isinstance(output_type, re.Pattern):
        if hasattr(output_type, "flags"):  # of the package regex, for example, whose syntax is not that of re
            raise ConstraintError(
                f"{show(output_type)} is not a pattern of re; give it as gen.regex(...), in the syntax of re, with its "
                "flags in it, as (?i)."
            )
        return regex(pattern).pattern
    flags = "".join(letter for letter, flag in _FLAGS.items() if output_type.flags & flag)
    pattern = re.sub(r"^\(\?[aimsux]+\)", "", pattern)  # they are among its flags
    return f"(?{flags}){pattern}" if flags else pattern


_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
