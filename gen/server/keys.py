"""The keys of a server: what can be one, whose key a request has, and how much each of them may ask for at once."""

import hmac
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen.arguments import read_whole
from gen.errors import ArgumentError, GenError, show, show_path
from gen.server.errors import ApiError


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key that clients may send.

    Attributes:
        name: for logs.
        key: what clients send.
        most_running: how many requests with this key may be under way at once; None for no limit.
    """

    name: str = "api_key"
    key: str
    most_running: int | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.most_running is not None:
            read_whole("most_running", self.most_running, minimum=1)


def check_key(key: object) -> None:
    """Refuse a key that no client can send: headers carry printable ASCII, and lose spaces at both ends."""
    if not isinstance(key, str) or not key:
        raise ArgumentError("api_key must be a text that is not empty, or None for none.")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ArgumentError(
            "api_key must be printable ASCII without a space at either end: no client could send this one in a header."
        )


def read_keys(path: Path) -> list[Key]:
    """The keys in a TOML file: `[keys.NAME]`, with `key` and perhaps `most_running`."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows puts a byte order mark before UTF-8
        tables = read.get("keys")
        if not isinstance(tables, dict) or not tables or len(read) > 1:
            raise ArgumentError("it must have tables [keys.NAME], and nothing else.")
        return [read_key(name, table) for name, table in tables.items()]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ArgumentError) as error:
        raise GenError(f"the keys in {show_path(path)} cannot be used: {error}") from error


def read_key(name: str, table: Any) -> Key:
    """The key of a table, with what is allowed to it."""
    named = [*table] if isinstance(table, dict) else None  # what is no table may be the key itself
    if named is None or not {"key"} <= {*named} <= {"key", "most_running"}:
        has = "is no table" if named is None else f"has {show(named)}"
        raise ArgumentError(f"[keys.{name}] must have a key, and may have most_running, and {has}")
    try:
        return Key(name=name, **table)
    except ArgumentError as error:
        raise ArgumentError(f"[keys.{name}]: {error}") from None


class Keys:
    """The keys of a server; with none, everybody may ask."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)
        self._running = Counter[str]()

    def begin(self, headers: Mapping[str, str]) -> str | None:
        """Count a request as under way that has a key as `Authorization: Bearer KEY` or `x-api-key: KEY`.

        All keys are compared, each in the same time, so that the time tells nothing of them.

        Returns:
            The key's name; None if the server has no keys.
        Raises:
            ApiError: it has none of the server's keys, or as many requests with its key are under way as may be.
        """
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        found = [one for one in self._keys if hmac.compare_digest(given.encode(), one.key.encode())]
        if not self._keys:
            return None
        if not found:
            raise ApiError(
                401,
                "give the server's key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        [key] = found
        if key.most_running is not None and self._running[key.name] >= key.most_running:
            raise ApiError(
                429,
                f"{key.most_running} requests with this key are under way, which is its limit; ask again later.",
                code="key_limit",
                headers={"Retry-After": "1"},
            )
        self._running[key.name] += 1
        return key.name

    def end(self, name: str | None) -> None:
        """A request that was counted has ended."""
        if name is not None:
            self._running[name] -= 1
