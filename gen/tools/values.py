"""What a text with calls of tools stands for, and what was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: what it is called by.
        described: OpenAI's JSON of it.
        arguments: the output type of its arguments.
    """

    name: str
    described: Mapping[str, Any]
    arguments: Any


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        name: the tool's.
        arguments: of a pydantic model an instance; else a dict, which meets the function's hints or the schema.
        id: where the form writes one, else None.
    """

    name: str
    arguments: Any
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolCalls:
    """The value of a text of `gen.tool_calls`: what it says to its reader, and the tools that it calls.

    Attributes:
        text: without white space around it; "" where there is none.
        calls: in the order of the text.
        answer: the value of the answer, where one was asked for and no tool is called; then there is no text.
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
