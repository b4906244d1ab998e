"""Lines of OpenAI's batch format, for chat/completions. Workers read the bodies as `gen serve` does.

Example: {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "seed": 7}}.
"""

from collections.abc import Mapping
from typing import Any

from gen.errors import ArgumentError, show

URL = "/v1/chat/completions"


def is_request(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of the batch format."""
    return "custom_id" in record and "body" in record


def read_request(record: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a line.

    Raises:
        ArgumentError: it asks for something other than a chat completion.
    """
    url, method, body = record.get("url", URL), record.get("method", "POST"), record["body"]
    if url != URL or method != "POST":
        raise ArgumentError(f"gen answers POST {URL} alone, got {show(method)} {show(url)}")
    if not isinstance(body, dict):
        raise ArgumentError(f"body must be an object, got {show(body)}")
    return body
