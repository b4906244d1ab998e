"""The bodies of requests: read within a limit, and checked field by field.

Each protocol has a pydantic model of the fields that it takes. A field that would change the answer and is not
supported is refused by its name; other unknown fields are ignored and counted.
"""

import asyncio
import json
import re
from collections.abc import Collection, Mapping, Sequence
from math import isinf
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gen.errors import show
from gen.server.errors import ApiError, ClientGone, refused

if TYPE_CHECKING:
    from starlette.requests import Request  # jobs read bodies without starlette

PATIENCE = 30  # seconds until more of a body comes
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # how JSON may write a surrogate


class Body(BaseModel):
    """A request's fields; a field that is null counts as not given.

    Attributes:
        refused: fields that would change the answer and are not supported, each with the value that changes nothing.
        harmless: fields that change nothing here, and that clients send; "a" stands for each "a.b" too.
        renamed: gen's words for settings that the protocol calls otherwise, each with the fields that may stand for it.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    refused: ClassVar[Mapping[str, object]] = {}
    harmless: ClassVar[frozenset[str]] = frozenset()
    renamed: ClassVar[dict[str, tuple[str, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def ignored(self) -> list[str]:
        """The fields that change nothing: unknown ones, and harmless ones; "a.b" is the field b of a."""
        found = [name for name in self.model_extra or () if name not in self.refused]
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Body):
                found += [f"{name}.{field}" for field in value.ignored]
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
        unknown = [name for name in body.ignored if not {name, name.partition(".")[0]} & cls.harmless]
        if strict and unknown:
            raise refused(f"{unknown[0]} is no field of this request: see /openapi.json.", unknown[0])
        return body


def unread(messages: Sequence[Any], read: Collection[str]) -> list[str]:
    """The fields of messages, and of the parts of their contents, that say something and are not read."""
    found: dict[str, None] = {}
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else []
        for part in (message, *parts):
            if isinstance(part, Mapping):
                found |= {name: None for name, value in part.items() if value and name not in read}
    return [f"messages.{name}" for name in found]


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
