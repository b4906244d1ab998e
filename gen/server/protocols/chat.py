"""`/v1/chat/completions`, OpenAI's; jobs read bodies and write whole answers with it, too."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

import gen
from gen.completions import Completion, StreamEvent, ToolCallDelta
from gen.models.base import Model
from gen.server.bodies import Known
from gen.server.conversations import MESSAGES, asked_of_chat, clients_template, read_messages, thinking, turn_of
from gen.server.errors import refused
from gen.server.likelihoods import in_chat_form, in_prompt_form, likely_prompt, likely_tokens
from gen.server.output_types import CHOICE, TOOLS, WORDS, new_id, read_tools
from gen.server.protocols.chunks import ChunkedBody, ChunkWriter, Likeliest
from gen.server.sampling import NOT_SUPPORTED
from gen.server.served import Served
from gen.server.texts import Ended


class ChatBody(ChunkedBody):
    """The fields of a request."""

    refused: ClassVar[Mapping[str, object]] = {
        **{name: value for name, value in NOT_SUPPORTED.items() if name != "prompt_logprobs"},
        "audio": None,
        "echo": False,
        "function_call": "none",
        "functions": None,
        "modalities": ["text"],
        "verbosity": "medium",
        "web_search_options": None,
    }
    harmless: ClassVar[Mapping[str, object]] = {
        **ChunkedBody.harmless,
        "messages": None,
        "metadata": None,
        "prediction": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "safety_identifier": None,
        "service_tier": "auto",
        "store": False,
    }
    inner: ClassVar[Mapping[str, Known]] = {
        **ChunkedBody.inner,
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": CHOICE,
    }
    renamed: ClassVar[dict[str, tuple[str, ...]]] = ChunkedBody.renamed | {
        "max_new_tokens": ("max_completion_tokens", "max_tokens"),
        "thinking": ("thinking_token_budget", "reasoning_effort", "chat_template_kwargs"),
    }

    messages: list[Any]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool = False
    top_logprobs: Likeliest | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`."""
        other = self.max_completion_tokens is not None and self.max_tokens not in (None, self.max_completion_tokens)
        return super().ignored + ["max_tokens"] * other


def _call(delta: ToolCallDelta) -> dict[str, Any]:
    """A piece of a call; the call's first piece has the name and an id."""
    function = {"arguments": delta.arguments}
    if delta.name is None:
        return {"function": function}
    return {"id": delta.id or new_id("call_"), "type": "function", "function": {"name": delta.name, **function}}


def _thought(reasoning: str) -> dict[str, Any]:
    """What the model has thought, under both names that servers use for it."""
    return {"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}


class ChatWriter(ChunkWriter):
    """Writes chat completions, and chunks of them.

    Args:
        name: the model's.
        most_kb: how large schemas and tools may be, in KiB.
    """

    def __init__(self, model: Model, body: ChatBody, name: str, most_kb: float) -> None:
        if body.top_logprobs is not None and not body.logprobs:
            raise refused("top_logprobs need logprobs=true; give both.", "top_logprobs")
        messages = read_messages(body.messages)
        begin = body.add_generation_prompt
        goes_on = body.continue_final_message or bool(body.messages[-1].get("prefix"))  # DeepSeek's and Mistral's
        thoughts, thinks = thinking(model.tokenizer, body.reasoning_effort, "reasoning_effort")
        if thinks not in (None, True) and body.thinking_token_budget is not None:
            raise refused(
                "reasoning_effort and thinking_token_budget both say how much the model thinks; give one of them.",
                "thinking_token_budget",
            )
        turn = turn_of(messages, not goes_on if begin is None else begin, goes_on)
        tools = read_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, most_kb=most_kb)
        asked = asked_of_chat(
            model,
            body,
            messages,
            tools=tools,
            output_type=body.output_type(most_kb),
            template=thoughts | clients_template(body.chat_template_kwargs) | turn,
            thinks=body.thinking_token_budget if body.thinking_token_budget is not None else thinks,
            n=body.n,
            top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
        asked = replace(asked, prompt_logprobs=body.prompt_logprobs, receipts=body.return_receipt)
        head = {"object": "chat.completion.chunk", "model": name, "system_fingerprint": f"gen-{gen.__version__}"}
        super().__init__(model.tokenizer, body, asked, "chatcmpl-", **head)
        named = tools is None or tools.choice not in WORDS  # a call that is asked for by name
        self._body, self._called = body, "stop" if named else "tool_calls"
        self._calls: set[int] = set()  # the numbers of texts that call tools

    @classmethod
    def of(cls, served: Served, body: ChatBody) -> Self:
        """The writer of a server's answer."""
        return cls(served.model, body, served.name_of(body.model), served.settings.max_schema_kb)

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        answer = self._head | {
            "object": "chat.completion",
            "choices": [self._choice(number, one) for number, one in enumerate(ended)],
            "usage": self._usage([one.completion for one in ended], prompt_tokens),
        }
        if (top := self._body.prompt_logprobs) is not None:
            before = likely_prompt(self.texts.prompt_ids(0), ended[0].said.prompt_logprobs or [], top)
            answer["prompt_logprobs"] = in_prompt_form(self._tokenizer, before)
        return answer

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        for number in range(self._body.n):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        delta: dict[str, Any] = _thought(new.reasoning)
        if new.text:
            delta["content"] = new.text
        if new.tool_calls:
            self._calls.add(number)
            delta["tool_calls"] = [{"index": one.number, **_call(one)} for one in new.tool_calls]
        if delta or self._body.logprobs:
            yield self._chunk(number, delta, {"logprobs": self._logprobs(new)})

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        called = self._called if number in self._calls else "stop"
        yield self._chunk(number, {}, self._body.finished(completion, called))

    def _choice(self, number: int, ended: Ended) -> dict[str, Any]:
        said, calls = ended.said, list[dict[str, Any]]()
        for one in said.tool_calls:
            if one.name is not None:
                calls.append(_call(one))
            else:
                calls[one.number]["function"]["arguments"] += one.arguments
        message = {"role": "assistant", "content": said.text or (None if calls else ""), "refusal": None}
        return {
            "index": number,
            "message": message | ({"tool_calls": calls} if calls else {}) | _thought(said.reasoning),
            "logprobs": self._logprobs(said),
            **self._body.finished(ended.completion, self._called if calls else "stop"),
        }

    def _logprobs(self, new: StreamEvent) -> dict[str, Any] | None:
        return in_chat_form(self._tokenizer, likely_tokens(new)) if self._body.logprobs else None

    def _chunk(self, number: int, delta: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> str:
        return self._event([{"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **(more or {})}])
