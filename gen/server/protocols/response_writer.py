"""Writes the answers of `/v1/responses`, which are lists of items in order: a thought, a message, calls of tools.

A stream has the events of each item from its beginning to its end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gen.completions import Completion, StreamEvent
from gen.server.errors import ApiError
from gen.server.likelihoods import in_chat_form, likely_tokens
from gen.server.output_types import new_id
from gen.server.texts import Ended
from gen.server.usage import cached_tokens, reasoning_tokens
from gen.server.writing import event
from gen.tokens.tokenizers import Tokenizer


class ResponseWriter:
    """Writes a response, whole or as events; items come in order, one at a time.

    Args:
        head: the fields of a response that depend on the request alone.
        with_logprobs: whether each token comes with its log-probability.
    """

    def __init__(self, tokenizer: Tokenizer, head: Mapping[str, Any], *, with_logprobs: bool) -> None:
        self._tokenizer, self._head, self._with_logprobs = tokenizer, head, with_logprobs
        self._count = 0  # how many events there have been
        self._output: list[dict[str, Any]] = []  # the items; the last one may be open
        self._open = False  # whether the last item may still grow

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
        if new.reasoning:
            yield from self._say("reasoning", new.reasoning)
        if new.text:
            yield from self._say("message", new.text, self._logprobs(new))
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
        yield from self._close("incomplete" if completion.finish_reason == "length" else "completed")

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
                "input_tokens_details": {
                    "cached_tokens": cached_tokens([made], prompt_tokens),
                    "cache_write_tokens": 0,
                },
                "output_tokens": new,
                "output_tokens_details": {"reasoning_tokens": reasoning_tokens([made], self._tokenizer)},
                "total_tokens": prompt_tokens + new,
            },
        }

    def _say(self, kind: str, piece: str, logprobs: Sequence[Any] = ()) -> Iterable[str]:
        """The events for more of a thought or of a message."""
        if not self._open or self._output[-1]["type"] != kind:
            yield from self._close()
            yield from self._add(_thought() if kind == "reasoning" else _message())
        part = self._output[-1]["content"][0]
        part["text"] += piece
        if kind == "reasoning":
            yield self._of_item("response.reasoning_text.delta", content_index=0, delta=piece)
        else:
            part["logprobs"] += logprobs
            yield self._of_item("response.output_text.delta", content_index=0, delta=piece, logprobs=[*logprobs])

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
        item, self._open = self._output[-1], False
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

    def _logprobs(self, new: StreamEvent) -> list[dict[str, Any]]:
        if not self._with_logprobs:
            return []
        found: list[dict[str, Any]] = in_chat_form(self._tokenizer, likely_tokens(new))["content"]
        return found

    def _of_item(self, kind: str, **more: Any) -> str:
        """An event about the last item."""
        return self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **more)

    def _event(self, kind: str, **more: Any) -> str:
        self._count += 1
        return event({"type": kind, "sequence_number": self._count - 1, **more}, kind)


def _message() -> dict[str, Any]:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": new_id("msg_"),
        "role": "assistant",
        "status": "in_progress",
        "content": [part],
    }


def _thought() -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": ""}
    return {"type": "reasoning", "id": new_id("rs_"), "summary": [], "status": "in_progress", "content": [part]}
