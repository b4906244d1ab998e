"""`/v1/messages` and `/v1/messages/count_tokens`, Anthropic's."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gen.completions import Completion, StreamEvent
from gen.errors import show
from gen.server.bodies import Body, Known, kind_of
from gen.server.conversations import asked_of_chat, read_messages, thinking
from gen.server.errors import ApiError, in_anthropic_form, refused
from gen.server.output_types import new_id, read_tools, type_of_format
from gen.server.sampling import OF_ONE_TEXT, Number, SamplingFields
from gen.server.served import Asked, Served
from gen.server.texts import Ended, Texts
from gen.server.writing import event
from gen.tokens.thoughts import Thinking

_TEXT: Known = dict.fromkeys(("type", "text", "cache_control"))  # what is kept of prompts depends on no mark
_BLOCKS: Known = {
    **dict.fromkeys(("id", "name", "input", "tool_use_id", "thinking", "signature")),
    **{"content": _TEXT, "source": dict.fromkeys(("type", "media_type", "data", "url"))},
    **_TEXT,
}
_SCHEMA: Known = {"type": None, "schema": None}
_TOOLS: Known = dict.fromkeys(("type", "name", "description", "input_schema", "strict", "cache_control"))
_CHOICES = {None: None, "auto": "auto", "any": "required", "none": "none"}


class ToolChoice(Body):
    """Which tools are called."""

    type: Literal["auto", "any", "tool", "none"] | None = None
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`."""
        return super().ignored + ["name"] * (self.name is not None and self.type != "tool")


