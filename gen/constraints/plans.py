"""The plan of an output type: how to make its automaton, how to write it for llguidance, how to read a text of it.

Both engines get the same texts. `gen.constraints.compiling` carries a plan out. Example: the plan of `int` is that of
the schema {"type": "integer"}, whose texts pydantic reads.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.automata.parsing import with_flags
from gen.constraints.automata.regexes import choice_table, regex_table, text_table
from gen.constraints.automata.rust_syntax import NO_FORCING, choice_grammar, regex_grammar, text_grammar
from gen.constraints.composing.trees import Calls, Plan, Tree, Word, with_parts
from gen.constraints.constraint import Constraint
from gen.constraints.output_types import (
    Choice,
    Composed,
    Either,
    Grammar,
    JsonSchema,
    Made,
    Regex,
    Repeat,
    Sequence,
    Text,
    choice,
    grammar,
    json_schema,
    regex,
)
from gen.constraints.schema import schema_grammar, schema_table, string_grammar, string_table
from gen.constraints.schema.writing.writer import Fields, Layout
from gen.errors import ArgumentError, ConstraintError, show
from gen.tools.calls import ToolCallsType

T = TypeVar("T")
_OUTLINES = "outlines.types.dsl"


def read_tree(output_type: Any) -> Tree:
    """The tree of a type that is made of others, or the plan of any other one.

    Raises:
        ConstraintError: it is no output type, or one of its parts is none, or two branches are equal.
    """
    if not isinstance(output_type, Composed):
        return read_plan(output_type)
    tree: Tree = with_parts(output_type, lambda part: Word(part) if isinstance(part, str) else read_tree(part))
    if isinstance(tree, Made) and tree.about and isinstance(tree.part, Plan):
        return replace(tree, part=replace(tree.part, about=tree.about))
    keys = [branch.key for branch in tree.branches] if isinstance(tree, Either) else []
    for number, key in enumerate(keys):
        if key in keys[:number]:
            assert isinstance(output_type, Either)  # as its tree is; tells mypy
            raise ConstraintError(
                f"gen.either has two equal branches, {show(output_type.branches[number])}; give one of them."
            )
    return tree


def read_plan(output_type: Any) -> Plan:
    """The plan of a type that is not made of others.

    Raises:
        ConstraintError: it is no output type.
    """
    output_type = _as_own(output_type)
    if isinstance(output_type, Plan):
        return output_type
    if output_type is None:
        raise ConstraintError("None asks for no output type; type(None) is that of null.")
    if isinstance(output_type, Grammar):
        written = output_type.lark + NO_FORCING
        return Plan(key=("grammar", output_type.lark), table=None, grammar=partial(str, written), parse=str)
    if isinstance(output_type, Choice):
        texts = list(output_type.options)
        read = output_type.options.__getitem__
        return _plan(("choice", *texts), partial(choice_table, texts), partial(choice_grammar, texts), read)
    if isinstance(output_type, Text):
        asked = output_type.without, output_type.max_chars
        return _plan(("any text", *asked), partial(text_table, *asked), partial(text_grammar, *asked), str)
    if isinstance(output_type, JsonSchema) and output_type.python_type is None:
        return _json_plan(output_type, json.loads)
    if isinstance(output_type, JsonSchema):
        from pydantic import TypeAdapter  # only those who ask for types need pydantic

        from gen.constraints.python_types import reader_of

        python_type = output_type.python_type
        return replace(_json_plan(output_type, reader_of(TypeAdapter(python_type))), python_type=python_type)
    if not isinstance(output_type, type) and isinstance(getattr(output_type, "pattern", None), str):
        pattern = _pattern_of(output_type)
        return _plan(("regex", pattern), partial(regex_table, pattern), partial(regex_grammar, pattern), str)
    for kind, hint in _HINTS.items():
        if isinstance(output_type, kind):
            raise ConstraintError(f"{show(output_type)} is no output type; {hint}.")
    return _type_plan(output_type)


def _plan(key: Any, table: Callable[[], Table], grammar: Callable[[], str], parse: Callable[[str], Any]) -> Plan:
    """A plan of both engines."""
    return Plan(key=key, table=table, grammar=partial(_written, grammar), parse=parse)


def _written(write: Callable[[], str]) -> str:
    """A grammar. Raises ConstraintError for what has none."""
    try:
        return write()
    except (Unsupported, TooLarge) as error:
        raise ConstraintError(str(error)) from error


_HINTS: dict[Any, str] = {
    ToolCallsType: "gen.tool_calls is a whole text, and no part of one",
    Constraint: "a part is the type itself, without gen.compile",
    str: "gen.regex takes a pattern, gen.choice a list of options",
    dict: "gen.json_schema takes a schema",
    list | tuple | set: "gen.choice takes options; a list of types is for a list of prompts, one for each",
}


def _type_plan(output_type: Any) -> Plan:
    """The plan of a Python type as it is now; if its JSON is always a string, its texts have no quotes."""
    from gen.constraints.python_types import is_text, reader_of, schema_of  # only those who ask for types need pydantic

    schema, adapter = schema_of(output_type)

    def parse(text: str) -> Any:
        return adapter.validate_json(json.dumps(text))

    if is_text(schema, schema):
        return replace(string_plan(schema), parse=parse, python_type=output_type)
    asked = JsonSchema(json.dumps(schema, ensure_ascii=False), closed=True, whitespace="line", ecma=False)
    return replace(_json_plan(asked, reader_of(adapter)), python_type=output_type)


def string_plan(schema: Any) -> Plan:
    """The plan of the strings that meet a schema, without quotes."""
    key = ("text", json.dumps(schema, ensure_ascii=False))
    return _plan(key, partial(string_table, schema), partial(string_grammar, schema), str)


def _json_plan(asked: JsonSchema, parse: Callable[[str], Any]) -> Plan:
    key = ("json", asked.schema, asked.closed, asked.whitespace, asked.ecma and "attern" in asked.schema)
    made = _plan(key, partial(_of_schema, schema_table, asked), partial(_of_schema, schema_grammar, asked), parse)
    return replace(made, schema=asked.schema)


def _of_schema(make: Callable[..., T], asked: JsonSchema) -> T:
    return make(json.loads(asked.schema), closed=asked.closed, whitespace=asked.whitespace, ecma=asked.ecma)


def laid_out(output_type: Any, layout: Layout, in_json: Callable[[str], str] = str) -> Plan:
    """The plan of a type of JSON objects that are written in another layout.

    Args:
        in_json: gives a text of the layout as JSON.
    Raises:
        ConstraintError: it is no output type.
    """
    plan, own = read_plan(output_type), isinstance(output_type, JsonSchema)
    assert plan.schema is not None  # it is that of JSON objects; tells mypy
    asked = JsonSchema(plan.schema, True, layout, ecma=own)
    made = _json_plan(asked, partial(_parse_in_json, plan.parse, in_json))
    return replace(made, schema=None)


def _parse_in_json(parse: Callable[[str], Any], in_json: Callable[[str], str], text: str) -> Any:
    return parse(in_json(text))


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
    return with_flags(output_type)


def _as_own(output_type: Any) -> Any:
    """An output type, or gen's own with the same meaning instead of one of Outlines 1, which is not imported.

    Raises:
        ConstraintError: gen has nothing like it.
    """
    kind = type(output_type)
    if not any(base.__module__ == _OUTLINES for base in kind.__mro__):
        return output_type
    if kind.__name__ == "JsonSchema":
        if output_type.whitespace_pattern is not None:
            raise ConstraintError(
                f"{show(output_type)}: gen writes whitespace as json.dumps does, and takes no whitespace_pattern; take "
                "gen.json_schema(schema, whitespace=...)."
            )
        return json_schema(output_type.schema)
    if kind.__name__ == "Choice":
        return choice(output_type.items)
    if kind.__name__ == "CFG":
        return grammar(output_type.definition)
    return regex(sys.modules[_OUTLINES].to_regex(output_type))


def of_key(key: Any) -> Tree | Calls:
    """The tree of the output type with this key, a plain value, which may have lists in the place of tuples.

    The type has the same texts on the same engine as the one whose key it is; its values are plain. Example:
    gen.sequence("n = ", int) has the key ("sequence", ("word", "n = "), ("json", '{"type": "integer"}', True, "line",
    False)).

    Raises:
        ArgumentError: it is no key.
    """
    try:
        if key[0] == "calls":
            tree = _tree(key[1])
            return Calls(tree, tree)
        return _tree(key)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{show(key)} is the form of no output type.") from error


def _tree(key: Any) -> Tree:
    kind, *parts = key
    if kind == "word":
        return Word(parts[0])
    if kind == "sequence":
        return Sequence(tuple(map(_tree, parts)))
    if kind == "either":
        return Either(tuple(map(_tree, parts)))
    if kind == "repeat":
        part, separator, least, most = parts
        return Repeat(_tree(part), separator, least, most)
    if kind == "text":
        return string_plan(json.loads(parts[0]))
    if kind == "any text":
        return read_plan(Text(tuple(parts[0]), parts[1]))
    if kind == "choice":
        return read_plan(Choice({text: text for text in parts}))
    if kind == "json" and not isinstance(parts[2], str):  # as calls of tools are written
        item, name, indent, fields, without, python = parts[2]
        parts[2] = Layout(item, name, indent, fields and Fields(*fields), tuple(without), python)
    kinds = {"json": JsonSchema, "regex": Regex, "grammar": Grammar}
    return read_plan(kinds[kind](*parts))
