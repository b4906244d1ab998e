"""`/v1/chat/completions`, OpenAI's."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from pydantic import BaseModel, Field

import gen
from gen.completions import Completion
from gen.server.conversations import read_messages, turn_of
from gen.server.errors import in_openai_form, refused, told
from gen.server.likelihoods import in_chat_form, likely_tokens
from gen.server.output_types import type_of_format, type_of_structure
from gen.server.sampling import NOT_SUPPORTED, SamplingFields
from gen.server.served import Asked, Served
from gen.server.usage import usage_of
from gen.server.writing import Answer, event

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
        # to come
        "tools": None,
        "tool_choice": "none",
        "reasoning_effort": None,
    }

    messages: list[Any]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1)] = 1
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    # known, and of no meaning to one model on one machine
    metadata: Any = None
    parallel_tool_calls: Any = None
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
    messages = read_messages(body.messages)
    arguments = body.arguments(served.model)
    arguments["chat_template_kwargs"] = _template_arguments(body, messages) or None
    if body.logprobs:
        arguments["top_logprobs"] = body.top_logprobs or 0
    cap = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    asked = Asked(
        prompts=[messages],
        sampler=body.sampler(served.model),
        output_type=_output_type(body, served.settings.max_schema_kb),
        n=body.n,
        seed=body.seed_of_gen,
        cap=cap,
        arguments=arguments,
    )
    writer = ChatWriter(served, body, name)
    texts = await served.begin(asked)
    return Answer(texts, writer, n=body.n, stream=body.stream, timeout=served.settings.request_timeout)


class ChatWriter:
    """Writes chat completions, and chunks of them."""

    def __init__(self, served: Served, body: ChatBody, name: str) -> None:
        self._tokenizer, self._body = served.model.tokenizer, body
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": f"gen-{gen.__version__}",
        }

    def whole(self, made: Sequence[Completion], prompt_tokens: int) -> dict[str, Any]:
        """See `Writer`."""
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": one.text, "refusal": None, **_thought(one)},
                "logprobs": self._logprobs(one),
                "finish_reason": FINISHED[one.finish_reason or "length"],
                "stop_reason": one.stop_reason,
            }
            for number, one in enumerate(made)
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage_of(made, prompt_tokens, self._tokenizer),
        }

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        """See `Writer`."""
        for number in range(self._body.n):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def grow(self, number: int, piece: str) -> Iterable[str]:
        """See `Writer`."""
        yield self._chunk(number, {"content": piece})

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        """See `Writer`."""
        last = {
            "logprobs": self._logprobs(completion),
            "finish_reason": FINISHED[completion.finish_reason or "length"],
            "stop_reason": completion.stop_reason,
        }
        yield self._chunk(number, _thought(completion), last)

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        """See `Writer`."""
        if self._with_usage:
            yield self._event([], usage_of(made, prompt_tokens, self._tokenizer))
        yield "data: [DONE]\n\n"

    def fail(self, error: Exception) -> Iterable[str]:
        """See `Writer`."""
        yield event(in_openai_form(told(error)))

    def _chunk(self, number: int, delta: Mapping[str, Any], last: Mapping[str, Any] | None = None) -> str:
        return self._event([{"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **(last or {})}])

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return event({**chunk, "usage": usage} if self._with_usage else chunk)

    def _logprobs(self, completion: Completion) -> dict[str, Any] | None:
        return in_chat_form(self._tokenizer, likely_tokens(completion)) if self._body.logprobs else None


def _thought(completion: Completion) -> dict[str, Any]:
    """What the model thought, under both names that servers have for it."""
    reasoning = completion.reasoning
    return {} if reasoning is None else {"reasoning_content": reasoning, "reasoning": reasoning}


def _template_arguments(body: ChatBody, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    for name in ("chat_template", "tools", "add_generation_prompt", "continue_final_message"):
        if name in given:
            raise refused(f"chat_template_kwargs cannot have {name}.", "chat_template_kwargs")
    begin = body.add_generation_prompt if body.add_generation_prompt is not None else not body.continue_final_message
    return given | turn_of(messages, begin, body.continue_final_message)


def _output_type(body: ChatBody, most_kb: float) -> Any:
    if body.response_format is not None and body.structured_outputs is not None:
        raise refused("a text has one output type; give response_format or structured_outputs.", "structured_outputs")
    if body.structured_outputs is not None:
        return type_of_structure(body.structured_outputs, most_kb)
    return type_of_format(body.response_format, "response_format", most_kb)
