"""Tools and tool_choice, in the form of OpenAI's protocols."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gen.completions import StreamEvent
from gen.errors import ConstraintError, show
from gen.server.bodies import kind_of
from gen.server.errors import refused
from gen.server.output_types import check_size
from gen.tools.calls import ToolCallsType, tool_calls

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

    @property
    def names_one(self) -> bool:
        """Whether the choice is the name of a tool."""
        return self.choice not in ("auto", "required", "none")


def read_tools(given: Sequence[Any] | None, choice: Any, *, parallel: bool, most_kb: float) -> Tools | None:
    """The tools that a request gives; None if there are none.

    Args:
        given: each {"type": "function", "function": {"name": ..., ...}}, or with the function's fields beside "type".
        choice: "auto", "required", "none"; an object that names a tool; or OpenAI's object of type "allowed_tools".
        parallel: whether several tools may be called at once.
        most_kb: how large the tools may be together, in KiB.
    Raises:
        ApiError: a tool is no function, or cannot be used.
    """
    told = [_tool(tool) for tool in given or ()]
    check_size(told, "tools", most_kb)
    name, allowed = _choice(choice)
    if not told:
        if name not in (None, "auto", "none"):
            raise refused(f"tool_choice is {show(choice)}, and there are no tools.", "tool_choice")
        return None
    callable_ = [tool for tool in told if allowed is None or tool["function"]["name"] in allowed]
    try:
        return Tools(told, tool_calls(callable_, choice=name or "auto", parallel=parallel), name or "auto")
    except ConstraintError as error:
        field = "tool_choice" if str(error).startswith("choice ") else "tools"
        raise refused(f"{field}: {error}", field) from None


def _tool(tool: Any) -> dict[str, Any]:
    kind = kind_of(tool)
    if kind != "function":
        raise refused(f"tools of the type {show(kind)} are not supported; give functions.", "tools")
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        raise refused(f"a tool's function must be an object, got {show(function)}", "tools")
    kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
    return {"type": "function", "function": kept}


def _choice(given: Any) -> tuple[str | None, set[str] | None]:
    """The choice as `gen.tool_calls` takes it, and the names of the tools that may be called; None for all."""
    if given is None or isinstance(given, str):
        return given, None
    kind = kind_of(given)
    inner = given.get(kind, given) if kind else None
    if kind == "function" and isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
        return inner["name"], None
    if kind == "allowed_tools" and isinstance(inner, Mapping) and isinstance(inner.get("tools"), list):
        return inner.get("mode"), {_tool_name(tool) for tool in inner["tools"]}
    raise refused(f"tool_choice must be auto, none, required or name a function, got {show(given)}", "tool_choice")


def _tool_name(tool: Any) -> str:
    found = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return str(found.get("name")) if isinstance(found, Mapping) else ""


@dataclass
class Call:
    """A call that a text makes.

    Attributes:
        id: the client's result refers to it.
        arguments: their JSON, as far as it has come.
    """

    id: str
    name: str
    arguments: str = ""

    @property
    def values(self) -> Any:
        """The values of the arguments' JSON; {} if the JSON was cut off."""
        try:
            return json.loads(self.arguments or "{}")
        except ValueError:
            return {}


def calls_of(new: StreamEvent, prefix: str = "call_") -> list[Call]:
    """The calls of a whole text."""
    calls: list[Call] = []
    for delta in new.tool_calls:
        if delta.name is not None:
            calls.append(Call(delta.id or new_id(prefix), delta.name))
        calls[delta.number].arguments += delta.arguments
    return calls


def new_id(prefix: str) -> str:
    """A new identifier."""
    return f"{prefix}{_ids.getrandbits(96):024x}"
