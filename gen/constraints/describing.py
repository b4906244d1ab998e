"""An output type as a short text for a prompt: names, types, bounds, and what the fields say of themselves.

Example: a class with the fields `name: str = Field(max_length=20, description="in full")` and `happy: bool` becomes

    Answer with JSON of this form:
    {
      "name": string of at most 20 characters (in full),
      "happy": true or false
    }
"""

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from gen.constraints.automata.dfa import FAR, Table, distances
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.composing.trees import Plan
from gen.constraints.constraint import Constraint
from gen.constraints.output_types import Composed
from gen.constraints.plans import read_plan
from gen.constraints.schema import string_table
from gen.constraints.schema.references import References, items_of
from gen.errors import ArgumentError, ConstraintError, show
from gen.tools.calls import ToolCallsType

Form = Literal["schema", "example"]

_SCALARS = {"integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
_FORMATS = {
    "date": ("date", "2024-05-31"),
    "date-time": ("date and time", "2024-05-31T12:00:00Z"),
    "time": ("time", "12:00:00Z"),
    "duration": ("duration", "P1D"),
    "uuid": ("UUID", "00000000-0000-4000-8000-000000000000"),
    "email": ("email address", "ada@example.org"),
    "ipv4": ("IPv4 address", "192.0.2.1"),
    "ipv6": ("IPv6 address", "2001:db8::1"),
}


def describe(output_type: Any, form: Form = "schema") -> str:
    """A short text of an output type, for a prompt: the model then knows the names and bounds that it is held to.

    Args:
        output_type: as for `gen.generate`, but no type that is made of others.
        form: "schema" says of each value what it may be, with bounds and the descriptions of `Field`; "example" shows
            a value of the type, with descriptions in the place of strings, where there are any.
    Raises:
        ArgumentError: there is no such form.
        ConstraintError: it is no output type, or one that has no description.
    """
    if not isinstance(form, str) or form not in ("schema", "example"):
        raise ArgumentError(f'form must be "schema" or "example", got {show(form)}')
    if isinstance(output_type, Composed | ToolCallsType):
        raise _undescribed(output_type)
    plan = output_type.tree if isinstance(output_type, Constraint) else read_plan(output_type)
    if not isinstance(plan, Plan):
        raise _undescribed(output_type)
    key: Any = plan.key  # those of plans are tuples
    kind, given = key[0], key[1:]
    schema: Any = {"choice": {"enum": given}, "regex": {"pattern": given[0]}}.get(kind)
    if kind == "any text":
        without, most = given
        said = f"without {' and '.join(json.dumps(one, ensure_ascii=False) for one in without)}" if without else ""
        schema = {"type": "string", "description": said} | ({} if most is None else {"maxLength": most})
    elif kind in ("json", "text"):
        schema = json.loads(given[0])
    elif schema is None:
        raise _undescribed(output_type)
    writer = _Writer(schema)
    plain = kind != "json"  # the text itself, without quotes
    if form == "example":
        shown, bare = (_Writer(schema, tells=tells).example(schema, ()) for tells in (True, False))
        text = bare if plain and isinstance(bare, str) else json.dumps(bare, ensure_ascii=False)
        if plan.table is not None and (like := _like(text, plan.table)) != text:
            found = like if plain and isinstance(bare, str) else json.loads(like)
            shown = found if kind == "any text" else _told(found, bare, shown)
        shown = shown if plain and isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        length = _length(schema) if plain else ""
        return f"Answer {f'with a text{length}, ' if length else ''}as in this example:\n{shown}"
    shown = writer.said(schema, 0, ())
    if plain and (options := writer.options(schema)) is not None:
        return f"Answer with one of these: {', '.join(options)}"
    if plain:
        own = writer.description(schema)
        return f"Answer with {shown}{f' ({own})' if own else ''}"
    return f"Answer with JSON of this form:\n{shown}"


def _undescribed(output_type: Any) -> ConstraintError:
    return ConstraintError(
        f"{show(output_type)} has no description; say in the prompt what the text is to be. gen.describe takes Python "
        "types, JSON schemas, choices and patterns."
    )


class _Writer:
    """Describes the parts of a schema; `open_` are the references that a part stands in.

    Args:
        tells: whether descriptions stand in examples, in the place of strings.
    """

    def __init__(self, root: Any, *, tells: bool = True) -> None:
        self._references, self._tells = References(root), tells

    def options(self, schema: Any) -> list[Any] | None:
        """The values that a part is limited to; None if it is not."""
        return _options(self._resolved(schema) if "$ref" in schema else schema)

    def said(self, schema: Any, level: int, open_: Sequence[str]) -> str:
        """What a value may be, in words, as it stands at a level; its own description is left to the caller."""
        if not isinstance(schema, dict):
            return "any value"
        schema = self._joined(schema)
        if "$ref" in schema:
            if schema["$ref"] in open_:
                return f"{schema['$ref'].rpartition('/')[2]} again"
            return self.said(_also(self._resolved(schema), schema), level, [*open_, schema["$ref"]])
        if (options := _options(schema)) is not None:
            return " or ".join(dict.fromkeys(json.dumps(one, ensure_ascii=False) for one in options))
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                rest = {word: said for word, said in schema.items() if word != choice}
                branches = [_also(one, rest) for one in schema[choice]]
                return " or ".join(dict.fromkeys(self.said(one, level, open_) for one in branches))
        kind = schema.get("type")
        if isinstance(kind, list):
            return " or ".join(self.said({**schema, "type": one}, level, open_) for one in kind)
        if kind == "object" or "properties" in schema:
            return self._object(schema, level, open_)
        if kind == "array":
            return self._array(schema, level, open_)
        if kind in ("integer", "number"):
            return _SCALARS[kind] + _range(schema)
        if kind == "string" or "pattern" in schema or "format" in schema:
            return _string(schema)
        return _SCALARS.get(str(kind), "any value")

    def _object(self, schema: Any, level: int, open_: Sequence[str]) -> str:
        pad, lines = "  " * (level + 1), []
        properties, required = schema.get("properties", {}), schema.get("required", ())
        for name, part in _properties(schema).items():
            if part is False:
                continue
            said = self.said(part, level + 1, open_)
            notes = [self.description(part), "" if name in required else "may be left out"]
            told = "; ".join(filter(None, notes))
            lines.append(f"{pad}{json.dumps(name, ensure_ascii=False)}: {said}{f' ({told})' if told else ''}")
        patterns = schema.get("patternProperties", {})
        others = [*patterns.values(), schema.get("additionalProperties", not properties and not patterns)]
        values = dict.fromkeys(self.said(one, level + 1, open_) for one in others if one)
        lines += [f"{pad}any name: {' or '.join(values)}"] if values else []
        return "{\n" + ",\n".join(lines) + f"\n{'  ' * level}}}" if lines else "{}"

    def _array(self, schema: Any, level: int, open_: Sequence[str]) -> str:
        listed, rest = items_of(schema)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        places = [self.said(part, level, open_) for part in listed]
        if places:
            places[least:] = [f"{said} (may be left out)" for said in places[least:]]
            more = rest is not False and "items" in schema and (most is None or most > len(places))
            return f"[{', '.join([*places, *[f'{self.said(rest, level, open_)}, ...'] * more])}]"
        return f"list{_between(least or None, most, 'items')} of [{self.said(rest, level, open_)}, ...]"

    def example(self, schema: Any, open_: Sequence[str]) -> Any:
        """A value of a schema, but for what descriptions say in the place of strings."""
        schema, name = (schema, "") if not isinstance(schema, dict) else (schema, schema.get("$ref", ""))
        if name:
            return None if name in open_ else self.example(_as_told(self._resolved(schema), schema), [*open_, name])
        if not isinstance(schema, dict):
            return "..."
        written, schema = schema, self._joined(schema)
        if schema.get("examples"):
            return schema["examples"][0]
        if (options := _options(schema)) is not None:
            return options[0]
        if branches := schema.get("anyOf") or schema.get("oneOf"):
            free = [one for one in branches if not _is_open(one, open_)]
            rest = {word: said for word, said in schema.items() if word not in ("anyOf", "oneOf")}
            return self.example(_as_told(free[0], rest) if free else None, open_)
        kind = schema.get("type", "object" if "properties" in schema else None)
        match kind[0] if isinstance(kind, list) else kind:
            case "object":
                parts = _properties(schema)
                other = next(
                    iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties", True)
                )
                more = range(1, schema.get("minProperties", 0) - len(parts) + 1)
                parts |= {str(number): other for number in more}
                parts = {name: part for name, part in parts.items() if part is not False and not _is_open(part, open_)}
                return {name: self.example(part, open_) for name, part in parts.items()}
            case "array":
                listed, part = items_of(schema)
                places, least = [self.example(one, open_) for one in listed], schema.get("minItems", 0)
                count = max(least, 0 if part is False or _is_open(part, open_) else min(1, schema.get("maxItems", 1)))
                return places or [self.example(part, open_)] * count
            case "integer" | "number":
                return _number(schema)
            case "boolean":
                return True
            case "null":
                return None
        told = self.description(schema) if self._tells else ""
        if told and schema.get("format") not in _FORMATS:
            return told
        other = "https://example.org" if "://" in schema.get("pattern", "") else "..."
        return _like(_FORMATS.get(schema.get("format", ""), ("", other))[1], partial(string_table, written))

    def _joined(self, schema: Any) -> Any:
        """A schema with what the schemas of its `allOf` say."""
        schema = {word: said for word, said in self._references.own(schema).items() if word != "nullable"}
        schema = _with_plain_bounds(schema)
        while parts := schema.get("allOf"):
            schema = {word: said for word, said in schema.items() if word != "allOf"}
            for part in reversed(parts):  # so that properties keep their order
                schema = _also(schema, self._resolved(part) if isinstance(part, dict) and "$ref" in part else part)
        return schema

    def _resolved(self, schema: Any) -> Any:
        """What a reference stands for; any value where it leads out of the schema."""
        try:
            return self._references.resolve(schema, "#")
        except Unsupported:
            return True

    def description(self, schema: Any) -> str:
        """What a field says of itself, or its class."""
        if not isinstance(schema, dict):
            return ""
        own = schema.get("description") or (self.description(self._resolved(schema)) if "$ref" in schema else "")
        return " ".join(own.split())


def _also(schema: Any, asked: Any) -> Any:
    """A schema that says what another one does, too, where it says nothing itself."""
    if not isinstance(schema, dict) or not isinstance(asked, dict):
        return schema
    schema, asked = _with_plain_bounds(schema), _with_plain_bounds(asked)
    made = {**{word: said for word, said in asked.items() if word not in _OF_ITSELF}, **schema}
    for word in schema.keys() & asked.keys() & _TIGHTEST.keys():
        made[word] = _TIGHTEST[word](schema[word], asked[word])
    if "required" in asked:
        made["required"] = [*schema.get("required", ()), *asked["required"]]
    if "properties" in asked:
        made["properties"] = {**asked["properties"], **schema.get("properties", {})}
    return made


def _as_told(schema: Any, asked: Any) -> Any:
    """The same with the description that stands beside a reference, or beside alternatives."""
    told = {"description": asked["description"]} if isinstance(schema, dict) and "description" in asked else {}
    return _also(schema, asked) | told if told else _also(schema, asked)


def _with_plain_bounds(schema: Any) -> Any:
    """A schema whose bounds are numbers: `exclusiveMinimum: true` is draft 4's form."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool):
            said = {exclusive if schema[exclusive] else bound: schema[bound]} if bound in schema else {}
            schema = {word: one for word, one in schema.items() if word not in (bound, exclusive)} | said
    return schema


def _properties(schema: Any) -> dict[str, Any]:
    """The properties of an object by name, with those that it only requires."""
    named = schema.get("properties", {})
    other = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
    return {**named, **{name: other for name in schema.get("required", ()) if name not in named}}


def _is_open(schema: Any, open_: Sequence[str]) -> bool:
    """Whether a schema is a reference that it stands in: it ends where it can be left out."""
    return isinstance(schema, dict) and schema.get("$ref") in open_


def _options(schema: Any) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _string(schema: Any) -> str:
    known, _ = _FORMATS.get(schema.get("format", ""), ("", ""))
    said = f"{known}, as {json.dumps(_FORMATS[schema['format']][1])}" if known else "string"
    return said + _length(schema) + (f" that matches {schema['pattern']}" if "pattern" in schema and not known else "")


def _like(example: str, made: Callable[[], Table]) -> str:
    """A text of an automaton: the one given, or one like it, with what is nearest at each place."""
    try:
        table = made()
    except (Unsupported, TooLarge, Empty):  # the texts are not known
        return example
    text = example.encode()
    if table.accepts(text):
        return example
    distance = np.append(FAR, distances(table.edges, table.final[1:]))
    state, found, at = 1, b"", 0
    while True:
        ways, wanted = distance.take(table.next[state].take(table.classes)), (text[at:] or b".")[0]
        same = at < len(text) and ways[wanted] < FAR
        if not (same or distance[state] or (at < len(text) and (ways < FAR).any())):
            return found.decode()
        nearer = np.flatnonzero(ways < (distance[state] or FAR))
        byte = wanted if same else int(nearer[np.abs(nearer - wanted).argmin()])
        at += same or not distance[state] or wanted not in b'{}[]",'  # these wait for a place where they may stand
        state, found = int(table.next[state, table.classes[byte]]), found + bytes([byte])


def _told(found: Any, bare: Any, told: Any) -> Any:
    """The value of an example that was found to be like a bare one, with the descriptions that another one has."""
    if isinstance(found, dict) and isinstance(bare, dict):
        return {name: _told(one, bare.get(name), told.get(name)) for name, one in found.items()}
    if isinstance(found, list) and isinstance(bare, list):
        return [_told(*three) for three in zip_longest(found, bare[: len(found)], told[: len(found)])]
    return told if isinstance(found, str) and isinstance(told, str) and told != bare else found


def _length(schema: Any) -> str:
    return _between(schema.get("minLength"), schema.get("maxLength"), "characters")


def _between(least: int | None, most: int | None, what: str) -> str:
    if least is not None and most is not None:
        return f" of {least} {what}" if least == most else f" of {least} to {most} {what}"
    if least is None and most is None:
        return ""
    return f" of at least {least} {what}" if most is None else f" of at most {most} {what}"


_OF_ITSELF = frozenset(["$ref", "$defs", "definitions", "default", "description", "examples", "title"])
_TIGHTEST: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
}
_HUGE = Fraction(2**53)  # larger bounds say what a float holds
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _range(schema: Any) -> str:
    said = [f"{words} {schema[name]}" for name, words in _BOUNDS.items() if abs(schema.get(name, _HUGE)) < _HUGE]
    said += [f"a multiple of {schema['multipleOf']}"] if "multipleOf" in schema else []
    return f", {' and '.join(said)}" if said else ""


def _number(schema: Any) -> int | float:
    """The number of a range that is nearest to 1, or to the step between numbers; where no whole one is in it, the one
    in the middle."""
    words = (*_BOUNDS, "multipleOf")
    said = {word: Fraction(str(schema[word])) for word in words if word in schema}
    step = said.get("multipleOf", Fraction(1))
    least, above = said.get("minimum", -_HUGE), said.get("exclusiveMinimum", -_HUGE)
    most, below = said.get("maximum", _HUGE), said.get("exclusiveMaximum", _HUGE)
    low = max(-(-least // step), above // step + 1) * step
    high = min(most // step, -(-below // step) - 1) * step
    found = (max(least, above) + min(most, below)) / 2 if low > high else min(max(step, low), high)
    return int(found) if found == int(found) else float(found)
