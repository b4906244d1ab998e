"""`gen.tool_calls`, the output type for calls of tools, and the value of such a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gen.arguments import check_flag
from gen.errors import ConstraintError, show

if TYPE_CHECKING:
    from gen.tools.reading import ToolLike


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
    """See `gen.tool_calls`.

    Attributes:
        tools: those that may be called; empty for a text alone.
    """

    tools: tuple[Tool, ...]
    choice: str
    parallel: bool
    format: str | None
    answer: Any = None

    @property
    def optional(self) -> bool:
        """Whether there may be a text without a call, of any type."""
        return self.choice in ("auto", "none") and self.answer is None

    @property
    def most(self) -> int | None:
        """How many calls there may be; None for any number."""
        return None if self.parallel and self.choice in ("auto", "required") else 1


FORMATS = (
    "hermes",
    "llama3",
    "mistral",
    "gpt-oss",
    "qwen3-coder",
    "deepseek",
    "glm",
    "kimi",
    "minimax",
    "pythonic",
)  # gen.tools.forms has a class for each


def tool_calls(
    tools: "Sequence[ToolLike]",
    choice: str = "auto",
    parallel: bool = True,
    format: str | None = None,
    answer: Any = None,
) -> ToolCallsType:
    """Calls of tools, as the model's family writes them; the value is a `ToolCalls`.

    The prompt is not changed: give the tools to the chat template too, as chat_template_kwargs={"tools": tools}.

    Args:
        tools: functions with type hints and docstrings, pydantic models, or OpenAI's JSON, {"type": "function",
            "function": {"name": ..., "description": ..., "parameters": {...}}}.
        choice: "auto": a text, or calls, perhaps after a text; "required": only calls; "none": only a text; or the
            name of a tool, which is called once.
        parallel: whether there may be several calls. Llama 3 and gpt-oss write one.
        format: "hermes" (also Qwen's), "llama3", "mistral", "gpt-oss", "qwen3-coder", "deepseek" (V3 and V3.1), "glm",
            "kimi", "minimax" or "pythonic" (Llama 4, LFM2); None: the chat template's, or "hermes" if the template
            knows no tools.
        answer: the output type of an answer, for "auto": then the text is either calls, or a text of this type, whose
            value is `ToolCalls.answer`. None for any text.
    Raises:
        ConstraintError: there is no tool, two have the same name, one is of another kind, a parameter of a function has
            no hint, the choice is no tool, or there is an answer with another choice than "auto".
        ArgumentError: parallel is neither True nor False.
    """
    from gen.tools.reading import read_tools  # imports pydantic, which calls without tools do not need

    check_flag("parallel", parallel)
    read = read_tools(tools)
    if format is not None and format not in FORMATS:
        raise ConstraintError(f"format must be one of {', '.join(FORMATS)}, or None, got {show(format)}")
    names = [tool.name for tool in read]
    if choice not in ("auto", "required", "none", *names):
        raise ConstraintError(
            f'choice must be "auto", "required", "none" or the name of a tool ({", ".join(names)}), got {show(choice)}'
        )
    if answer is not None and choice != "auto":
        raise ConstraintError(
            f'an answer is for choice="auto", got {show(choice)}; leave it out, or give its type alone where no tool '
            "may be called."
        )
    callable_ = [tool for tool in read if choice in ("auto", "required", tool.name)]
    return ToolCallsType(tuple(callable_), choice, parallel, format, answer)


def tools_for_template(tools: object) -> list[Mapping[str, Any]]:
    """Tools as a chat template takes them, in OpenAI's JSON."""
    from gen.tools.reading import read_tools  # as above

    return [tool.described for tool in read_tools(tools)]
