"""What is told of each request: an id in its answer, a line in the log when it ends, and its part of the metrics."""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from gen.server.output_types import new_id

if TYPE_CHECKING:
    from gen.server.texts import Texts

LOG = logging.getLogger("gen.server")
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MOST_NAMES = 1024
_GONE = 499  # the status of a request whose client has left, as nginx writes it


@dataclass(kw_only=True)
class Account:
    """A request, from its head to the end of its answer.

    Attributes:
        id: of the client's `x-request-id`, or made; the answer has it, too.
        endpoint: a short name of the path, or the path itself if the server has no such; None for what is not told.
        key: the name of its key.
        status: of the answer; a stream's is the one that it ended with.
        ignored: the fields of its body that change nothing.
        words: what its client calls gen's words for settings, see `Body.words`.
        texts: what the engine makes for it.
        trace: the client's headers `traceparent` and `tracestate`, of W3C's Trace Context.
    """

    id: str
    method: str
    endpoint: str | None
    begun: float = field(default_factory=lambda: time.monotonic())
    key: str | None = None
    status: int = _GONE
    ignored: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    texts: "Texts | None" = None
    trace: dict[str, str] = field(default_factory=dict)

    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.begun

    def ignored_names(self) -> str:
        """The ignored fields for a header and a line, with all but letters and digits as %XX; at most 1 KiB."""
        return ",".join(map(quote, self.ignored))[:_MOST_NAMES]

    def told(self, *, with_texts: bool = False) -> dict[str, Any]:
        """Its line in the log: tokens are those of all its texts, each prompt's once; "queue" and "first_token" are
        their longest times."""
        found: dict[str, Any] = {
            "id": self.id,
            "method": self.method,
            "endpoint": self.endpoint,
            "status": self.status,
            "key": self.key,
        }
        if self.texts is not None:
            made = self.texts.progress()
            found |= {
                "prompt_tokens": self.texts.prompt_tokens,
                "cached_tokens": self.texts.cached_tokens,
                "completion_tokens": sum(one.tokens for one in made),
                "queue": _longest(one.waited for one in made),
                "first_token": _longest(one.first_token for one in made),
            }
        found |= {"seconds": round(self.seconds(), 4), "ignored": self.ignored_names() or None}
        if with_texts and self.texts is not None:
            found["texts"] = self.texts.so_far()
        return {name: value for name, value in found.items() if value is not None}


class Accounting:
    """An application with an account for each request, which its handlers find as `request.state.account`.

    Args:
        ended: is told of each request that has ended.
        log_texts: whether the log has their texts.
    """

    def __init__(self, app: Any, ended: Callable[[Account], object], *, log_texts: bool = False) -> None:
        self._app, self._ended, self._log_texts = app, ended, log_texts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        asked = headers.get("x-request-id", "")
        scope["path"] = scope["path"].rstrip("/") or "/"  # Starlette would redirect, from a proxy's https to http
        account = Account(
            id=asked if _ID.fullmatch(asked) else new_id("req_"),
            method=scope["method"],
            endpoint=scope["path"],
            trace={name: headers[name] for name in ("traceparent", "tracestate") if name in headers},
        )
        scope["state"] = {**scope.get("state", {}), "account": account}

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                account.status = message["status"]
                told = [(b"x-request-id", account.id.encode())]
                if account.ignored:
                    told.append((b"x-ignored-fields", account.ignored_names().encode()))
                message["headers"] = [*message.get("headers", ()), *told]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._ended(account)
            if account.endpoint is not None:
                LOG.info("request", extra={"told": account.told(with_texts=self._log_texts)})


def write_logs(form: Literal["text", "json"], level: int | str) -> None:
    """Let the process write what `gen` logs to stderr, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_InJson() if form == "json" else _InText())
    log = logging.getLogger("gen")
    log.handlers = [handler]
    log.setLevel(level)


class _InText(logging.Formatter):
    """`TIME gen: MESSAGE`, and for a request `TIME gen: METHOD ENDPOINT STATUS name=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] | None = getattr(record, "told", None)
        if told is None:
            said = super().format(record)
        else:
            first = ("method", "endpoint", "status")
            line = [_word(told[name]) for name in first]
            said = " ".join([*line, *(f"{name}={_word(told[name])}" for name in told if name not in first)])
        return f"{_when(record)} {'gen' if record.levelno < logging.WARNING else record.levelname}: {said}"


class _InJson(logging.Formatter):
    """An object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": _when(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found | getattr(record, "told", {}), ensure_ascii=False)


def _word(value: object) -> str:
    """A value on a line: in JSON where it has more than one word, or what a client could fake a line with."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else json.dumps(value)


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _longest(seconds: Iterable[float | None]) -> float | None:
    return max((round(one, 4) for one in seconds if one is not None), default=None)
