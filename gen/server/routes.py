"""The application: which function answers which path, who may ask, and what errors look like."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gen.engine import Engine
from gen.server.bodies import Body, read_json
from gen.server.errors import ApiError, ClientGone, in_anthropic_form, in_openai_form, told
from gen.server.keys import has_key
from gen.server.metrics import Metrics
from gen.server.protocols.chat import ServedChatBody, chat
from gen.server.protocols.completions import CompletionBody, complete
from gen.server.protocols.embeddings import EmbeddingsBody, embeddings
from gen.server.protocols.messages import MessagesBody, count_tokens, send_message
from gen.server.protocols.models import list_models, one_model
from gen.server.protocols.responses import ResponsesBody, respond
from gen.server.protocols.tokens import DetokenizeBody, TokenizeBody, detokenize, tokenize
from gen.server.served import Served
from gen.server.settings import Settings
from gen.server.tools import new_id
from gen.server.writing import Answer, as_json

Handler = Callable[[Request], Awaitable[Response]]
ErrorForm = Callable[[ApiError], dict[str, Any]]

POSTS: list[tuple[str, str, type[Body], Callable[..., Awaitable[Answer | Response]], ErrorForm]] = [
    ("/v1/chat/completions", "chat", ServedChatBody, chat, in_openai_form),
    ("/v1/completions", "completions", CompletionBody, complete, in_openai_form),
    ("/v1/responses", "responses", ResponsesBody, respond, in_openai_form),
    ("/v1/messages", "messages", MessagesBody, send_message, in_anthropic_form),
    ("/v1/messages/count_tokens", "count_tokens", MessagesBody, count_tokens, in_anthropic_form),
    ("/v1/embeddings", "embeddings", EmbeddingsBody, embeddings, in_openai_form),
    ("/tokenize", "tokenize", TokenizeBody, tokenize, in_openai_form),
    ("/detokenize", "detokenize", DetokenizeBody, detokenize, in_openai_form),
]


def routed(engine: Engine, settings: Settings) -> Starlette:
    """The application of an engine; see `gen.server.app`."""
    served, metrics = Served(engine, settings), Metrics(engine)

    def guarded(name: str, handle: Handler, form: ErrorForm = in_openai_form) -> Handler:
        """A handler that checks the key, writes errors in the form of a protocol, and counts the request."""

        async def answer(request: Request) -> Response:
            try:
                _check_key(request, settings.api_key)
                response = await handle(request)
            except ClientGone:
                response = Response(status_code=499)
            except Exception as error:
                response = _refusal(told(error), form)
            metrics.requests.labels(name, response.status_code).inc()
            response.headers["x-request-id"] = new_id("req_")
            return response

        return answer

    def posting(name: str, body_type: type[Body], answer: Callable[..., Awaitable[Answer | Response]]) -> Handler:
        """A handler that reads the body, and writes what is asked for: a whole answer or a stream."""

        async def handle(request: Request) -> Response:
            clock = metrics.clock(name)
            body = body_type.read(await read_json(request, settings.max_body_mb * 2**20))
            if body.ignored:
                metrics.ignored_fields.labels(name).inc(len(body.ignored))
            found = await answer(served, body)
            if isinstance(found, Response):
                return found
            return found.events(clock) if found.stream else await found.whole(request.receive)

        return handle

    def getting(answer: Callable[[Served, Request], Awaitable[Response]]) -> Handler:
        async def handle(request: Request) -> Response:
            return await answer(served, request)

        return handle

    async def health(request: Request) -> Response:
        state = served.health()
        return as_json({"status": state}, 200 if state == "ok" else 503)

    async def count(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    routes = [
        Route(path, guarded(name, posting(name, body, answer), form), methods=["POST"])
        for path, name, body, answer, form in POSTS
    ]
    routes += [
        Route("/v1/models", guarded("models", getting(list_models))),
        Route("/v1/models/{name:path}", guarded("models", getting(one_model))),
        Route("/health", health),
        Route("/metrics", count),
    ]
    cors = Middleware(CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=["*"])
    application = Starlette(
        routes=routes,
        middleware=[cors] if settings.cors_origins else [],
        exception_handlers={404: _no_route, 405: _no_route},
    )
    application.state.served = served
    return application


def _check_key(request: Request, key: str | None) -> None:
    if key is not None and not has_key(request.headers, key):
        raise ApiError(
            401,
            "give the server's key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    said = "the path does not take this method" if status == 405 else "the path does not exist"
    headers = dict(getattr(error, "headers", None) or {})
    return _refusal(ApiError(status, f"{request.method} {request.url.path}: {said}.", headers=headers), in_openai_form)


def _refusal(error: ApiError, form: ErrorForm) -> Response:
    response = as_json(form(error), error.status)
    response.headers.update(error.headers)
    return response
