"""What a client may send without asking for anything, and how long it may take.

The transport and the loop's timers are the test's: no network, and no time passes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gen.server.process import MOST_HEAD, PATIENCE, Bounded

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
LEFT: list[str] = []


class Transport:
    """What the server writes, and whether it has closed the connection."""

    def __init__(self) -> None:
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Loop:
    """The running loop, whose timers the test rings."""

    def __init__(self) -> None:
        self._loop, self.timers = asyncio.get_running_loop(), list[Timer]()
        self.create_task = self._loop.create_task

    def call_later(self, seconds: float, call: Callable[[], object]) -> "Timer":
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def pass_by(self, seconds: float) -> None:
        for timer in self.timers:
            timer.left -= seconds
            if timer.left <= 0 and not timer.over:
                timer.over = True
                timer.call()


class Timer:
    def __init__(self, left: float, call: Callable[[], object]) -> None:
        self.left, self.call, self.over = left, call, False

    def cancel(self) -> None:
        self.over = True


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body; "/early" before it has come, "/left" after the client has left, "/never"
    never.
    """
    length = 0
    if scope["path"] == "/left":
        while (await receive())["type"] != "http.disconnect":
            pass
        LEFT.append(scope["path"])
    if scope["path"] == "/never":
        await asyncio.Event().wait()
    more = scope["path"] != "/early"
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
    await send({"type": "http.response.body", "body": f"{length:09}".encode()})


def connected(talk: Callable[[Any, Transport, Loop], Awaitable[None]]) -> None:
    """Talk through a new connection."""

    async def run() -> None:
        config = uvicorn.Config(echo, log_config=None, ws="none")
        loop, transport = Loop(), Transport()
        protocol: Any = Bounded(config=config, server_state=ServerState(), app_state={}, _loop=loop)  # type: ignore[arg-type]
        protocol.connection_made(transport)
        await talk(protocol, transport, loop)
        protocol.connection_lost(None)

    asyncio.run(run())


async def answered(transport: Transport, times: int = 1) -> None:
    while transport.written.count(b"HTTP/1.1 200 OK") < times:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def sent(protocol: Any, transport: Transport, data: bytes, most: int) -> int:
    """Send some data again and again until the connection is closed; how many bytes that took."""
    count = 0
    while not transport.closed and count <= most:
        protocol.data_received(data)
        count += len(data)
    return count


@pytest.mark.parametrize("head", [b"x" * 1000, b"a:b\r\n" * 200, b"a: " + b"x" * 990 + b"\r\n"])
@pytest.mark.parametrize("before", [b"", GET])
@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\na: "])
def test_a_head_has_a_bound(head: bytes, before: bytes, start: bytes) -> None:
    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        if before:
            protocol.data_received(before)
            await answered(transport)
        protocol.data_received(start)
        assert sent(protocol, transport, head, 10**6) <= 2 * MOST_HEAD
        assert transport.written.endswith(b"\r\n\r\n") or b" 400 " in transport.written

    connected(talk)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10**5 + b"\r\n", b"GET /" + b"x" * 10**6])
def test_a_head_that_comes_at_once_has_the_same_bound(data: bytes) -> None:
    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        protocol.data_received(data)
        assert transport.closed and protocol.cycle is None
        assert transport.written.startswith(b"HTTP/1.1 4")

    connected(talk)


@pytest.mark.parametrize("start", [b"1;x=", b"1\r\na\r\n0\r\na: "])
def test_what_is_beside_a_body_has_a_bound(start: bytes) -> None:
    """The sizes of chunks, with what else may stand there, and trailers."""

    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        protocol.data_received(POST + b"transfer-encoding: chunked\r\n\r\n" + start)
        assert sent(protocol, transport, b"x" * 1000, 10**6) <= 2 * MOST_HEAD

    connected(talk)


def test_heads_and_bodies_within_the_bounds_are_read_however_they_come() -> None:
    large = b"GET / HTTP/1.1\r\nhost: x\r\nb: " + b"y" * (MOST_HEAD - 2000) + b"\r\n\r\n"
    body = POST + b"content-length: 1000000\r\n\r\n" + b"x" * 10**6
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10**5 + b"0\r\n\r\n"

    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        for size in (10**7, 1000):
            for data, length in ((GET, 0), (large, 0), (body, 10**6), (chunked, 10**5)):
                transport.written = b""
                for start in range(0, len(data), size):
                    protocol.data_received(data[start : start + size])
                await answered(transport)
                assert transport.written.endswith(f"{length:09}".encode()) and not transport.closed
        protocol.data_received(GET + GET)  # one after the other, without waiting
        await answered(transport, 3)
        assert not transport.closed

    connected(talk)


@pytest.mark.parametrize("half", [b"", b"GET /", b"POST / HTTP/1.1\r\nhost: x\r\n"])
@pytest.mark.parametrize("before", [b"", GET])
def test_half_a_request_does_not_stay(half: bytes, before: bytes) -> None:
    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        if before:
            loop.pass_by(PATIENCE - 1)
            protocol.data_received(before)
            await answered(transport)
        for byte in half:  # slowly
            loop.pass_by(0.5)
            protocol.data_received(bytes([byte]))
            assert not transport.closed
        loop.pass_by(PATIENCE)
        assert transport.closed

    connected(talk)


def test_a_request_under_way_stays() -> None:
    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        protocol.data_received(b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n")
        loop.pass_by(100 * PATIENCE)
        assert not transport.closed
        for task in protocol.tasks:
            task.cancel()

    connected(talk)


def test_the_rest_of_a_body_that_was_answered_is_dropped_for_a_while() -> None:
    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        protocol.data_received(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n")
        await answered(transport)
        assert transport.closed or sent(protocol, transport, b"x" * 10**5, 10**7) > 10**7
        loop.pass_by(PATIENCE)
        assert transport.closed

    connected(talk)


def test_a_client_that_leaves_is_noticed_by_all_of_its_requests() -> None:
    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        LEFT.clear()
        protocol.data_received(GET.replace(b"/", b"/left", 1) + GET + GET)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        for _ in range(9):
            await asyncio.sleep(0)
        assert LEFT == ["/left"]

    connected(talk)


@pytest.mark.parametrize("wish", [b"h2c", b"websocket"])
@pytest.mark.parametrize("before", [b"", GET])
@pytest.mark.parametrize("size", [1, 7, 2**16])
def test_a_client_that_would_take_another_protocol_gets_its_answer(wish: bytes, before: bytes, size: int) -> None:
    asked = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\nhttp2-settings: AAEA\r\n" % wish

    async def talk(protocol: Any, transport: Transport, loop: Loop) -> None:
        if before:
            protocol.data_received(before)
            await answered(transport)
        for number, body in enumerate([b"x" * 5, b"y" * 40_000], 1 + bool(before)):
            data = POST + asked + b"content-length: %d\r\n\r\n" % len(body) + body
            for start in range(0, len(data), size):
                protocol.data_received(data[start : start + size])
            await answered(transport, number)
            assert transport.written.endswith(b"%09d" % len(body))
        protocol.data_received(POST + asked + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + GET)
        await answered(transport, 4 + bool(before))
        assert transport.written.count(b"%09d" % 3) == 1 and not transport.closed

    connected(talk)
