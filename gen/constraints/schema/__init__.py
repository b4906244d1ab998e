"""The regular part of JSON Schema as automata: schemas are merged into parts, parts are written as texts."""

import json
from functools import lru_cache
from typing import Any

from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Table, table
from gen.constraints.automata.limits import MOST_WORK, Budget, Empty, TooLarge, Unsupported
from gen.constraints.automata.nfa import MOST_NODES
from gen.constraints.automata.rust_syntax import grammar_of
from gen.constraints.output_types import Whitespace
from gen.constraints.schema.parts import Part
from gen.constraints.schema.views import property_schemas
from gen.constraints.schema.writing.automaton import AutomatonWriter
from gen.constraints.schema.writing.grammar import GrammarWriter, string_terminal
from gen.constraints.schema.writing.writer import LAYOUTS, ROOM, Layout, Place, Writer, types_of

_GRAMMAR_WORK = 5 * MOST_WORK
_DEPTHS = (4, 3, 2)  # how deep values of any type nest at least: the first that the states have room for
_STATES = 40_000  # states before determinising, for more than the last of these


def schema_table(schema: Any, *, closed: bool, whitespace: Whitespace | Layout, ecma: bool = True) -> Table:
    """The JSON texts of a schema's values, in UTF-8, properties in the order of the schema.

    Args:
        schema: a JSON schema as Python values.
        closed: objects have only the properties they list unless `additionalProperties` is written.
        whitespace: as `json.dumps` writes it ("line"), without any ("compact"), indented by two ("indent"), or as the
            model chooses among these three ("model"); or a layout of another form.
        ecma: whether its patterns must mean the same in ECMA 262; False for those of pydantic's schemas.
    Raises:
        Unsupported: an automaton cannot say one of the keywords; the message names it with its path.
        TooLarge: too many states, or too much work.
        Empty: no value meets the schema.
    """
    budget = Budget()
    layouts = [*LAYOUTS.values()] if whitespace == "model" else [_layout(whitespace)]
    writer = AutomatonWriter(schema, closed, layouts[0], budget, ecma)
    for depth in _DEPTHS:
        budget.renew()
        try:
            most = MOST_NODES if depth == _DEPTHS[-1] else _STATES
            start, end = writer.write(schema, depth * ROOM["array"], most, layouts)
            found = table(determinise(writer.nfa, start, end, budget=budget))
            return found._replace(depth=depth if writer.free else None)
        except RecursionError:
            raise TooLarge("a schema nested too deeply") from None
        except Empty:
            raise writer.no_value() from None
        except TooLarge:
            if depth == _DEPTHS[-1] or writer.nfa.states <= _STATES:
                raise
    raise AssertionError("the last depth returns or raises")


def schema_grammar(schema: Any, *, closed: bool, whitespace: Whitespace | Layout, ecma: bool = True) -> str:
    """The same as `schema_table`, in llguidance's Lark; values of any type nest to any depth unless indented."""
    if whitespace == "model":
        raise Unsupported("whitespace='model', since a terminal of one layout begins with one of another")
    writer = GrammarWriter(schema, closed, _layout(whitespace), Budget(_GRAMMAR_WORK), ecma)
    try:
        return writer.grammar(schema, Place("#", _DEPTHS[0] * ROOM["array"], 0))
    except Empty:
        raise writer.no_value() from None
    except RecursionError:
        raise TooLarge("a schema nested too deeply") from None


def _layout(whitespace: Whitespace | Layout) -> Layout:
    return whitespace if isinstance(whitespace, Layout) else LAYOUTS[whitespace]


@lru_cache(1024)
def property_types(schema: str, closed: bool, ecma: bool, name: str) -> frozenset[str]:
    """The types that a property of an object may have.

    Args:
        schema: the JSON schema of the object, as a text.
    """
    root = json.loads(schema)
    writer = AutomatonWriter(root, closed, LAYOUTS["line"], Budget(), ecma)
    found: frozenset[str] = frozenset()
    for part in writer.parts_of((root,), "#"):
        schemas = property_schemas(part, name, writer.patterns, "#", closed=closed)
        if "object" in part.types and schemas is not None:
            found |= types_of(writer.parts_of(schemas, "#"))
    return found


def string_table(schema: Any) -> Table:
    """The strings of a schema as they are, without quotes and escapes, in UTF-8. Raises as `schema_table` does."""
    budget = Budget()
    writer = AutomatonWriter(schema, True, LAYOUTS["line"], budget)
    nfa = writer.nfa
    start, end = nfa.state(), nfa.state()
    for part in _string_parts(writer, schema):
        if (written := writer.string(part, nfa.after(start), "#", ("", ""))) is not None:
            nfa.join(written, end)
    return table(determinise(nfa, start, end, budget=budget))


def string_grammar(schema: Any) -> str:
    """The same as `string_table`, as a grammar of one terminal for llguidance."""
    parts = _string_parts(GrammarWriter(schema, True, LAYOUTS["line"], Budget()), schema)
    return grammar_of(string_terminal(parts))


def _string_parts(writer: Writer, schema: Any) -> list[Part]:
    parts = [part for part in writer.parts_of((schema,), "#") if "string" in part.types]
    if refusal := next((refusal for part in parts if (refusal := part.refusal("string"))), None):
        raise Unsupported(refusal)
    return parts
