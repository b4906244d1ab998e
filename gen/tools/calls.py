"""`gen.tool_calls`, the output type for calls of tools."""

from collections.abc import Mapping, Sequence
from typing import Any

from gen.arguments import check_flag
from gen.errors import ConstraintError, show
from gen.tools.reading import ToolLike, read_tools
from gen.tools.values import ToolCallsType

FORMATS = ("hermes", "llama3", "mistral", "gpt-oss")


def tool_calls(
    tools: Sequence[ToolLike],
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
        format: "hermes" (also Qwen's), "llama3", "mistral" or "gpt-oss"; None: the chat template's, or "hermes" if
            the template knows no tools.
        answer: the output type of an answer, for "auto": then the text is either calls, or a text of this type, whose
            value is `ToolCalls.answer`. None for any text.
    Raises:
        ConstraintError: there is no tool, two have the same name, one is of another kind, a parameter of a function has
            no hint, the choice is no tool, or there is an answer with another choice than "auto".
        ArgumentError: parallel is neither True nor False.
    """
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
    return ToolCallsType(tuple(read), choice, parallel, format, answer)


def tools_for_template(tools: object) -> list[Mapping[str, Any]]:
    """Tools as a chat template takes them, in OpenAI's JSON."""
    return [tool.described for tool in read_tools(tools)]
