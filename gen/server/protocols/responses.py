"""`/v1/responses`, OpenAI's, without a store: each request contains the whole conversation.

An answer is a list of items in order: a thought, a message, calls of tools. A stream has the events of each item.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gen.completions import Completion, StreamEvent
from gen.errors import show
from gen.server.bodies import Body, Known
from gen.server.conversations import PARTS, asked_of_chat, clients_template, read_messages, thinking
from gen.server.errors import ApiError, refused
from gen.server.likelihoods import in_chat_form, likely_tokens
from gen.server.output_types import CHOICE, FORMAT, TOOLS, new_id, read_tools, type_of_format
from gen.server.sampling import OF_ONE_TEXT, SamplingFields
from gen.server.served import Served
from gen.server.texts import Ended, Texts
from gen.server.writing import event, reasoning_tokens

_LOGPROBS = "message.output_text.logprobs"
_NO_STORE = "this server stores nothing; give the whole conversation as input."
_OWN = dict.fromkeys(("id", "status", "annotations", "logprobs"))  # of answers that come back, and say nothing
_ITEMS: Known = {
    **dict.fromkeys(("type", "role", "call_id", "name", "arguments")),
    **{"content": {**PARTS, **_OWN}, "output": {**PARTS, **_OWN}},
    **_OWN,
}
_STORED = {"previous_response_id": _NO_STORE, "conversation": _NO_STORE, "prompt": "this server stores no prompts."}


class TextOptions(Body):
    """The format of the text."""

    inner: ClassVar[Mapping[str, Known]] = {"format": FORMAT}

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Body):
    """How much the model thinks."""

    effort: str | None = None


class ResponsesBody(SamplingFields):
    """The fields of a request."""

    refused: ClassVar[Mapping[str, object]] = {**OF_ONE_TEXT, "background": False}
    harmless: ClassVar[Mapping[str, object]] = {
        "include": None,
        "input": None,
        "max_tool_calls": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning.summary": None,
        "safety_identifier": None,
        "service_tier": "auto",
        "store": False,
        "stream_options": None,
        "truncation": "disabled",  # a conversation that does not fit is refused, and nothing of it is left out
        "user": None,
    }
    inner: ClassVar[Mapping[str, Known]] = {"input": _ITEMS, "tools": TOOLS, "tool_choice": CHOICE}
    renamed: ClassVar[dict[str, tuple[str, ...]]] = SamplingFields.renamed | {
        "max_new_tokens": ("max_output_tokens",),
        "thinking": ("reasoning", "chat_template_kwargs"),
    }

    input: str | list[Any] = ""
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=0)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`."""
        return super().ignored + ["include"] * bool({*(self.include or ())} - {_LOGPROBS})


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
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": body.text.format or {"type": "text"}},
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
    for number, item in enumerate(items):
        kind = (item.get("type") or "message") if isinstance(item, Mapping) else None
        if kind == "message":
            said = {"role": item.get("role"), "content": item.get("content")}
            if said["role"] == "assistant" and messages and "content" not in messages[-1]:  # after a thought
                messages[-1] |= said
            else:
                messages.append(said)
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant"})
            messages[-1].setdefault("content", "")
            messages[-1].setdefault("tool_calls", []).append(call)  # an item of the same answer
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "reasoning":
            parts = item.get("content") or []
            if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
                raise refused(f"input[{number}]: the content must be a list of parts, got {show(parts)}", "input")
            thought = "".join(str(part.get("text", "")) for part in parts)
            if thought and messages and "content" not in messages[-1]:
                messages[-1]["reasoning_content"] += thought
            elif thought:
                messages.append({"role": "assistant", "reasoning_content": thought})
        else:
            raise refused(f"input[{number}]: items of the type {show(kind)} are not supported.", "input")
    return read_messages(messages, field="input")


