"""Tools and tool_choice, as OpenAI's protocols have them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gen.completions import StreamEvent
from gen.errors import ConstraintError, show
from gen.server.errors import refused
from gen.server.output_types import check_size
from gen.tools.calls import tool_calls
from gen.tools.values import ToolCallsType

_ids = Random()  # of identifiers, which are no secrets; asking the system for each one takes a call that gives way


@dataclass(frozen=True)
class Tools:
    """The tools of a request.

    Attributes:
        told: as the chat template takes them.
        type: what the text is held to.
        choice: "auto", "required", "none" or the name of a tool.
    """

    told: Sequence[Mapping[str, Any]]
    type: ToolCallsType
    choice: str

    @property
    def names_one(self) -> bool:
        """Whether it is said which tool is called."""
        return self.choice not in ("auto", "required", "none")


def read_tools(given: Sequence[Any] | None, choice: Any, *, parallel: bool, most_kb: float) -> Tools | None:
    """The tools that a request gives; None where there are none.

    Args:
        given: each {"type": "function", "function": {"name": ..., ...}}, or the function's fields beside the type.
        choice: "auto", "required", "none"; an object that names one; or one of OpenAI's allowed_tools.
        parallel: whether several may be called at once.
        most_kb: how large they may be.
    Raises:
        ApiError: one is no function, or cannot be used.
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
    kind = tool.get("type") if isinstance(tool, Mapping) else None
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
    kind = given.get("type") if isinstance(given, Mapping) else None
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
        id: what the client answers it by.
        arguments: the text of their JSON, or how much of it has come.
    """

    id: str
    name: str
    arguments: str = ""

    @property
    def values(self) -> Any:
        """The arguments as JSON has them; {} where they were cut."""
        try:
            return json.loads(self.arguments or "{}")
        except ValueError:
            return {}


def calls_of(new: StreamEvent, prefix: str = "call_") -> list[Call]:
    """The calls of a whole text."""
    calls: list[Call] = []
    for delta in new.tool_calls:
        if delta.name is not None:
            calls.append(Call(new_id(prefix), delta.name))
        calls[delta.number].arguments += delta.arguments
    return calls


def new_id(prefix: str) -> str:
    """An identifier that no other one is like."""
    return f"{prefix}{_ids.getrandbits(96):024x}"
