"""The application: which function answers which path, who may ask, and what errors look like."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gen.engine import Engine
from gen.server.bodies import Body, read_body, read_fields
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
from gen.server.served import LARGE, Served
from gen.server.settings import Settings
from gen.server.tools import new_id
from gen.server.writing import Answer, Asking, EventStream

Handler = Callable[[Request], Awaitable[Response]]
ErrorForm = Callable[[ApiError], dict[str, Any]]

TEXTS: list[tuple[str, str, type[Body], Callable[..., Asking], ErrorForm]] = [
    ("/v1/chat/completions", "chat", ServedChatBody, chat, in_openai_form),
    ("/v1/completions", "completions", CompletionBody, complete, in_openai_form),
    ("/v1/responses", "responses", ResponsesBody, respond, in_openai_form),
    ("/v1/messages", "messages", MessagesBody, send_message, in_anthropic_form),
]
OTHERS: list[tuple[str, str, type[Body], Callable[..., dict[str, Any]], ErrorForm]] = [
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
            if not isinstance(response, EventStream):  # streams are counted at their end
                metrics.ended(name, response.status_code)
            response.headers["x-request-id"] = new_id("req_")
            return response

        return answer

    def read(name: str, body_type: type[Body], data: bytes) -> Body:
        body = body_type.read(read_fields(data))
        if body.ignored:
            metrics.ignored_fields.labels(name).inc(len(body.ignored))
        return body

    def writing(name: str, body_type: type[Body], ask: Callable[..., Asking]) -> Handler:
        """A handler that answers with texts, whole or as a stream. All that it does counts in the request's time."""

        async def handle(request: Request) -> Response:
            clock, wanted = metrics.clock(name), served.under_way.request(settings.request_timeout)
            data = await wanted.result(read_body(request, settings.max_body_mb * 2**20))

            def asking() -> Asking:
                return ask(served, read(name, body_type, data))

            async def begun() -> tuple[Answer, bool]:
                found = await served.in_thread(asking, size=len(data)) if len(data) > LARGE else asking()
                texts = await served.begin(found.asked, len(data))
                return Answer(texts, found.writer(texts), found.asked.n), found.stream

            answer, stream = await wanted.result(begun(), request.receive)
            if stream:
                return EventStream(answer, clock, wanted, partial(metrics.ended, name))
            try:
                return await wanted.result(answer.whole(), request.receive)
            finally:
                answer.cancel()

        return handle

    def computing(name: str, body_type: type[Body], answer: Callable[..., dict[str, Any]]) -> Handler:
        """A handler that answers without the engine."""

        async def handle(request: Request) -> Response:
            wanted = served.under_way.request(settings.request_timeout)
            data = await wanted.result(read_body(request, settings.max_body_mb * 2**20))

            def work() -> Response:
                return JSONResponse(answer(served, read(name, body_type, data)))

            embeds = body_type is EmbeddingsBody
            return await wanted.result(served.in_thread(work, size=len(data), embeds=embeds), request.receive)

        return handle

    async def health(request: Request) -> Response:
        state = served.health()
        return JSONResponse({"status": state}, 200 if state == "ok" else 503)

    async def count(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(request: Request) -> Response:
        return JSONResponse(list_models(served))

    async def model(request: Request) -> Response:
        return JSONResponse(one_model(served, request.path_params["name"]))

    handlers = [(path, name, writing(name, body, ask), form) for path, name, body, ask, form in TEXTS]
    handlers += [(path, name, computing(name, body, answer), form) for path, name, body, answer, form in OTHERS]
    routes = [Route(path, guarded(name, handle, form), methods=["POST"]) for path, name, handle, form in handlers]
    routes += [
        Route("/v1/models", guarded("models", models)),
        Route("/v1/models/{name:path}", guarded("models", model)),
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
    return JSONResponse(form(error), error.status, error.headers)
