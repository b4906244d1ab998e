"""The output types that requests ask for: OpenAI's response_format, vLLM's structured_outputs."""

import json
from collections.abc import Mapping
from typing import Any

from gen.constraints.output_types import choice, grammar, json_schema, regex
from gen.errors import ConstraintError, show
from gen.server.errors import refused

_STRUCTURES: Mapping[str, Any] = {"regex": regex, "choice": choice, "grammar": grammar, "json": json_schema}


def type_of_format(given: Mapping[str, Any] | None, field: str, most_kb: float) -> Any:
    """The output type of OpenAI's response_format, or of text.format of its Responses; None for a text.

    Args:
        field: what errors call the field.
        most_kb: how large a schema may be, in KiB.
    Raises:
        ApiError: it has another type, or its schema cannot be used.
    """
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return json_schema({"type": "object"}, closed=False)
    if kind == "json_schema":
        inner = given.get("json_schema", given)
        if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
            raise refused(f"{field} has no schema, got {show(given)}", field)
        check_size(inner["schema"], field, most_kb)
        return _made(json_schema, inner["schema"], field)
    raise refused(f"{field}: the types are text, json_object and json_schema, got {show(kind)}", field)


def type_of_structure(given: Mapping[str, Any] | None, most_kb: float) -> Any:
    """The output type of vLLM's structured_outputs, which has one of regex, choice, grammar, json and json_object; None
    for a text.

    Raises:
        ApiError: it has none of these, several, or something else; or the value cannot be used.
    """
    if given is None:
        return None
    field = "structured_outputs"
    asked = {name: value for name, value in given.items() if value not in (None, False)}
    [(name, value)] = asked.items() if len(asked) == 1 else [("", None)]
    if name == "json_object":
        return json_schema({"type": "object"}, closed=False)
    if name not in _STRUCTURES:
        raise refused(f"{field} takes one of {', '.join(_STRUCTURES)} and json_object, got {show(given)}", field)
    check_size(value, field, most_kb)
    return _made(_STRUCTURES[name], value, field)


def check_size(given: object, field: str, most_kb: float) -> None:
    """Raise an ApiError if a schema, or what is given as one, is too large."""
    size = len(json.dumps(given)) / 1024
    if size > most_kb:
        raise refused(f"{field} has {size:.0f} KiB, and may have {most_kb:g}.", field)


def _made(make: Any, value: Any, field: str) -> Any:
    try:
        return make(value)
    except ConstraintError as error:
        raise refused(f"{field}: {error}", field) from None
