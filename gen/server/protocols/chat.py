"""`/v1/chat/completions`, OpenAI's."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

import gen
from gen.completions import Completion, StreamEvent
from gen.server.errors import ApiError, in_openai_form, refused
from gen.server.likelihoods import in_prompt_form, likely_prompt
from gen.server.output_types import new_id
from gen.server.protocols.chat_bodies import ChatBody, call_of, finished, logprobs_of, read_chat, thought, whole_chat
from gen.server.served import Served
from gen.server.texts import Ended, Texts
from gen.server.usage import usage_of
from gen.server.writing import Asking, event


class ServedChatBody(ChatBody):
    """The fields of a request, with those that jobs do not take."""

    refused: ClassVar[Mapping[str, object]] = {
        name: value for name, value in ChatBody.refused.items() if name != "prompt_logprobs"
    }

    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def chat(served: Served, body: ServedChatBody) -> Asking:
    """What a conversation asks for."""
    name = served.name_of(body.model)
    asked, called = read_chat(served.model, body, served.settings.max_schema_kb)
    if body.prompt_logprobs is not None and body.stream:
        raise refused("prompt_logprobs come with whole answers only; leave stream out.", "prompt_logprobs")
    asked = replace(asked, prompt_logprobs=body.prompt_logprobs, receipts=body.return_receipt)
    return Asking(asked, partial(ChatWriter, served, body, name, called=called), body.stream)


class ChatWriter:
    """Writes chat completions, and chunks of them.

    Args:
        called: the finish_reason of texts that end with calls of tools.
    """

    def __init__(self, served: Served, body: ServedChatBody, name: str, texts: Texts, called: str) -> None:
        self._tokenizer, self._body, self._texts, self._called = served.model.tokenizer, body, texts, called
        self._calls: set[int] = set()  # the numbers of texts that call tools
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._head = {
            "id": new_id("chatcmpl-"),
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": f"gen-{gen.__version__}",
        }

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        answer = self._head | whole_chat(self._tokenizer, self._body, ended, prompt_tokens, self._called)
        if (top := self._body.prompt_logprobs) is not None:
            before = likely_prompt(self._texts.prompt_ids(0), ended[0].said.prompt_logprobs or [], top)
            answer["prompt_logprobs"] = in_prompt_form(self._tokenizer, before)
        return answer

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        for number in range(self._body.n):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        delta: dict[str, Any] = thought(new.reasoning)
        if new.text:
            delta["content"] = new.text
        if new.tool_calls:
            self._calls.add(number)
            delta["tool_calls"] = [{"index": one.number, **call_of(one)} for one in new.tool_calls]
        if delta or self._body.logprobs:
            yield self._chunk(number, delta, {"logprobs": logprobs_of(self._tokenizer, self._body, new)})

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        called = self._called if number in self._calls else "stop"
        yield self._chunk(number, {}, finished(self._body, completion, called))

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        if self._with_usage:
            yield self._event([], usage_of(made, prompt_tokens, self._tokenizer))
        yield "data: [DONE]\n\n"

    def fail(self, error: ApiError) -> Iterable[str]:
        yield event(in_openai_form(error))

    def _chunk(self, number: int, delta: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> str:
        return self._event([{"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **(more or {})}])

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        return event({**chunk, "usage": usage} if self._with_usage else chunk)
