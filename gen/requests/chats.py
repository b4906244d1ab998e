"""Conversations as a chat template takes them: some templates write texts, some read lists of parts, some do both.

Example: a template with `'<user>' + message['content']` is given "Hi" instead of [{"type": "text", "text": "Hi"}].
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gen.errors import ArgumentError, show
from gen.requests.tool_messages import in_json, written_with_tools
from gen.tokens.tokenizers import Message, Tokenizer
from gen.tools.calls import tools_for_template
from gen.tools.describing import in_plain_messages, with_tools_told

_TRACE = "gen.part.of.message.{}."  # a key that no template reads: the text has it only if a whole part is printed
_ASKERS = ("system", "developer", "user")  # not the assistant: templates may leave out its thoughts
_SPEAKERS = (*_ASKERS, "assistant")  # not tools: their content may be anything


def chat_text(
    tokenizer: Tokenizer, messages: Sequence[Message], template_kwargs: Mapping[str, object] | None = None
) -> str:
    """Like `Tokenizer.chat_text`; if a content is a list of parts and the template writes texts, the parts are joined.

    If the template writes a text only as part of a list, the text is given as a list of one part. Tools are given in
    the form that the template takes; a template that knows no tools is given plain messages.

    Raises:
        ArgumentError: as for `Tokenizer.chat_text`; or a message has no role or content, or the template does not take
            a part.
    """
    given: Sequence[Mapping[str, Any]] = [_checked(number, message) for number, message in enumerate(messages)]
    kwargs = dict(template_kwargs or {})
    tools = kwargs.get("tools") or None
    if tools is None and not any(message.get("tool_calls") or message["role"] == "tool" for message in given):
        return _chat_text(tokenizer, given, template_kwargs)
    if tools is not None:
        kwargs["tools"] = told = tools_for_template(tools)
    template = tokenizer.chat_template(kwargs)
    calls = tools is not None or any(message.get("tool_calls") for message in given)
    if calls and not re.search(r"\btool_calls\b", template):  # results without calls are left to the template
        given = in_plain_messages(given)
    if tools is not None and not re.search(r"\btools\b", template):
        given = with_tools_told(given, told)
        del kwargs["tools"]
    return written_with_tools(given, template, lambda formed: _chat_text(tokenizer, formed, kwargs))


def _chat_text(
    tokenizer: Tokenizer, given: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, object] | None
) -> str:
    """Like `chat_text`, for checked messages."""
    lists = [number for number, message in enumerate(given) if _has_parts(message)]
    try:
        text = tokenizer.chat_text(_traced(given, lists), template_kwargs)
    except ArgumentError:
        if not lists:
            raise
        texts = [number for number in lists if all(map(_is_text, given[number]["content"]))]
        if texts:  # without these lists the template may take the others, such as lists with images
            return _chat_text(tokenizer, _joined(given, texts), template_kwargs)
        tokenizer.chat_text(_joined(given, lists), template_kwargs)  # raises if the lists are not the reason
        raise _untaken(lists[0], given[lists[0]], "takes texts alone") from None
    for number in (printed := [number for number in lists if _TRACE.format(number) in text]):
        if not all(map(_is_text, given[number]["content"])):
            raise _untaken(number, given[number], "takes texts alone")
    if printed:
        return _chat_text(tokenizer, _joined(given, printed), template_kwargs)
    _refuse_dropped(tokenizer, given, lists, text, template_kwargs)
    return _with_lost_texts(tokenizer, given, text, template_kwargs)


def _checked(number: int, message: Message) -> dict[str, Any]:
    """Check that a message has a role and a content; returns it with a type in each part of the content."""
    message = in_json(number, message)
    role, content = message.get("role"), message.get("content")
    said = isinstance(content, str) or role not in (_SPEAKERS if content is not None else _ASKERS)
    if isinstance(role, str) and isinstance(content, list | tuple) and _has_parts(message):
        named = [_checked_part(f"message {number}, part {place}", part) for place, part in enumerate(content)]
        return {**message, "content": named or ""}
    if isinstance(role, str) and said:
        return message
    raise ArgumentError(
        f'message {number} must have a role and a content, as {{"role": "user", "content": "Hi"}}, got {show(message)}'
    )


def _has_parts(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list | tuple) and (message["role"] in _SPEAKERS or all(map(_is_text, content)))


def _checked_part(name: str, part: object) -> Mapping[str, Any]:
    if isinstance(part, Mapping) and "type" not in part and "text" in part:
        part = {"type": "text", **part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str) or (kind == "text" and not _is_text(part)):
        raise ArgumentError(f'{name} must be as {{"type": "text", "text": "Hi"}}, got {show(part)}')
    return part


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def _traced(messages: Sequence[Mapping[str, Any]], lists: Sequence[int]) -> list[Mapping[str, Any]]:
    """The messages with a key added to each part: the text shows it if the template prints the whole part."""
    traced = list(messages)
    for number in lists:
        parts = [{_TRACE.format(number): 0, **part} for part in messages[number]["content"]]
        traced[number] = {**messages[number], "content": parts}
    return traced


def _joined(messages: Sequence[Mapping[str, Any]], lists: Sequence[int]) -> list[Mapping[str, Any]]:
    """The messages with texts instead of lists of texts."""
    joined = list(messages)
    for number in lists:
        texts = [part["text"] for part in messages[number]["content"] if _is_text(part)]
        joined[number] = {**messages[number], "content": "".join(texts)}
    return joined


def _untaken(number: int, message: Mapping[str, Any], why: str, place: int | None = None) -> ArgumentError:
    """The error for a part that a template does not take: the part at `place`, or the first that is no text."""
    parts = message["content"]
    if place is None:
        place = next(place for place, part in enumerate(parts) if not _is_text(part))
    return ArgumentError(
        f"message {number}, part {place} is {show(parts[place])}; this model's chat template {why}. Leave the part "
        "out, or load a model that takes it."
    )


def _refuse_dropped(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    lists: Sequence[int],
    text: str,
    template_kwargs: Mapping[str, object] | None,
) -> None:
    """Raise an ArgumentError for a part that the template silently leaves out, because it does not know the type."""
    template = tokenizer.chat_template(template_kwargs)
    for number in lists:
        parts = messages[number]["content"]
        for place, part in enumerate(parts):
            if _is_text(part) or re.search(rf"\b{re.escape(part['type'])}\b", template):
                continue
            less: list[Mapping[str, Any]] = list(messages)
            less[number] = {**messages[number], "content": [*parts[:place], *parts[place + 1 :]]}
            if tokenizer.chat_text(less, template_kwargs) == text:
                raise _untaken(number, messages[number], f"knows no type {part['type']!r}", place)


def _with_lost_texts(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    text: str,
    template_kwargs: Mapping[str, object] | None,
) -> str:
    """The text; if the template leaves out contents that are strings, the text with lists of one part instead."""
    contents = {n: message.get("content") for n, message in enumerate(messages) if message["role"] in _ASKERS}
    lost = {n: said.strip() for n, said in contents.items() if isinstance(said, str) and said.strip() not in text}
    if not lost:
        return text
    listed: list[Mapping[str, Any]] = list(messages)
    for number in lost:
        listed[number] = {**messages[number], "content": [{"type": "text", "text": contents[number]}]}
    try:
        other = tokenizer.chat_text(_traced(listed, [*lost]), template_kwargs)
    except ArgumentError:
        return text
    written = all(said in other and _TRACE.format(number) not in other for number, said in lost.items())
    return other if written else text
