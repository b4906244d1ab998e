"""Bounds of a connection, whichever parser reads it: what a client may send, and how long it may take to ask.

uvicorn has no such bounds: its parsers wait for ever for the rest of a head, and httptools keeps any number of headers.
"""

import asyncio
from typing import Any

PATIENCE = 30  # seconds within which the head of a request has to come, after the connection or the last answer
MOST_HEAD = 2**16  # bytes of a head, and of what is no part of a body after it: its chunks' sizes, trailers
_PIECE = 2**14  # bytes that are read at once
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def bounded(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """One of uvicorn's HTTP protocols, with the bounds."""
    base: Any = protocol

    class Bounded(base):  # type: ignore[misc]
        """Of a request, uvicorn's protocols have `cycle` from the end of its head on.

        Attributes:
            timer: closes the connection if no request is under way then.
            useless: how many bytes have come that have ended no head and were no part of a body.
        """

        timer: asyncio.TimerHandle | None = None
        useless = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_request()

        def connection_lost(self, error: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            super().connection_lost(error)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            for start in range(0, len(data), _PIECE):
                cycle, piece = self.cycle, data[start : start + _PIECE]
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

    return Bounded
