"""A client in the test's process: it calls an ASGI application as a web server does, without a network."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """The reply so far; the status is 0 until something has come."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events; the mark of the end stays a text."""
        found = [line for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in found]


async def until(true: Callable[[], bool]) -> None:
    """Let other tasks and threads run until the condition is true; give up after a minute."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


class Client:
    """Sends requests to an application.

    Args:
        headers: of each request.
    """

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        self._app, self._headers = app, dict(headers or {})

    def get(self, path: str, **headers: str) -> Reply:
        return asyncio.run(self.send("GET", path, headers=headers))

    def post(self, path: str, fields: Any = None, **headers: str) -> Reply:
        """Send one request; fields that are no bytes are sent as JSON."""
        return asyncio.run(self.send("POST", path, fields, headers=headers))

    def posts(self, requests: list[tuple[str, Any]]) -> list[Reply]:
        """Send requests at the same time."""

        async def together() -> list[Reply]:
            return await asyncio.gather(*(self.send("POST", *request) for request in requests))

        return asyncio.run(together())

    async def send(
        self,
        method: str,
        path: str,
        fields: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        leave_after: int | None = None,
        leave: asyncio.Event | None = None,
        half: bool = False,
        reply: Reply | None = None,
    ) -> Reply:
        """Send one request.

        Args:
            half: more of the body is to come, and never does.
            reply: receives the reply as it comes.
            leave_after: the client leaves after so many parts of the body.
            leave: the client leaves once this is set.
        """
        body = fields if isinstance(fields, bytes) else b"" if fields is None else json.dumps(fields).encode()
        given = {"content_type": "application/json", **self._headers, **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
        }
        left, reply, parts = leave or asyncio.Event(), reply or Reply(), 0
        messages = [{"type": "http.request", "body": body, "more_body": half}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal parts
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                reply.body += message.get("body", b"")
                reply.whole = not message.get("more_body", False)
                parts += 1
                if leave_after is not None and parts >= leave_after:
                    left.set()

        await self._app(scope, receive, send)
        return reply
