"""Answers: texts from the engine in the form of a protocol, whole or as a stream of events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gen.completions import Completion, StreamEvent
from gen.server.errors import ClientGone
from gen.server.metrics import Clock
from gen.server.texts import Ended, Texts, while_wanted

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Writer(Protocol):
    """Writes the texts of one request in the form of a protocol. An event is the text to send, with its empty line."""

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

    def fail(self, error: Exception) -> Iterable[str]:
        """The events after an error, instead of all others that were to come."""


class Answer:
    """The answer to a client; its texts are cancelled as soon as nobody reads it.

    Args:
        n: how many texts each prompt has; they have consecutive numbers.
        timeout: how many seconds the answer may take.
    """

    def __init__(self, texts: Texts, writer: Writer, *, n: int, stream: bool, timeout: float) -> None:
        self._texts, self._writer, self._n, self._timeout = texts, writer, n, timeout
        self.stream = stream

    async def whole(self, receive: Receive) -> Response:
        """The answer as one JSON object.

        Raises:
            ClientGone, TimeoutError: as for `while_wanted`.
            GenError: a text has failed.
        """
        try:
            ended = await while_wanted(self._texts.all(), receive, self._timeout)
            return as_json(self._writer.whole(ended, self._prompt_tokens()))
        finally:
            self._texts.cancel()

    def events(self, clock: Clock) -> Response:
        """The answer as a stream of server-sent events.

        Args:
            clock: times the texts.
        """
        return EventStream(partial(self._events, clock), self._texts.cancel)

    def _prompt_tokens(self) -> int:
        return sum(stream.prompt_tokens for stream in self._texts.streams[:: self._n] if stream is not None)

    async def _events(self, clock: Clock) -> AsyncIterator[str]:
        writer, made = self._writer, dict[int, Completion]()
        try:
            async with asyncio.timeout(self._timeout):
                yield "".join(writer.begin(self._prompt_tokens()))
                async for number, found in self._texts.events():
                    if isinstance(found, StreamEvent):
                        clock.grown(number)
                        yield "".join(writer.grow(number, found))
                    else:
                        made[number] = found
                        clock.ended(number, len(found.token_ids))
                        yield "".join(writer.end(number, found))
                yield "".join(writer.close([made[number] for number in sorted(made)], self._prompt_tokens()))
        except Exception as error:
            yield "".join(writer.fail(error))


class EventStream(Response):
    """A response that goes on until its client leaves.

    Args:
        events: makes the events.
        done: called at the end, however it comes.
    """

    media_type = "text/event-stream"

    def __init__(self, events: Callable[[], AsyncIterator[str]], done: Callable[[], object]) -> None:
        self._events, self._done = events, done
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_wanted(self._send_all(send), receive)
        except ClientGone:
            pass
        finally:
            self._done()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for events in self._events():
            if events:
                await send({"type": "http.response.body", "body": events.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def as_json(value: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(dumps(value).encode(), status, media_type="application/json")


def dumps(value: object) -> str:
    """JSON on one line, with characters beyond ASCII as they are."""
    return _JSON.encode(value)


def event(value: object, name: str = "") -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {dumps(value)}\n\n" if name else f"data: {dumps(value)}\n\n"
