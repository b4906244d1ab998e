"""The process of `gen serve`: a socket first, then the model, then requests, until a signal ends it.

Nothing here waits for torch. While the model loads, clients are told to ask again. Connections have bounds that uvicorn
lacks, whose parser waits for ever for the rest of a head, and keeps any number of headers.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gen.errors import GenError
from gen.server.accounts import LOG
from gen.server.errors import ApiError, in_anthropic_form, in_openai_form

if TYPE_CHECKING:
    from gen.engine import Engine

PATIENCE = 30  # seconds within which the head of a request has to come, after the connection or the last answer
MOST_HEAD = 2**16  # bytes of a head, and of what is no part of a body after it: its chunks' sizes, trailers
_PIECE = 2**14  # bytes that are read at once
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_BACKLOG = 2048
_TICK = 0.1  # seconds
_LAST = 2  # seconds to write the last answers
_LOADING = ApiError(503, "the model is loading; ask again.", code="loading")


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; they wait for the server."""
    listening: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listening = socket.socket(found[0][0], socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[0][4])
        listening.listen(_BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise GenError(f"cannot listen on {host}:{port}: {error}") from error
    return listening


class Process:
    """Serves the application that `load` returns, as soon as it is there.

    Args:
        load: returns the ASGI application and its engine; runs in a thread.
        shutdown_timeout: how many seconds requests may take to end after a signal.
    """

    def __init__(self, load: Callable[[], tuple[Any, "Engine"]], *, shutdown_timeout: float) -> None:
        self._load = load
        self._app: Any = None
        self._engine: Engine | None = None
        self._error: Exception | None = None
        self._code = 0
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            log_level="error",
            access_log=False,
            http=Bounded,
            ws="none",
        )
        self._server = _Server(config, self._look, self._cut, shutdown_timeout)

    def run(self, listening: socket.socket) -> int:
        """Serve until a signal, or a failure of the engine, ends it.

        Returns:
            The code to exit with: 0 after SIGTERM, 130 after Ctrl-C, 1 after a failure of the engine's loop.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        Thread(target=self._begin, name="gen serve loads", daemon=True).start()
        with listening:
            self._server.run(sockets=[listening])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # a second signal while Python ends would change the exit code
        if self._error is not None:
            raise self._error
        if self._engine is not None:
            self._engine.close()
        return self._code

    def _begin(self) -> None:
        try:
            self._app, self._engine = self._load()
        except Exception as error:
            self._error = error
            self._server.should_exit = True

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/health/live":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"status":"loading"}'})
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
            form = in_anthropic_form if scope["path"].startswith("/v1/messages") else in_openai_form
            await send({"type": "http.response.start", "status": _LOADING.status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(form(_LOADING)).encode()})

    def _look(self) -> None:
        """End the process if the engine has failed, so that a supervisor starts it again."""
        if self._engine is not None and (failure := self._engine.stats().failure) and not self._server.should_exit:
            LOG.error("the engine has failed: %s", failure)
            self._code, self._server.should_exit = 1, True

    def _cut(self) -> None:
        """End what has outlasted the time for it."""
        if self._app is not None and (count := self._app.state.served.end()):
            LOG.warning("cut %d requests, which had not ended in time.", count)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._app is None and self._error is None:  # nothing needs an end, and libraries may be half imported
            os._exit(130 if number == signal.SIGINT else 0)
        if number == signal.SIGINT:
            self._server.force_exit = self._server.should_exit
            self._code = 130
        if self._app is not None:
            self._app.state.served.draining = True
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """A server that leaves signals to `Process`, calls `look` at each tick, and has time to tell clients what is cut.

    Args:
        cut: ends all requests, so that they are answered at once.
        patience: how many seconds requests may take to end by themselves.
    """

    def __init__(
        self, config: uvicorn.Config, look: Callable[[], object], cut: Callable[[], object], patience: float
    ) -> None:
        super().__init__(config)
        self._look, self._cut, self._patience = look, cut, patience

    async def on_tick(self, counter: int) -> bool:
        self._look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending, now = asyncio.create_task(super().shutdown(sockets)), asyncio.get_running_loop().time
        end = now() + self._patience
        while not (ending.done() or self.force_exit or now() >= end):
            await asyncio.wait([ending], timeout=min(_TICK, max(0, end - now())))
        if tasks := [*self.server_state.tasks]:
            self._cut()
            await asyncio.wait(tasks, timeout=_LAST)
        await asyncio.wait([ending], timeout=_LAST)
        for connection in [*self.server_state.connections]:  # of clients that read nothing
            if connection.transport is not None:
                connection.transport.abort()
        await ending

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Bounded(HttpToolsProtocol):
    """A connection with the bounds. Of a request it has `cycle` from the end of its head on.

    Attributes:
        timer: closes the connection if no request is under way then.
        useless: how many bytes have come that have ended no head and were no part of a body.
        piece: what has come last.
        cycles: of the requests that are not answered; a client may send the next one before an answer has ended.
    """

    timer: asyncio.TimerHandle | None = None
    useless = 0
    cycles: Sequence[Any] = ()
    piece = b""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, error: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for cycle in self.cycles:  # uvicorn knows the newest one alone
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(error)

    def on_headers_complete(self) -> None:
        if not self._asks_for_more():
            super().on_headers_complete()
            self.cycles = [one for one in (*self.cycles, self.cycle) if not one.response_complete]

    def on_message_complete(self) -> None:
        if not self._asks_for_more():
            super().on_message_complete()

    def _asks_for_more(self) -> bool:
        """Whether a client would go on in another protocol, as Java's do in HTTP/2; httptools then takes the body
        for a part of that protocol."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Read such a request again, without its wish."""
        error = sys.exc_info()[1]
        if error is not None and self._asks_for_more():
            head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
            head += [b"%b: %b\r\n" % one for one in self.headers if one[0] != b"upgrade"]
            self.parser = type(self.parser)(self)
            with suppress(AttributeError):  # as uvicorn does; older versions are lenient
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            super().data_received(b"".join([*head, b"\r\n", self.piece[error.args[0] :]]))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            cycle, piece = self.cycle, data[start : start + _PIECE]
            self.piece = piece
            had = 0 if cycle is None else len(cycle.body)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            grows = self.cycle is not None and len(self.cycle.body) > had
            useful = self.cycle is not cycle or grows or self._discards()
            self.useless = 0 if useful else self.useless + len(piece)
            if self.useless > MOST_HEAD:
                if not self._asked():
                    self.transport.write(_TOO_LARGE)
                self.transport.close()
                return

    def _expect_request(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(PATIENCE, self._give_up)

    def _give_up(self) -> None:
        if not self._asked():
            self.transport.close()

    def _asked(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def _discards(self) -> bool:
        """Whether the rest of a body comes that has been answered already."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body
