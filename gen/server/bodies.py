"""The bodies of requests: read within a limit, and checked field by field.

Each protocol has a pydantic model of the fields that it takes. A field that would change the text and is not supported
is refused by its name; other unknown fields are ignored and counted.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gen.errors import show
from gen.server.errors import ApiError, refused

if TYPE_CHECKING:
    from starlette.requests import Request  # jobs read bodies without starlette


class Body(BaseModel):
    """A request's fields; a field that is null counts as not given.

    Attributes:
        refused: fields that would change the text and are not supported, each with the value that changes nothing.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    refused: ClassVar[Mapping[str, object]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def ignored(self) -> list[str]:
        """The unknown fields."""
        return [name for name in self.model_extra or () if name not in self.refused]

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """The fields, checked.

        Raises:
            ApiError: a field cannot be used, or is not supported.
        """
        for name, harmless in cls.refused.items():
            value = fields.get(name)
            if value is not None and value != harmless and value not in ([], {}, ""):
                raise refused(f"{name} is not supported by this server, and would change the text; leave it out.", name)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name, reason = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
            got = "" if first["type"] == "missing" else f", got {show(first['input'])}"
            raise refused(f"{name}: {reason}{got}", name) from None


async def read_json(request: "Request", most: float) -> dict[str, Any]:
    """The JSON object in a request's body.

    Args:
        most: how many bytes the body may have.
    Raises:
        ApiError: the body is too large, or no JSON object, or does not say that it is JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers let pages of other origins send plain texts without asking the server
        raise ApiError(415, f"send a body of the type application/json, got {show(kind)}")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise ApiError(413, f"the body has more than {most:.0f} bytes.")
    try:
        fields = json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise refused(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise refused("the body must be a JSON object.")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
