"""Writes messages that call tools, and what tools return, in the form that a chat template takes.

Clients write a call's arguments as a JSON string, and None as the content of its message; programs give `ToolCall`
objects, and arguments of any type that pydantic writes as JSON. Some templates take a string, others take values; some
take no content, others take an empty one. Each of these four forms is tried, and the first one that the template writes
is used.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from gen.errors import ArgumentError, show
from gen.tools.calls import ToolCall

Messages = Sequence[Mapping[str, Any]]


def written_with_tools(messages: Messages, template: str, write: Callable[[Messages], str]) -> str:
    """The text of a conversation that may have calls of tools.

    Args:
        template: the source of the template; it knows calls, or the messages have none.
        write: applies the template to messages; raises ArgumentError if the template refuses them.
    Raises:
        ArgumentError: the template does not know calls or results of tools, or it refuses the messages.
    """
    if not any(map(_calls, messages)):
        return _with_results(messages, template, write)
    number = next(number for number, message in enumerate(messages) if _calls(message))
    names = [call["function"]["name"] for message in messages for call in _calls(message)]
    failed: ArgumentError | None = None
    for given in _forms(messages):
        try:
            text = _with_results(given, template, write)
        except ArgumentError as error:
            failed = failed or error
            continue
        if all(name in text for name in names):
            return text
    raise failed or _unknown(number, "these tool_calls")


def _with_results(messages: Messages, template: str, write: Callable[[Messages], str]) -> str:
    """The text; raises an ArgumentError if the template leaves out a tool's result."""
    results = {n: message.get("content") for n, message in enumerate(messages) if message.get("role") == "tool"}
    known = re.search(r"\b(tool|ipython)\b", template)
    try:
        text = write(messages)
    except ArgumentError as error:
        if results and not known:
            raise _unknown(min(results), "the role tool") from error
        raise
    for number, content in results.items():
        if not known and isinstance(content, str) and content.strip() not in text:
            raise _unknown(number, "the role tool")
    return text


def in_json(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls of tools are mappings of JSON's types, also if they are objects, or have dates and such.

    Raises:
        ArgumentError: a call names no function, or its arguments cannot be written as JSON.
    """
    given, content = message.get("tool_calls") or (), message.get("content")
    calls = [_call_in_json(number, call) for call in (given if isinstance(given, list | tuple) else [given])]
    made = {**message, "tool_calls": calls} if calls else dict(message)
    if message.get("role") == "tool" and content is not None and not isinstance(content, str):
        with suppress(ValueError, TypeError):  # other objects are left to the template
            made["content"] = _in_json(content)
    return made


def _call_in_json(number: int, call: Any) -> dict[str, Any]:
    given = call
    if isinstance(call, ToolCall):
        named = {} if call.id is None else {"id": call.id}
        given = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, **named}
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ArgumentError(
            f"message {number} has a tool call that names no function; write it as "
            f'{{"type": "function", "function": {{"name": "f", "arguments": {{"x": 1}}}}}}, got {show(call)}'
        )
    made = dict(function)
    if not isinstance(made.get("arguments", ""), str):
        try:
            made["arguments"] = _in_json(made["arguments"])
        except Exception as error:  # a model of the user may have serializers of its own
            raise ArgumentError(
                f"message {number} has a call of {show(made['name'])} whose arguments are no JSON: {error}"
            ) from error
    return {**given, "function": made} if "function" in given else made


def _in_json(value: Any) -> Any:
    """A value in JSON's types, as pydantic writes it; of a pydantic model, the fields that were given.

    Raises:
        Exception: it has something that pydantic cannot write.
    """
    from pydantic import BaseModel  # chats without tools do not need it
    from pydantic_core import to_jsonable_python

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return to_jsonable_python(value, fallback=_as_python)


def _as_python(value: Any) -> Any:
    """A mapping of another kind, an array or a number of numpy as Python's own."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ValueError(f"{show(value)} has no form in JSON")


def _calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The calls of a message, each with its function."""
    return [call if "function" in call else {"function": call} for call in message.get("tool_calls") or ()]


def _forms(messages: Messages) -> Iterator[Messages]:
    """The ways to give messages that call tools: with values or texts as arguments, without a content or with ""."""
    for as_text, empty in product((False, True), ({}, {"content": ""})):
        yield [_formed(message, as_text, empty) if _calls(message) else message for message in messages]


def _formed(message: Mapping[str, Any], as_text: bool, empty: Mapping[str, str]) -> dict[str, Any]:
    calls = []
    for call, given in zip(_calls(message), message["tool_calls"], strict=True):
        function = dict(call["function"])
        if "arguments" in function:
            function["arguments"] = (_as_text if as_text else _as_value)(function["arguments"])
        calls.append({**given, "function": function} if "function" in given else function)
    said = {name: value for name, value in message.items() if name != "content" or value}
    return {**empty, **said, "tool_calls": calls}


def _as_value(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:  # a model wrote this, which is no JSON; the template may write it unchanged
        return arguments


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _unknown(number: int, what: str) -> ArgumentError:
    return ArgumentError(
        f"message {number} has {what}, which this model's chat template does not know; load a model whose template has "
        "tools, or write calls and results as texts of the assistant and the user."
    )
