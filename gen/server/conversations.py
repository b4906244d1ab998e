"""Checks conversations in the form of OpenAI's protocols, and turns them into what `gen.generate` takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gen.errors import show
from gen.requests.images import read_image
from gen.server.bodies import kind_of
from gen.server.errors import refused

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_KEPT = ("name", "tool_calls", "tool_call_id", "reasoning_content")


def read_messages(given: Sequence[Any], *, field: str = "messages") -> list[dict[str, Any]]:
    """The messages of chat completions, checked.

    Raises:
        ApiError: there is no message, or one has no role or content, or a part that no model of gen reads.
    """
    if not given:
        raise refused(f"{field}: give at least one message.", field)
    return [_message(message, f"{field}[{number}]", field) for number, message in enumerate(given)]


def _message(message: Any, name: str, field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise refused(f"{name} must be an object with a role and a content, got {show(message)}", field)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise refused(f"{name}: the role must be one of {', '.join(_ROLES)}, got {show(role)}", field)
    if content is None and role == "assistant":
        content = message.get("refusal") or ""
    if isinstance(content, list):
        content = [_part(part, f"{name}.content[{place}]", field) for place, part in enumerate(content)]
    elif not isinstance(content, str):
        raise refused(f"{name}: the content must be a text or a list of parts, got {show(content)}", field)
    kept = {key: message[key] for key in _KEPT if message.get(key)}
    if isinstance(message.get("reasoning"), str):  # some clients use this name
        kept.setdefault("reasoning_content", message["reasoning"])
    return {"role": "system" if role == "developer" else role, "content": content, **kept}


def _part(part: Any, name: str, field: str) -> dict[str, Any]:
    kind = kind_of(part)
    if kind in _TEXTS:
        text = part.get(_TEXTS[kind])
        if not isinstance(text, str):
            raise refused(f"{name} has no text, got {show(part)}", field)
        return {"type": "text", "text": text}
    if kind in ("image_url", "input_image"):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        if not isinstance(url, str) or not url.startswith("data:"):
            raise refused(
                f"{name}: an image must be a data: URL; this server fetches nothing, and reads no files.", field
            )
        return {"type": "image_url", "image_url": {"url": url}}
    raise refused(f"{name}: parts of the type {show(kind)} are not supported.", field)


def with_pictures(messages: Sequence[Mapping[str, Any]], most_pixels: int) -> list[dict[str, Any]]:
    """The messages with their images read.

    Args:
        most_pixels: how many pixels an image may have.
    Raises:
        ArgumentError: an image cannot be read, or has more pixels.
    """

    def picture(part: Any) -> Any:
        if part["type"] != "image_url":
            return part
        url = part["image_url"]["url"]
        return {"type": "image", "image": read_image(url, "the image", local_files=False, most_pixels=most_pixels)}

    return [
        {**one, "content": [*map(picture, one["content"])]} if isinstance(one["content"], list) else {**one}
        for one in messages
    ]


def turn_of(messages: Sequence[Mapping[str, Any]], begin: bool, go_on: bool) -> dict[str, Any]:
    """The arguments of the chat template that say how a conversation continues.

    Args:
        begin: whether the assistant begins a new turn.
        go_on: whether the assistant continues the last message.
    Raises:
        ApiError: both are true.
    """
    if begin and go_on:
        raise refused(
            "continue_final_message continues the last message, add_generation_prompt begins a new one; set one of "
            "them to false.",
            "continue_final_message",
        )
    usual = messages[-1]["role"] != "assistant"
    if (begin, go_on) == (usual, not usual):  # what gen does by itself
        return {}
    return {"add_generation_prompt": begin, "continue_final_message": go_on}
