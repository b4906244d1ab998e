"""`/v1/responses`, OpenAI's, without a store: each request contains the whole conversation."""

import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gen.errors import show
from gen.server.bodies import Body
from gen.server.conversations import asked_of_chat, clients_template, read_messages, thinking
from gen.server.errors import refused
from gen.server.output_types import new_id, read_tools, type_of_format
from gen.server.protocols.response_writer import ResponseWriter
from gen.server.sampling import NOT_SUPPORTED, SamplingFields
from gen.server.served import Served
from gen.server.writing import Asking

_NO_STORE = "this server stores nothing; give the whole conversation as input."
_STORED = {"previous_response_id": _NO_STORE, "conversation": _NO_STORE, "prompt": "this server stores no prompts."}


class TextOptions(Body):
    """The format of the text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Body):
    """How much the model thinks."""

    effort: str | None = None
    summary: Any = None


class ResponsesBody(SamplingFields):
    """The fields of a request."""

    refused: ClassVar[Mapping[str, object]] = {
        **NOT_SUPPORTED,
        "background": False,
        "n": 1,
        "structured_outputs": None,
        "response_format": None,
    }

    input: str | list[Any] = ""
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=0)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    # known fields that mean nothing for one model on one machine
    max_tool_calls: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    stream_options: Any = None
    user: Any = None

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`; a conversation that does not fit is refused, and nothing of it is left out."""
        return super().ignored + (["truncation"] if self.truncation == "auto" else [])


def respond(served: Served, body: ResponsesBody) -> Asking:
    """What a conversation asks for."""
    name = served.name_of(body.model)
    for field, why in _STORED.items():
        if getattr(body, field) is not None:
            raise refused(f"{field}: {why}", field)
    most_kb = served.settings.max_schema_kb
    template = clients_template(body.chat_template_kwargs)
    effort = None if body.reasoning is None else body.reasoning.effort
    with_logprobs = body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())
    messages = read_input(body.input, body.instructions)
    if messages[-1]["role"] == "assistant":  # an answer is a new message
        template |= {"add_generation_prompt": True, "continue_final_message": False}
    thoughts, thinks = thinking(served.model.tokenizer, effort, "reasoning")
    asked = asked_of_chat(
        served.model,
        body,
        messages,
        tools=read_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, most_kb=most_kb),
        output_type=None if body.text is None else type_of_format(body.text.format, "text.format", most_kb),
        template=thoughts | template,
        thinks=thinks,
        cap=body.max_output_tokens,
        top_logprobs=(body.top_logprobs or 0) if with_logprobs else None,
    )
    writer = ResponseWriter(served.model.tokenizer, _head(body, name), with_logprobs=with_logprobs)
    return Asking(asked, lambda _: writer, body.stream)


def _head(body: ResponsesBody, name: str) -> dict[str, Any]:
    """The fields of a response that depend on the request alone."""
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "model": name,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "background": False,
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": (body.text and body.text.format) or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def read_input(given: str | list[Any], instructions: str | None) -> list[dict[str, Any]]:
    """The messages of a request."""
    messages: list[Any] = [] if instructions is None else [{"role": "system", "content": instructions}]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    thought = ""
    for number, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant" and messages[-1].get("tool_calls") is not None:
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "reasoning":
            parts = item.get("content") or []
            if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
                raise refused(f"input[{number}]: the content must be a list of parts, got {show(parts)}", "input")
            thought = "".join(str(part.get("text", "")) for part in parts)
            continue
        else:
            raise refused(f"input[{number}]: items of the type {show(kind)} are not supported.", "input")
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
        thought = ""
    return read_messages(messages, field="input")
