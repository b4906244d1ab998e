"""Python types as JSON schemas, through pydantic, which also reads the text: no type has code of its own here.

Some of pydantic's checks are missing in its JSON Schema. They are added here if JSON Schema can say them (keys that are
whole numbers), and refused if it cannot (a duration's bounds), so that a whole text is a value of the type.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from gen.constraints import pydantic_spelling
from gen.constraints.output_types import REFUSED, with_also
from gen.constraints.pydantic_schemas import (
    CONVERTED,
    UNKEYED,
    UNREAD,
    AllRequired,
    PydanticSchemas,
    alone,
    core_schemas,
)
from gen.constraints.schema.references import schemas_in
from gen.errors import ConstraintError, show

FORMATS = frozenset({"date", "date-time", "time", "duration", "uuid", "ipv4", "ipv6"})
"""The formats of which pydantic reads every text that `gen.constraints.schema.writing.formats` allows."""
_BOUNDS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_DIGITS = 18  # of a key that is a whole number
_FEW = 10  # options of which a set has each only once, in any order
_LOOKING_ELSEWHERE = {
    "import_string": "ImportString imports what a text names; take gen.choice of what it may be, and look it up",
    "PathType.": "this path is looked up in the file system as it is read; take pathlib.Path, and look it up",
    "PaymentCardNumber.": "PaymentCardNumber checks a sum of digits; take Annotated[str, Field(pattern=...)]",
    "ByteSize.": "ByteSize reads units; take int",
}
"""Functions of pydantic's that look at more than the text: a model's text must not import a module, say."""


def schema_of(output_type: Any, *, required: Literal["all"] | None = None) -> tuple[dict[str, Any], TypeAdapter[Any]]:
    """A type's JSON schema, and the adapter that reads a text as its value.

    Args:
        required: see `gen.json_schema`.
    Raises:
        ConstraintError: it is no type that pydantic knows, or one that JSON Schema cannot describe.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        schema = adapter.json_schema(schema_generator=AllRequired if required else PydanticSchemas)
    except Exception as error:  # pydantic raises many kinds, and calls methods of the user's
        lines = str(error).splitlines() or [type(error).__name__]
        reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:200].partition(" Set `arbitrary_types")[0]
        raise ConstraintError(f"{show(output_type)} is no output type: {reason}") from error
    if why := _refusal(adapter.core_schema):
        raise ConstraintError(f"{show(output_type)}: {why}.")
    parts = list(schemas_in(schema))
    todo = [part for _, part in parts if part.pop(CONVERTED, False)]
    converted = set[int]()  # the ids of all schemas whose values a function of the user's reads, or what holds them
    while todo:
        new = [one for _, one in schemas_in(todo.pop()) if id(one) not in converted]
        converted.update(map(id, new))
        todo += [resolved(one, schema) for one in new if "$ref" in one]
    for path, part in parts:
        if (unread := part.pop(UNREAD, None)) and id(part) not in converted:
            part[REFUSED] = unread
        if part.get("format") in pydantic_spelling.FORMATS:
            part |= with_also(part, pydantic_spelling.FORMATS[part.pop("format")])
        if "contentMediaType" in part or "contentEncoding" in part:
            part |= alone("text that holds other data")
        elif "format" in part and part["format"] not in FORMATS:
            part |= alone(f"the format {part['format']!r}")
        if REFUSED in part:
            raise ConstraintError(f"{show(output_type)} at {path}: {part[REFUSED]}.")
        _write_keys(output_type, path, part, schema)
        # a set reads equal items as one; only a set that must have several members could get too few
        if part.get("uniqueItems") and part.get("minItems", 0) <= 1:
            options = resolved(part.get("items", {}), schema).get("enum", [None] * (_FEW + 1))
            if len(options) > _FEW:
                del part["uniqueItems"]
    for _, part in parts:
        part.pop(UNKEYED, None)
    return schema, adapter


def reader_of(adapter: TypeAdapter[Any]) -> Callable[[str], Any]:
    """What reads a text of JSON as a value of a type; an Iterable as a list, whose items are read at once, but where a
    model's field is one.
    """
    schema = deepcopy(adapter.core_schema)
    lazy = [one for one in core_schemas(schema) if one["type"] == "generator"]
    for one in lazy:
        one["type"] = "list"
    return SchemaValidator(schema).validate_json if lazy else adapter.validate_json


def resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """A schema without its `$ref`, as pydantic writes them, followed to its end."""
    seen: set[str] = set()
    while (name := schema.get("$ref", "")) and name not in seen:
        seen.add(name)
        schema = root.get("$defs", {}).get(name.removeprefix("#/$defs/"), {})
    return schema


def is_text(schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether all values are strings, so that they need no quotes."""
    schema = resolved(schema, root)
    given = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if given is not None:
        return bool(given) and all(isinstance(value, str) for value in given)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and schema.get("type") != "string":
            return all(isinstance(part, dict) and is_text(part, root) for part in schema[keyword])
    return schema.get("type") == "string"


def _refusal(core_schema: Any) -> str | None:
    """Why a core schema of pydantic's must not read a text; None if it may."""
    for schema in core_schemas(core_schema):
        function = schema.get("function")
        if isinstance(function, dict) and callable(called := function.get("function")):
            name, module = getattr(called, "__qualname__", ""), getattr(called, "__module__", "") or ""
            why = next((why for begin, why in _LOOKING_ELSEWHERE.items() if name.startswith(begin)), None)
            if why and module.partition(".")[0] == "pydantic":
                return why
        if schema.get("type") == "is-instance":
            return (
                f"no JSON is an instance of {getattr(schema['cls'], '__name__', schema['cls'])}; take str, int or float"
            )
    return None


def _write_keys(output_type: Any, path: str, schema: dict[str, Any], root: dict[str, Any]) -> None:
    """Write conditions on keys as conditions on properties, where possible."""
    names = resolved(schema.get("propertyNames", {}), root)
    values = schema.get("additionalProperties", True)
    bounds = names.keys() - {"type", "title", "description"}
    if UNKEYED in names:
        raise ConstraintError(f"{show(output_type)} at {path}: {names[UNKEYED]}.")
    if names.get("type") == "boolean":
        schema["properties"] = {"true": values, "false": values}
    elif names.get("type") == "number" and not bounds:
        schema["patternProperties"] = {pydantic_spelling.NUMBER: values}
    elif names.get("type") == "integer" and not bounds - _BOUNDS.keys():
        said = {"ge": -(10**_DIGITS)} | {_BOUNDS[word]: names[word] for word in bounds}
        schema["patternProperties"] = {pydantic_spelling.decimals(_DIGITS, 0, said): values}
    elif bounds in ({"enum"}, {"const"}):
        schema["properties"] = dict.fromkeys(names.get("enum", [names.get("const")]), values)
    elif {"type": "string"} in names.get("anyOf", ()) and bounds == {"anyOf"}:
        del schema["propertyNames"]
        return
    elif names and not is_text(names, root):
        what = "of several types"
        if isinstance(names.get("type"), str):
            what = f"of type {names['type']}" + (f" with {', '.join(sorted(bounds))}" if bounds else "")
        raise ConstraintError(
            f"{show(output_type)} at {path}: keys {what} are what "
            "pydantic alone can check; take keys of type int or str."
        )
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]
