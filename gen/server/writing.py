"""Answers: texts from the engine in the form of a protocol, whole or as a stream of events, and their usage."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Protocol

from gen.completions import Completion, StreamEvent
from gen.server.accounts import Account
from gen.server.errors import ApiError, ClientGone, told
from gen.server.served import Asked
from gen.server.texts import Ended, Texts
from gen.server.waiting import Wanted
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send  # jobs write answers without starlette

_LAST = 5  # seconds that a stream's last event may take
_OF_STREAMS = [  # their headers
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Writer(Protocol):
    """What a request asks for, and its answer in the form of a protocol. An event is the text to send, with its empty
    line.

    Attributes:
        asked: what the request asks of the engine.
        stream: whether the answer is a stream.
        texts: what the engine makes; set once they have joined it.
    """

    asked: Asked
    stream: bool
    texts: Texts

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        """The answer to a client that waits for the end."""

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        """The events before the first text."""

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        """The events for what is new of a text."""

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        """The events at a text's end."""

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        """The events after the last text."""

    def fail(self, error: ApiError) -> Iterable[str]:
        """The events after an error, instead of all others that were to come."""


class EventStream:
    """An answer as a stream, an ASGI application; it goes on while its client wants it. An error is its last event.

    Args:
        account: is told the status with which it ends: 200, or that of an error.
    """

    def __init__(self, writer: Writer, wanted: Wanted, account: Account) -> None:
        self._writer, self._wanted, self._account = writer, wanted, account

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        status, last = 200, b""
        try:
            await send({"type": "http.response.start", "status": status, "headers": _OF_STREAMS})
            await self._wanted.result(self._send_events(send), receive)
        except ClientGone:
            status = 499
        except Exception as error:
            told_error = told(error, self._account.words)
            status, last = told_error.status, "".join(self._writer.fail(told_error)).encode()
        finally:
            self._writer.texts.cancel()
            self._account.status = status
        if last:
            with suppress(TimeoutError):  # a client that reads nothing does not read this either
                async with asyncio.timeout(_LAST):
                    await send({"type": "http.response.body", "body": last})

    async def _send_events(self, send: "Send") -> None:
        writer, texts, made = self._writer, self._writer.texts, dict[int, Completion]()
        events, more = writer.begin(texts.prompt_tokens), True
        async with aclosing(texts.events()) as coming:
            while more:
                if piece := "".join(events):
                    await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
                number, found = await anext(coming)
                if isinstance(found, StreamEvent):
                    events = writer.grow(number, found)
                else:
                    made[number] = found
                    events, more = writer.end(number, found), len(made) < len(texts.streams)
        closing = writer.close([made[number] for number in sorted(made)], texts.prompt_tokens)
        await send({"type": "http.response.body", "body": "".join([*events, *closing]).encode()})


def event(value: object, name: str = "") -> str:
    """A server-sent event, with characters beyond ASCII as they are."""
    data = f"data: {_JSON.encode(value)}\n\n"
    return f"event: {name}\n{data}" if name else data


def reasoning_tokens(made: Sequence[Completion], tokenizer: Tokenizer) -> int:
    """How many tokens the thoughts have."""
    return sum(one.reasoning_tokens or len(tokenizer.encode_plain(one.reasoning)) for one in made if one.reasoning)
