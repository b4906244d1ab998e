"""The key of a server: what can be one, and whether a request has it."""

import hmac
from collections.abc import Mapping

from gen.errors import ArgumentError


def check_key(key: object) -> None:
    """Refuse a key that no client can send: headers carry printable ASCII, and lose spaces at both ends.

    Raises:
        ArgumentError: it is such a key.
    """
    if not isinstance(key, str) or not key:
        raise ArgumentError("api_key must be a text that is not empty, or None for none.")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ArgumentError(
            "api_key must be printable ASCII without a space at either end: no client could send this one in a header."
        )


def has_key(headers: Mapping[str, str], key: str) -> bool:
    """Whether a request's headers have the key, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return hmac.compare_digest(given.encode(), key.encode())
