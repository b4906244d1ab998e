"""Conversations in the form of OpenAI's protocols: checks them, and turns them into what `gen.generate` takes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gen.errors import show
from gen.models.base import Model
from gen.server.bodies import Known, kind_of
from gen.server.errors import refused
from gen.server.output_types import Tools
from gen.server.sampling import SamplingFields
from gen.server.served import Asked
from gen.tokens.thoughts import Thinking, marks_of
from gen.tokens.tokenizers import Tokenizer

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_KEPT = ("name", "tool_calls", "tool_call_id", "reasoning_content")
PARTS: Known = {**dict.fromkeys(("type", "text", "refusal")), "image_url": {"url": None}}
"""What is read of the parts of a message."""
MESSAGES: Known = {**dict.fromkeys(("role", "reasoning", "refusal", "prefix", *_KEPT)), "content": PARTS}


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
    if message.get("function_call"):
        raise refused(f"{name}: function_call is not supported; give tool_calls.", field)
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


def turn_of(messages: Sequence[Mapping[str, Any]], begin: bool, go_on: bool) -> dict[str, Any]:
    """The arguments of the chat template that say how a conversation continues.

    Args:
        begin: whether the assistant begins a new turn.
        go_on: whether the assistant continues the last message.
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


def asked_of_chat(
    model: Model,
    body: SamplingFields,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Tools | None,
    output_type: Any,
    template: Mapping[str, Any],
    thinks: Thinking = None,
    n: int = 1,
    top_logprobs: int | None = None,
) -> Asked:
    """What a conversation asks of the engine.

    Args:
        output_type: the output type of the answer if no tool is called; None for a text.
        template: further arguments of the chat template.
        thinks: how much the model thinks, see `gen.generate`.
    """
    arguments = body.arguments(model) | {"top_logprobs": top_logprobs}
    given = dict(template)
    if tools is not None:
        given["tools"] = tools.told
        if output_type is None or tools.choice not in ("auto", "none"):
            output_type = tools.type
        elif tools.choice == "auto":
            output_type = replace(tools.type, answer=output_type)
    arguments["thinking"] = thinking_by_template(model.tokenizer, given, thinks)
    arguments["chat_template_kwargs"] = given or None
    return Asked(
        prompts=[messages],
        sampler=body.sampler(model),
        output_type=output_type,
        n=n,
        seed=body.seed_of_gen,
        cap=body.cap,
        arguments=arguments,
    )


def clients_template(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of the chat template that a client gives.

    Raises:
        ApiError: one of them is the template itself, or an argument for which requests have a field.
    """
    for name in ("chat_template", "tools", "add_generation_prompt", "continue_final_message"):
        if given is not None and name in given:
            raise refused(f"chat_template_kwargs cannot have {name}.", "chat_template_kwargs")
    return dict(given or {})


_EFFORTS: dict[str, Thinking] = {"none": False, "minimal": 256, "low": 1024, "medium": 4096}
_EFFORTS |= dict.fromkeys(("high", "xhigh", "max"), True)
"""The most tokens of a thought, for the efforts of OpenAI's protocols; True leaves it at the default."""


def thinking(tokenizer: Tokenizer, effort: str | None, field: str) -> tuple[dict[str, Any], Thinking]:
    """The arguments of the chat template that say how much the model thinks, and the same for `gen.generate`.

    Args:
        effort: as in OpenAI's protocols, "none" for no thought; None if the request says nothing.
        field: what errors call the field.
    """
    if effort is None:
        return {}, None
    template = tokenizer.template_for_tools
    if re.search(r"\breasoning_effort\b", template) and effort != "none":
        return {"reasoning_effort": effort}, None
    if marks_of(template) is None and re.search(r"\benable_thinking\b", template):
        return {"enable_thinking": effort != "none"}, None
    if effort != "none" and marks_of(template) is None:
        raise refused(f"{field}: this model's chat template marks no thoughts; leave it out.", field)
    if effort not in _EFFORTS:
        raise refused(f"{field}: the efforts are {', '.join(_EFFORTS)}, got {show(effort)}", field)
    return {}, _EFFORTS[effort]


def thinking_by_template(tokenizer: Tokenizer, given: dict[str, Any], asked: Thinking) -> Thinking:
    """How much the model thinks, if a client says so with the template's argument enable_thinking; it is taken out of
    the arguments where the template has none of this name."""
    on = given.get("enable_thinking")
    if not isinstance(on, bool):
        return asked
    if not re.search(r"\benable_thinking\b", tokenizer.template_for_tools):
        del given["enable_thinking"]
        asked = asked or (True if on else None)
    return False if not on else asked
