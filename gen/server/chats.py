"""Turns a conversation and its tools into what `gen.generate` takes: the part that the chat protocols share."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gen.models.base import Model
from gen.server.errors import refused
from gen.server.sampling import SamplingFields
from gen.server.served import Asked
from gen.server.tools import Tools
from gen.tokens.thoughts import Thinking, marks_of
from gen.tokens.tokenizers import Tokenizer


def asked_of_chat(
    model: Model,
    body: SamplingFields,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Tools | None,
    output_type: Any,
    template: Mapping[str, Any],
    thinks: Thinking = None,
    cap: int | None,
    n: int = 1,
    top_logprobs: int | None = None,
) -> Asked:
    """What a conversation asks of the engine.

    Args:
        output_type: the output type of the answer if no tool is called; None for a text.
        template: further arguments of the chat template.
        thinks: how much the model thinks, see `gen.generate`.
        cap: how many tokens the thought and the answer may have.
    Raises:
        ApiError, ArgumentError: a field cannot be used, or two fields contradict each other.
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
        cap=cap,
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


_EFFORTS = {"none": False, "minimal": 256, "low": 1024, "medium": 4096}
"""The most tokens of a thought, for the efforts of OpenAI's protocols; others leave it at the default."""


def thinking(tokenizer: Tokenizer, effort: str | None, field: str) -> tuple[dict[str, Any], Thinking]:
    """The arguments of the chat template that say how much the model thinks, and the same for `gen.generate`.

    Args:
        effort: as in OpenAI's protocols, "none" for no thought; None if the request says nothing.
        field: what errors call the field.
    Raises:
        ApiError: the template marks no thoughts.
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
    return {}, _EFFORTS.get(effort, True)


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
