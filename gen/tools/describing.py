"""Tools in chats whose template knows none: the system message describes them, plain messages have calls and results.

The form is that of Hermes, which `gen.tool_calls` uses for such templates. Example: a call becomes the assistant's
text `<tool_call>`, a line of JSON, `</tool_call>`, and what the tool returned becomes the user's text between
`<tool_response>` and `</tool_response>`.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

Messages = Sequence[Mapping[str, Any]]

_HOW = """You may call tools to help with what the user asks. These are the tools, each as JSON in a line of its own:
<tools>
{tools}
</tools>
To call a tool, write its name and its arguments as JSON between <tool_call> and </tool_call>, as here:
<tool_call>
{{"name": "the name of the tool", "arguments": {{"the name of an argument": "its value"}}}}
</tool_call>"""


def with_tools_told(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """The conversation with the tools described in its system message, which is added if there is none."""
    return with_system_text(
        messages, _HOW.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    )


def with_system_text(messages: Messages, told: str) -> Messages:
    """The conversation with a text at the end of its system message, which is added if there is none."""
    first = messages[0] if messages else {}
    if first.get("role") != "system":
        return [{"role": "system", "content": told}, *messages]
    return [{**first, "content": f"{_text(first.get('content'))}\n\n{told}".lstrip()}, *messages[1:]]


def in_plain_messages(messages: Messages) -> Messages:
    """The conversation with calls written as texts of the assistant, and tools' results as texts of the user."""
    plain: list[Mapping[str, Any]] = []
    answers: list[str] = []
    for message in [*messages, {}]:
        if message.get("role") == "tool":
            answers.append(f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>")
            continue
        if answers:
            plain.append({"role": "user", "content": "\n".join(answers)})
            answers = []
        if message.get("tool_calls"):
            said = [_text(message.get("content")), *map(_call, message["tool_calls"])]
            plain.append({"role": message["role"], "content": "\n".join(filter(None, said))})
        elif message:
            plain.append(message)
    return plain


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # as in OpenAI's form
        with suppress(ValueError):  # a model has written the text, so it may be no JSON
            arguments = json.loads(arguments)
    written = json.dumps({"name": function["name"], "arguments": arguments or {}}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _text(content: Any) -> str:
    """A content as text: its text parts joined, or JSON if it is no text."""
    if isinstance(content, list | tuple):
        return "".join(_text(part.get("text", part) if isinstance(part, Mapping) else part) for part in content)
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
