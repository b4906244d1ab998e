"""Lines of OpenAI's batch format: the bodies of chat/completions, as far as gen has what they ask for.

Example: {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "seed": 7}}.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gen.errors import ArgumentError, show

URL = "/v1/chat/completions"
_NO_MATTER = {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_SAMPLING = {  # and the settings of samplers that vLLM's servers take beside them
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("top_k", "min_p", "repetition_penalty"),
}


def is_request(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of the batch format."""
    return "custom_id" in record and "body" in record


def read_request(record: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The messages of a line, and the settings that it has of its own, as a manifest has those of all rows.

    Raises:
        ArgumentError: something that gen has not, by its name.
    """
    url, method, body = record.get("url", URL), record.get("method", "POST"), record["body"]
    if url != URL or method != "POST":
        raise ArgumentError(f"gen answers POST {URL} alone, got {show(method)} {show(url)}")
    if not isinstance(body, dict):
        raise ArgumentError(f"body must be an object, got {show(body)}")
    given = {name: value for name, value in body.items() if value is not None}
    messages = given.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise ArgumentError(f"messages must be a list of messages, got {show(messages)}")
    asked: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NO_MATTER or value == _HARMLESS.get(name, _HARMLESS):
            continue
        if name in _SAMPLING:
            asked.setdefault("sampling", {})[name] = value
        elif name in _READ:
            asked |= _READ[name](value)
        else:
            raise ArgumentError(f"gen does not support {name!r} of a body, got {show(value)}; leave it out.")
    if asked.pop("logprobs", False):
        asked.setdefault("top_logprobs", 0)
    elif "top_logprobs" in asked:
        raise ArgumentError('top_logprobs are told with "logprobs": true; give both.')
    return messages, asked


_HARMLESS: dict[str, Any] = {  # what asks for nothing
    "stream": False,
    "tools": [],
    "tool_choice": "none",
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "echo": False,
}


def _response_format(value: Any) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    schema = value["json_schema"].get("schema") if kind == "json_schema" and "json_schema" in value else None
    if not isinstance(schema, dict):
        raise ArgumentError(
            'gen supports response_format of the types "text" and "json_schema" with a "schema", got ' + show(value)
        )
    return {"output_type": {"json_schema": schema}}


def _samples(value: Any) -> dict[str, Any]:
    return {} if value == 1 else {"samples": value}


def _as(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: value}


_READ: dict[str, Callable[[Any], dict[str, Any]]] = {
    "max_tokens": _as("max_new_tokens"),
    "max_completion_tokens": _as("max_new_tokens"),
    "stop": _as("stop"),
    "seed": _as("seed"),
    "n": _samples,
    "logprobs": _as("logprobs"),
    "top_logprobs": _as("top_logprobs"),
    "response_format": _response_format,
    "chat_template_kwargs": _as("chat_template_kwargs"),
}
