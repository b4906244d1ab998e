"""The value of a text with calls of tools, and the type that asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: the name by which a text calls it.
        described: its description in OpenAI's JSON.
        arguments: the output type of its arguments.
    """

    name: str
    described: Mapping[str, Any]
    arguments: Any


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        name: the tool's name.
        arguments: an instance if the tool is a pydantic model; else a dict, which fits the function's hints or schema.
        id: the call's id if the form writes one, else None.
    """

    name: str
    arguments: Any
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolCalls:
    """The value of a text of `gen.tool_calls`: its words for the reader, and its calls of tools.

    Attributes:
        text: the words, without white space around them; "" if there are none.
        calls: the calls, in the order of the text.
        answer: the value of the answer, if one was asked for and no tool is called; `text` is then "".
    """

    text: str
    calls: Sequence[ToolCall]
    answer: Any = None


@dataclass(frozen=True)
class ToolCallsType:
    """See `gen.tool_calls`."""

    tools: tuple[Tool, ...]
    choice: str
    parallel: bool
    format: str | None
    answer: Any = None
