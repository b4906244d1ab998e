"""Output types that requests ask for: OpenAI's response_format, tools and tool_choice, vLLM's structured_outputs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gen.constraints.output_types import choice, grammar, json_schema, regex
from gen.errors import ConstraintError, show
from gen.server.bodies import Known, kind_of
from gen.server.errors import refused
from gen.tools.calls import ToolCallsType, tool_calls

_SCHEMA = dict.fromkeys(("name", "schema", "strict"))  # a strict one or not: a value always meets it
_FUNCTION = dict.fromkeys(("name", "description", "parameters", "strict"))
FORMAT: Known = {"type": None, "json_schema": _SCHEMA, **_SCHEMA}
TOOLS: Known = {"type": None, "function": _FUNCTION, **_FUNCTION}
_NAMED: Known = {"type": None, "name": None, "function": {"name": None}}
_ALLOWED: Known = {"mode": None, "tools": _NAMED}
CHOICE: Known = {**_NAMED, **_ALLOWED, "allowed_tools": _ALLOWED}
"""What is read of formats, tools and choices of tools in OpenAI's form."""
_STRUCTURES: Mapping[str, Any] = {"regex": regex, "choice": choice, "grammar": grammar, "json": json_schema}


def type_of_format(given: Mapping[str, Any] | None, field: str, most_kb: float) -> Any:
    """The output type of OpenAI's response_format, or of text.format of its Responses; None for a text.

    Args:
        field: what errors call the field.
        most_kb: how large a schema may be, in KiB.
    """
    if given is None:
        return None
    kind, inner = given.get("type"), given.get("json_schema") or given
    has_schema = not isinstance(inner, Mapping) or inner.get("schema") is not None
    if kind == "text" and has_schema:
        raise refused(f"{field} has the type text and a schema; give the type json_schema.", field)
    if kind == "text":
        return None
    if kind == "json_object" and not has_schema:
        return json_schema({"type": "object"}, closed=False)
    if kind in ("json_schema", "json_object"):  # llama.cpp's json_object may have a schema, too
        if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
            raise refused(f"{field} has no schema, got {show(given)}", field)
        check_size(inner["schema"], field, most_kb)
        return _made(json_schema, inner["schema"], field)
    raise refused(f"{field}: the types are text, json_object and json_schema, got {show(kind)}", field)


def type_of_structure(given: Mapping[str, Any], most_kb: float) -> Any:
    """The output type of vLLM's structured_outputs, which has one of regex, choice, grammar, json and json_object."""
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


_ids = Random()  # for identifiers, which are no secrets; asking the system for each would let other threads go first


@dataclass(frozen=True)
class Tools:
    """The tools of a request.

    Attributes:
        told: the tools as the chat template takes them.
        type: the output type of the text.
        choice: "auto", "required", "none" or the name of a tool.
    """

    told: Sequence[Mapping[str, Any]]
    type: ToolCallsType
    choice: str


WORDS = ("auto", "required", "none")  # what a tool_choice may be besides a name


def read_tools(given: Sequence[Any] | None, choice: Any, *, parallel: bool, most_kb: float) -> Tools | None:
    """The tools that a request gives; None if there are none.

    Args:
        given: each {"type": "function", "function": {"name": ..., ...}}, or with the function's fields beside "type".
        choice: "auto", "required", "none"; an object that names a tool; or OpenAI's object of type "allowed_tools".
        parallel: whether several tools may be called at once.
        most_kb: how large the tools may be together, in KiB.
    """
    told = [_tool(tool) for tool in given or ()]
    check_size(told, "tools", most_kb)
    name, allowed = _choice(choice)
    if not told:
        if name not in (None, "auto", "none"):
            raise refused(f"tool_choice is {show(choice)}, and there are no tools.", "tool_choice")
        return None
    names = [_tool_name(tool) for tool in told]
    callable_ = [tool for tool, its in zip(told, names, strict=True) if allowed is None or its in allowed]
    if unknown := (allowed or set()) - {*names}:
        raise refused(f"tool_choice allows {show(min(unknown))}, which is none of the tools.", "tool_choice")
    if name in WORDS and not isinstance(choice, str) and allowed is None:
        raise refused(f"tool_choice names the function {name!r}; this server takes that for a word.", "tool_choice")
    try:
        return Tools(told, tool_calls(callable_, choice=name or "auto", parallel=parallel), name or "auto")
    except ConstraintError as error:
        field = "tool_choice" if str(error).startswith("choice ") else "tools"
        raise refused(f"{field}: {error}", field) from None


def _tool(tool: Any) -> dict[str, Any]:
    kind = kind_of(tool)
    if kind != "function":
        raise refused(f"tools of the type {show(kind)} are not supported; give functions.", "tools")
    function = tool.get("function") or tool
    if not isinstance(function, Mapping):
        raise refused(f"a tool's function must be an object, got {show(function)}", "tools")
    kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
    return {"type": "function", "function": kept}


def _choice(given: Any) -> tuple[str | None, set[str] | None]:
    """The choice as `gen.tool_calls` takes it, and the names of the tools that may be called; None for all."""
    if given is None or isinstance(given, str):
        return given, None
    kind = kind_of(given)
    inner = (given.get(kind) or given) if kind else None
    if kind == "function" and isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
        return inner["name"], None
    if kind == "allowed_tools" and isinstance(inner, Mapping) and isinstance(inner.get("tools"), list):
        return inner.get("mode"), {_tool_name(tool) for tool in inner["tools"]}
    raise refused(f"tool_choice must be auto, none, required or name a function, got {show(given)}", "tool_choice")


def _tool_name(tool: Any) -> str:
    found = (tool.get("function") or tool) if isinstance(tool, Mapping) else {}
    return str(found.get("name")) if isinstance(found, Mapping) else ""


def new_id(prefix: str) -> str:
    """A new identifier."""
    return f"{prefix}{_ids.getrandbits(96):024x}"
