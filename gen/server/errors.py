"""The errors of requests, and how each protocol writes them."""

import logging
from collections.abc import Mapping
from typing import Any

from gen.errors import ArgumentError, ContextError, EngineClosed, EngineFull, GenError, for_client

_log = logging.getLogger("gen")


class ApiError(Exception):
    """A request that gets no answer.

    Args:
        status: the HTTP status.
        param: the field that causes the error.
        code: a name of the error, for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def refused(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The error for a request that cannot be answered as it is."""
    return ApiError(400, message, param, code)


def told(error: Exception, words: Mapping[str, str] | None = None) -> ApiError:
    """What a client is told about any error.

    Args:
        words: what the client calls gen's words for settings, see `Body.words`; None if it sent none.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineFull):
        return ApiError(
            429, "too many requests run and wait; ask again later.", code="queue_full", headers={"Retry-After": "1"}
        )
    if isinstance(error, EngineClosed):
        return ApiError(503, "the server takes no more requests.", code="closed", headers={"Retry-After": "5"})
    if isinstance(error, TimeoutError):
        return ApiError(504, "the request took longer than the server's limit.", code="timeout")
    if isinstance(error, ArgumentError):
        message, names = for_client(error, words or {})
        param = next(filter(str.isidentifier, names), None)
        return refused(message, param, "context_length_exceeded" if isinstance(error, ContextError) else None)
    if isinstance(error, RecursionError):
        return refused("the request has JSON that nests too deep, in one of its texts perhaps.")
    _log.error("a request has failed", exc_info=error)
    return ApiError(500, str(error) if isinstance(error, GenError) else "an internal error; the server's log has it.")


_KINDS = {  # the name of an error's kind in OpenAI's form, and in Anthropic's
    401: ("authentication_error", "authentication_error"),
    404: ("not_found_error", "not_found_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("server_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}
_OTHER = ("invalid_request_error", "invalid_request_error")


def in_openai_form(error: ApiError) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind, _ = _KINDS.get(error.status, _OTHER)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def in_anthropic_form(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic's clients read it."""
    _, kind = _KINDS.get(error.status, _OTHER)
    return {"type": "error", "error": {"type": kind, "message": error.message}}
