"""`/v1/chat/completions`, OpenAI's."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

import gen
from gen.completions import Completion, StreamEvent
from gen.server.chats import asked_of_chat, thinking
from gen.server.conversations import read_messages, turn_of
from gen.server.errors import in_openai_form, refused, told
from gen.server.likelihoods import in_chat_form, likely_tokens
from gen.server.output_types import type_of_format, type_of_structure
from gen.server.sampling import NOT_SUPPORTED, SamplingFields
from gen.server.served import Served
from gen.server.texts import Ended
from gen.server.tools import calls_of, new_id, read_tools
from gen.server.usage import usage_of
from gen.server.writing import Answer, event
from gen.tools.values import ToolCallDelta

FINISHED = {"eos": "stop", "stop": "stop", "length": "length"}


class StreamOptions(BaseModel):
    """What a stream has beside the texts."""

    include_usage: bool = False


class ChatBody(SamplingFields):
    """The fields of a request."""

    refused: ClassVar[Mapping[str, object]] = {
        **NOT_SUPPORTED,
        "audio": None,
        "echo": False,
        "function_call": "none",
        "functions": None,
        "modalities": ["text"],
        "verbosity": "medium",
        "web_search_options": None,
    }

    messages: list[Any]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1)] = 1
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    # known, and of no meaning to one model on one machine
    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None


async def chat(served: Served, body: ChatBody) -> Answer:
    """Answer a conversation.

    Raises:
        ApiError, GenError: it cannot be answered.
    """
    name = served.name_of(body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs are told with logprobs=true; give both.", "top_logprobs")
    messages, most_kb = read_messages(body.messages), served.settings.max_schema_kb
    tools = read_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, most_kb=most_kb)
    asked = asked_of_chat(
        served,
        body,
        messages,
        tools=tools,
        output_type=_output_type(body, most_kb),
        template=_template_arguments(served, body, messages),
        cap=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        n=body.n,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    writer = ChatWriter(served, body, name, called="tool_calls" if tools and not tools.names_one else "stop")
    texts = await served.begin(asked)
    return Answer(texts, writer, n=body.n, stream=body.stream, timeout=served.settings.request_timeout)


class ChatWriter:
    """Writes chat completions, and chunks of them.

    Args:
        called: the finish_reason of texts that end with calls of tools.
    """

    def __init__(self, served: Served, body: ChatBody, name: str, *, called: str) -> None:
        self._tokenizer, self._body, self._called = served.model.tokenizer, body, called
        self._calls: set[int] = set()  # the numbers of texts that call tools
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._head = {
            "id": new_id("chatcmpl-"),
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": f"gen-{gen.__version__}",
        }

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        """See `Writer`."""
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(number, one) for number, one in enumerate(ended)],
            "usage": usage_of([one.completion for one in ended], prompt_tokens, self._tokenizer),
        }

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        """See `Writer`."""
        for number in range(self._body.n):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        """See `Writer`."""
        delta: dict[str, Any] = _thought(new.reasoning)
        if new.text:
            delta["content"] = new.text
        if new.tool_calls:
            self._calls.add(number)
            delta["tool_calls"] = [_delta(one) for one in new.tool_calls]
        if delta or self._body.logprobs:
            yield self._chunk(number, delta, {"logprobs": self._logprobs(new)})

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        """See `Writer`."""
        yield self._chunk(number, {}, self._finished(completion, number in self._calls))

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        """See `Writer`."""
        if self._with_usage:
            yield self._event([], usage_of(made, prompt_tokens, self._tokenizer))
        yield "data: [DONE]\n\n"

    def fail(self, error: Exception) -> Iterable[str]:
        """See `Writer`."""
        yield event(in_openai_form(told(error)))

    def _choice(self, number: int, ended: Ended) -> dict[str, Any]:
        said, calls = ended.said, calls_of(ended.said)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said.text or (None if calls else ""),
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        return {
            "index": number,
            "message": message | _thought(said.reasoning),
            "logprobs": self._logprobs(said),
            **self._finished(ended.completion, bool(calls)),
        }

    def _finished(self, completion: Completion, calls: bool) -> dict[str, Any]:
        reason = FINISHED[completion.finish_reason or "length"]
        return {
            "finish_reason": self._called if calls and reason == "stop" else reason,
            "stop_reason": completion.stop_reason,
        }

    def _chunk(self, number: int, delta: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> str:
        return self._event([{"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **(more or {})}])

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return event({**chunk, "usage": usage} if self._with_usage else chunk)

    def _logprobs(self, new: StreamEvent) -> dict[str, Any] | None:
        return in_chat_form(self._tokenizer, likely_tokens(new)) if self._body.logprobs else None


def _delta(delta: ToolCallDelta) -> dict[str, Any]:
    """More of a call; its first one has the name and an id."""
    if delta.name is None:
        return {"index": delta.number, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.number, "id": new_id("call_"), "type": "function", "function": function}


def _thought(reasoning: str) -> dict[str, Any]:
    """What the model thought, under both names that servers have for it."""
    return {"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}


def _template_arguments(served: Served, body: ChatBody, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    for name in ("chat_template", "tools", "add_generation_prompt", "continue_final_message"):
        if name in given:
            raise refused(f"chat_template_kwargs cannot have {name}.", "chat_template_kwargs")
    begin = body.add_generation_prompt if body.add_generation_prompt is not None else not body.continue_final_message
    thoughts = thinking(served.model.tokenizer, body.reasoning_effort, "reasoning_effort")
    return thoughts | given | turn_of(messages, begin, body.continue_final_message)


def _output_type(body: ChatBody, most_kb: float) -> Any:
    if body.response_format is not None and body.structured_outputs is not None:
        raise refused("a text has one output type; give response_format or structured_outputs.", "structured_outputs")
    if body.structured_outputs is not None:
        return type_of_structure(body.structured_outputs, most_kb)
    return type_of_format(body.response_format, "response_format", most_kb)
