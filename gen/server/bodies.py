"""The bodies of requests: read within a limit, and checked field by field.

Each protocol has a pydantic model of the fields that it takes. A field that would change the answer and is not
supported is refused by its name; any other without effect is named in the answer's head and in the log.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from math import isinf
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gen.errors import show
from gen.server.errors import ApiError, ClientGone, refused

if TYPE_CHECKING:
    from starlette.requests import Request  # jobs read bodies without starlette

PATIENCE = 30  # seconds until more of a body comes
Known = Mapping[str, "Known | None"]
"""Fields that are read, each with those that are read within it, or None for all of these."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # how JSON may write a surrogate


class Body(BaseModel):
    """A request's fields; a field that is null counts as not given.

    Attributes:
        refused: fields that would change the answer and are not supported, each with the value that changes nothing.
        harmless: fields that change nothing here, and that clients send, each with what the answer has anyway;
            "a" stands for each "a.b" too.
        inner: what is read within fields that are no models themselves.
        renamed: gen's words for settings that the protocol calls otherwise, each with the fields that may stand for it.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    refused: ClassVar[Mapping[str, object]] = {}
    harmless: ClassVar[Mapping[str, object]] = {}
    inner: ClassVar[Mapping[str, Known]] = {}
    renamed: ClassVar[dict[str, tuple[str, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def ignored(self) -> list[str]:
        """The fields that change nothing: unknown ones, and harmless ones; "a.b" is a field b somewhere within a."""
        extra = self.model_extra or {}
        found = [name for name in extra if name not in self.refused and extra[name] != self.harmless.get(name)]
        for name in type(self).model_fields:
            value = getattr(self, name)
            within = value.ignored if isinstance(value, Body) else _unread(value, self.inner.get(name))
            found += dict.fromkeys(f"{name}.{field}" for field in within)
        return found

    @classmethod
    def words(cls, fields: Mapping[str, Any]) -> dict[str, str]:
        """What a client calls gen's words for settings: the field that it sent, or the usual one."""
        return {
            word: next((name for name in names if fields.get(name) is not None), names[0])
            for word, names in cls.renamed.items()
        }

    @classmethod
    def read(cls, fields: Mapping[str, Any], *, strict: bool = False) -> Self:
        """The fields, checked.

        Args:
            strict: whether a field that is unknown, and not harmless, is refused.
        """
        for name, harmless in cls.refused.items():
            value = fields.get(name)
            if value is not None and value != harmless and value not in ([], {}, ""):
                raise refused(
                    f"{name} is not supported by this server, and would change the answer; leave it out.", name
                )
        try:
            body = cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name, reason = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
            got = "" if first["type"] == "missing" else f", got {show(first['input'])}"
            raise refused(f"{name}: {reason}{got}", name) from None
        unknown = [name for name in body.ignored if not {name, name.partition(".")[0]} & cls.harmless.keys()]
        if strict and unknown:
            raise refused(f"{unknown[0]} is no field of this request: see /openapi.json.", unknown[0])
        return body


def _unread(given: Any, known: Known | None) -> Iterator[str]:
    """The names of fields in objects, or in lists of them, that say something and are not read."""
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, Mapping) and known is not None:
            for name, value in one.items():
                if name in known:
                    yield from _unread(value, known[name])
                elif value:
                    yield name


def kind_of(thing: object) -> str | None:
    """The `type` of a part, a tool or a block; None if it has none that is a text."""
    kind = thing.get("type") if isinstance(thing, Mapping) else None
    return kind if isinstance(kind, str) else None


async def read_body(request: "Request", most: float) -> bytes:
    """The body of a request that says that it is JSON.

    Args:
        most: how many bytes the body may have.
    Raises:
        ApiError: the body is too large, comes too slowly, or does not say that it is JSON.
        ClientGone: the client has left before its end.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers let pages of other origins send plain texts without asking the server
        raise ApiError(415, f"send a body of the type application/json, got {show(kind)}")
    data, more = bytearray(), True
    while more:
        try:
            async with asyncio.timeout(PATIENCE):
                message = await request.receive()
        except TimeoutError:
            raise ApiError(408, f"nothing more of the body has come for {PATIENCE} seconds.") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        data += message.get("body", b"")
        more = message.get("more_body", False)
        if len(data) > most:
            raise ApiError(413, f"the body has more than {most:.0f} bytes.")
    return bytes(data)


def read_fields(data: bytes) -> dict[str, Any]:
    """The JSON object in a body."""
    try:
        fields = json.loads(data.decode(), parse_constant=_no_number, parse_float=_number)
        if _HALF.search(data):
            json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise refused(f"the body has a text with half of a character, as \\u{half:04x}: a lone surrogate.") from None
    except (ValueError, RecursionError) as error:
        raise refused(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise refused("the body must be a JSON object.")
    return fields


def _number(written: str) -> float:
    number = float(written)
    if isinf(number):
        raise ValueError(f"{show(written, 20)} is too large a number")
    return number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