class ThinkingOptions(Body):
    """Whether the model thinks, and how many tokens its thought may have."""

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`."""
        return super().ignored + ["budget_tokens"] * (self.budget_tokens is not None and self.type != "enabled")


class MessagesBody(SamplingFields):
    """The fields of a request."""

    refused: ClassVar[Mapping[str, object]] = {**OF_ONE_TEXT, "container": None, "mcp_servers": None}
    harmless: ClassVar[Mapping[str, object]] = {
        "cache_control": {"type": "ephemeral"},
        "context_management": None,
        "inference_geo": None,
        "messages": None,
        "metadata": None,
        "output_config.effort": None,
        "service_tier": "auto",
        "tools.eager_input_streaming": None,
    }
    inner: ClassVar[Mapping[str, Known]] = {
        "messages": {"role": None, "content": _BLOCKS},
        "system": _TEXT,
        "tools": _TOOLS,
        "output_format": _SCHEMA,
        "output_config": {"format": _SCHEMA},
    }
    renamed: ClassVar[dict[str, tuple[str, ...]]] = SamplingFields.renamed | {
        "stop": ("stop_sequences", "stop"),
        "thinking": ("thinking",),
    }

    messages: list[Any]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    system: str | list[Any] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    stop_sequences: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: ToolChoice = ToolChoice()
    thinking: ThinkingOptions = ThinkingOptions()
    output_format: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


def count_tokens(served: Served, body: MessagesBody) -> dict[str, Any]:
    """How many tokens the prompt of a conversation has."""
    return {"input_tokens": len(served.prompt_ids(MessageWriter(served, body).asked))}


def _read(served: Served, body: MessagesBody) -> Asked:
    most_kb, choice = served.settings.max_schema_kb, body.tool_choice
    named = {"type": "function", "name": choice.name} if choice.type == "tool" else _CHOICES[choice.type]
    form, field, config = body.output_format, "output_format", body.output_config or {}
    if unknown := {name for name, value in config.items() if value is not None} - {"format", "effort"}:
        raise refused(f"output_config: {', '.join(sorted(unknown))} is not supported.", "output_config")
    if config.get("format") is not None:
        if form is not None:
            raise refused("a text has one output type; give output_format or output_config.format.", field)
        form, field = config["format"], "output_config"
        if not isinstance(form, Mapping):
            raise refused(f"output_config.format must be an object, got {show(form)}", field)
    if body.stop_sequences is not None:
        body.stop = [*body.stop_sequences, *([body.stop] if isinstance(body.stop, str) else body.stop or ())]
    template, thinks = _thinking(served, body.thinking)
    return asked_of_chat(
        served.model,
        body,
        read_conversation(body.messages, body.system),
        tools=read_tools(
            None if body.tools is None else [_tool(tool) for tool in body.tools],
            named,
            parallel=not choice.disable_parallel_tool_use,
            most_kb=most_kb,
        ),
        output_type=type_of_format(form, field, most_kb),
        template=template,
        thinks=thinks,
    )


def _thinking(served: Served, given: ThinkingOptions) -> tuple[dict[str, Any], Thinking]:
    if given.type in (None, "adaptive"):
        return {}, None
    template, thinks = thinking(served.model.tokenizer, "none" if given.type == "disabled" else "high", "thinking")
    template.pop("reasoning_effort", None)  # without one a template takes its default, which thinks
    return template, thinks if given.type == "disabled" or given.budget_tokens is None else given.budget_tokens


def _tool(tool: Any) -> Any:
    """A tool in OpenAI's form."""
    if not isinstance(tool, Mapping) or (tool.get("type") or "custom") != "custom":
        raise refused("tools must have a name and an input_schema; this server runs no tools itself.", "tools")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def read_conversation(given: Sequence[Any], system: str | list[Any] | None) -> list[dict[str, Any]]:
    """Anthropic's messages in OpenAI's form."""
    messages: list[Any] = []
    if system:
        messages.append({"role": "system", "content": _text(system, "system")})
    for number, message in enumerate(given):
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant", "system") or not isinstance(content, str | list):
            raise refused(
                f"messages[{number}] must have the role user or assistant and a content, got {show(message)}",
                "messages",
            )
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            messages += _messages_of(role, content, f"messages[{number}]")
    return read_messages(messages)


def _messages_of(role: str, blocks: Sequence[Any], name: str) -> list[dict[str, Any]]:
    """The messages that one of Anthropic's stands for: one for each tool's result, and one for the rest."""
    results: list[dict[str, Any]] = []
    rest: dict[str, Any] = {"role": role, "content": []}
    for place, block in enumerate(blocks):
        kind = kind_of(block)
        if kind == "text":
            rest["content"].append({"type": "text", "text": block.get("text")})
        elif kind == "image" and isinstance(block.get("source"), Mapping):
            rest["content"].append({"type": "image_url", "image_url": {"url": _url(block["source"])}})
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            call = {"id": block.get("id"), "type": "function", "function": function}
            rest.setdefault("tool_calls", []).append(call)
        elif kind == "tool_result":
            text = _text(block.get("content") or "", f"{name}.content[{place}]")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        elif kind == "thinking":
            rest["reasoning_content"] = rest.get("reasoning_content", "") + str(block.get("thinking", ""))
        elif kind != "redacted_thinking":
            raise refused(f"{name}.content[{place}]: blocks of the type {show(kind)} are not supported.", "messages")
    return [*results, rest] if rest["content"] or rest.get("tool_calls") or not results else results


def _url(source: Mapping[str, Any]) -> Any:
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return source.get("url")


def _text(content: Any, name: str) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise refused(f"{name}: only text blocks are supported here, got {show(content)}", "messages")
    return "".join(map(str, texts))


class MessageWriter:
    """Writes a message, whole or as events; blocks come in order, one at a time."""

    texts: Texts

    def __init__(self, served: Served, body: MessagesBody) -> None:
        name = served.name_of(body.model)
        self.asked, self.stream = _read(served, body), body.stream
        self._head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": name}
        self._content: list[dict[str, Any]] = []  # the blocks; the last one may be open
        self._open = False  # whether the last block may still grow

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        [one] = ended
        list(self.grow(0, one.said))
        list(self.end(0, one.completion))
        for block in self._content:
            if block["type"] == "tool_use":
                block["input"] = _values(block["input"])
        return {
            **self._head,
            "content": self._content,
            **self._ending(one.completion),
            "usage": self._usage(one.completion, prompt_tokens),
        }

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        begun: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=begun)

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        if new.reasoning:
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta("thinking", "thinking_delta", "thinking", new.reasoning)
        if new.text:
            yield from self._begin({"type": "text", "text": ""})
            yield self._delta("text", "text_delta", "text", new.text)
        for delta in new.tool_calls:
            if delta.name is not None:
                yield from self._end()
                made = delta.id or new_id("toolu_")
                yield from self._begin({"type": "tool_use", "id": made, "name": delta.name, "input": {}})
                self._content[-1]["input"] = ""
            if delta.arguments:
                yield self._delta("input", "input_json_delta", "partial_json", delta.arguments)

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        if not self._content:
            yield from self._begin({"type": "text", "text": ""})
        yield from self._end()

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        [one] = made
        yield _event("message_delta", delta=self._ending(one), usage=self._usage(one, prompt_tokens))
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterable[str]:
        yield event(in_anthropic_form(error), "error")

    def _ending(self, made: Completion) -> dict[str, Any]:
        by_text = made.finish_reason == "stop" and isinstance(made.stop_reason, str)
        if made.finish_reason == "length":
            reason = "max_tokens"
        elif by_text:
            reason = "stop_sequence"
        else:
            called = any(block["type"] == "tool_use" for block in self._content)
            reason = "tool_use" if called else "end_turn"
        return {"stop_reason": reason, "stop_sequence": made.stop_reason if by_text else None}

    def _usage(self, made: Completion, prompt_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": prompt_tokens - made.cached_tokens,
            "cache_read_input_tokens": made.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(made.token_ids),
        }

    def _begin(self, block: dict[str, Any]) -> Iterable[str]:
        """The events that begin a block, unless one of this type is open already."""
        if self._open and self._content[-1]["type"] == block["type"]:
            return
        yield from self._end()
        self._content.append(block)
        self._open = True
        yield _event("content_block_start", index=len(self._content) - 1, content_block=block)

    def _end(self) -> Iterable[str]:
        if self._open:
            self._open = False
            yield _event("content_block_stop", index=len(self._content) - 1)

    def _delta(self, field: str, kind: str, name: str, piece: str) -> str:
        """The event for more of a block's field."""
        self._content[-1][field] += piece
        return _event("content_block_delta", index=len(self._content) - 1, delta={"type": kind, name: piece})


def _values(arguments: str) -> Any:
    """The values of a call's arguments; {} if their JSON was cut off."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}


def _event(kind: str, **more: Any) -> str:
    return event({"type": kind, **more}, kind)