class ResponseWriter:
    """Writes a response, whole or as events; items come in order, one at a time."""

    texts: Texts

    def __init__(self, served: Served, body: ResponsesBody) -> None:
        self._head = _head(body, served.name_of(body.model))
        for field, why in _STORED.items():
            if getattr(body, field) is not None:
                raise refused(f"{field}: {why}", field)
        most_kb = served.settings.max_schema_kb
        template = clients_template(body.chat_template_kwargs)
        self._with_logprobs = body.top_logprobs is not None or _LOGPROBS in (body.include or ())
        messages = read_input(body.input, body.instructions)
        if messages[-1]["role"] == "assistant":  # an answer is a new message
            template |= {"add_generation_prompt": True, "continue_final_message": False}
        thoughts, thinks = thinking(served.model.tokenizer, body.reasoning.effort, "reasoning")
        self.asked = asked_of_chat(
            served.model,
            body,
            messages,
            tools=read_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, most_kb=most_kb),
            output_type=type_of_format(body.text.format, "text.format", most_kb),
            template=thoughts | template,
            thinks=thinks,
            top_logprobs=(body.top_logprobs or 0) if self._with_logprobs else None,
        )
        self.stream, self._tokenizer = body.stream, served.model.tokenizer
        self._count = 0  # how many events there have been
        self._output: list[dict[str, Any]] = []  # the items; the last one may be open
        self._open = False  # whether the last item may still grow
        self._likely: list[dict[str, Any]] = []  # log-probabilities of tokens that no message has yet

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        [one] = ended
        list(self.grow(0, one.said))
        list(self.end(0, one.completion))
        return self._response(one.completion, prompt_tokens)

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        begun = {**self._head, "status": "in_progress", "output": []}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        if self._with_logprobs:
            self._likely += in_chat_form(self._tokenizer, likely_tokens(new))["content"]
        if new.reasoning:
            yield from self._say("reasoning", new.reasoning)
        if new.text:
            yield from self._say("message", new.text)
        for delta in new.tool_calls:
            if delta.name is not None:
                yield from self._close()
                yield from self._add(
                    {
                        "type": "function_call",
                        "id": new_id("fc_"),
                        "call_id": delta.id or new_id("call_"),
                        "name": delta.name,
                        "arguments": "",
                        "status": "in_progress",
                    }
                )
            if delta.arguments:
                self._output[-1]["arguments"] += delta.arguments
                yield self._of_item("response.function_call_arguments.delta", delta=delta.arguments)

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        cut = self._open and self._output[-1]["type"] == "function_call" and completion.value is None  # by a stop
        yield from self._close("incomplete" if cut or completion.finish_reason == "length" else "completed")

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        response = self._response(made[0], prompt_tokens)
        yield self._event(f"response.{response['status']}", response=response)

    def fail(self, error: ApiError) -> Iterable[str]:
        yield self._event("error", code=error.code, message=error.message, param=error.param)

    def _response(self, made: Completion, prompt_tokens: int) -> dict[str, Any]:
        cut, new = made.finish_reason == "length", len(made.token_ids)
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {"cached_tokens": made.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": new,
                "output_tokens_details": {"reasoning_tokens": reasoning_tokens([made], self._tokenizer)},
                "total_tokens": prompt_tokens + new,
            },
        }

    def _say(self, kind: str, piece: str) -> Iterable[str]:
        """The events for more of a thought or of a message, which has the log-probabilities of all tokens before it."""
        if not self._open or self._output[-1]["type"] != kind:
            yield from self._close()
            yield from self._add(_begun(kind))
        part = self._output[-1]["content"][0]
        part["text"] += piece
        if kind == "reasoning":
            yield self._of_item("response.reasoning_text.delta", content_index=0, delta=piece)
        else:
            likely, self._likely = self._likely, []
            part["logprobs"] += likely
            yield self._of_item("response.output_text.delta", content_index=0, delta=piece, logprobs=likely)

    def _add(self, item: dict[str, Any]) -> Iterable[str]:
        self._output.append(item)
        self._open = True
        parts = item.get("content", [])
        begun = {**item, "content": []} if parts else item
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=begun)
        for part in parts:
            yield self._of_item("response.content_part.added", content_index=0, part=part)

    def _close(self, status: str = "completed") -> Iterable[str]:
        """The events that end the open item."""
        if not self._open:
            return
        item = self._output[-1]
        if item["type"] == "message" and self._likely:  # of tokens without a text, such as those of a stop
            yield from self._say("message", "")
        self._open = False
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **done)
        else:
            [part] = item["content"]
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            logprobs = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
            yield self._of_item(f"response.{kind}.done", content_index=0, text=part["text"], **logprobs)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _of_item(self, kind: str, **more: Any) -> str:
        """An event about the last item."""
        return self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **more)

    def _event(self, kind: str, **more: Any) -> str:
        self._count += 1
        return event({"type": kind, "sequence_number": self._count - 1, **more}, kind)


def _begun(kind: str) -> dict[str, Any]:
    """A thought or a message, before its first text."""
    if kind == "reasoning":
        own: dict[str, Any] = {"id": new_id("rs_"), "summary": []}
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
    else:
        own = {"id": new_id("msg_"), "role": "assistant"}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {"type": kind, **own, "status": "in_progress", "content": [part]}
