"""The application: which function answers which path, who may ask, and what errors look like."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gen.engine import Engine
from gen.server.accounts import Account, Accounting
from gen.server.bodies import Body, read_body, read_fields
from gen.server.errors import ApiError, ClientGone, in_anthropic_form, in_openai_form, told
from gen.server.keys import Keys
from gen.server.metrics import Metrics
from gen.server.openapi import describe
from gen.server.protocols.chat import ChatBody, ChatWriter
from gen.server.protocols.completions import CompletionBody, CompletionWriter
from gen.server.protocols.embeddings import (
    EmbedderBody,
    EmbeddingsBody,
    RerankBody,
    ScoreBody,
    embeddings,
    rerank,
    score,
)
from gen.server.protocols.messages import MessagesBody, MessageWriter, count_tokens
from gen.server.protocols.model import DetokenizeBody, TokenizeBody, detokenize, list_models, one_model, tokenize
from gen.server.protocols.responses import ResponsesBody, ResponseWriter
from gen.server.sampling import SamplingFields
from gen.server.served import LARGE, Served
from gen.server.settings import Settings
from gen.server.waiting import Wanted
from gen.server.writing import EventStream, Writer

Answer = Response | EventStream
Handler = Callable[[Request], Awaitable[Answer]]
ErrorForm = Callable[[ApiError], dict[str, Any]]

TEXTS: list[tuple[str, str, type[Body], Callable[..., Writer], ErrorForm]] = [
    ("/v1/chat/completions", "chat", ChatBody, ChatWriter.of, in_openai_form),
    ("/v1/completions", "completions", CompletionBody, CompletionWriter, in_openai_form),
    ("/v1/responses", "responses", ResponsesBody, ResponseWriter, in_openai_form),
    ("/v1/messages", "messages", MessagesBody, MessageWriter, in_anthropic_form),
]
OTHERS: list[tuple[str, str, type[Body], Callable[..., dict[str, Any]], ErrorForm]] = [
    ("/v1/messages/count_tokens", "count_tokens", MessagesBody, count_tokens, in_anthropic_form),
    ("/v1/embeddings", "embeddings", EmbeddingsBody, embeddings, in_openai_form),
    ("/v1/rerank", "rerank", RerankBody, rerank, in_openai_form),
    ("/v1/score", "score", ScoreBody, score, in_openai_form),
    ("/tokenize", "tokenize", TokenizeBody, tokenize, in_openai_form),
    ("/detokenize", "detokenize", DetokenizeBody, detokenize, in_openai_form),
]


def routed(engine: Engine, settings: Settings) -> Starlette:
    """The application of an engine; see `gen.server.app`."""

    def ended(account: Account) -> None:
        keys.end(account.key)
        if account.endpoint is None:
            return
        metrics.ended(account)
        if settings.tracer is not None:
            from gen.server.tracing import record

            record(settings.tracer, account, settings.names[0])

    served, metrics = Served(engine, settings), Metrics(engine, settings.names[0])
    keys = Keys(settings.keys)

    def guarded(name: str | None, handle: Handler, form: ErrorForm = in_openai_form) -> Handler:
        """A handler that checks the key, and writes errors in the form of a protocol.

        Args:
            name: of the endpoint; None for one whose requests are not told.
        """

        async def answer(request: Request) -> Answer:
            account: Account = request.state.account
            account.endpoint = name
            try:
                account.key = keys.begin(request.headers)
                return await handle(request)
            except ClientGone:
                return Response(status_code=499)
            except Exception as error:
                return _refusal(told(error, account.words), form)

        return answer

    def read(account: Account, body_type: type[Body], data: bytes) -> Body:
        fields = read_fields(data)
        account.words = body_type.words(fields)
        body = body_type.read(fields, strict=settings.strict)
        account.ignored = body.ignored
        most = settings.max_new_tokens
        if most is not None and isinstance(body, SamplingFields) and (body.cap is None or body.cap > most):
            account.words["max_new_tokens"] = "the server's max_new_tokens"
        return body

    def posted(answer: Callable[[Account, Wanted, bytes], Coroutine[Any, Any, Answer]]) -> Handler:
        """A handler that answers to a body. All that it does counts in the request's time."""

        async def handle(request: Request) -> Answer:
            wanted = served.under_way.request(settings.request_timeout)
            data = await wanted.result(read_body(request, settings.max_body_mb * 2**20))
            return await wanted.result(answer(request.state.account, wanted, data), request.receive)

        return handle

    def writing(body_type: type[Body], make: Callable[..., Writer]) -> Handler:
        """A handler that answers with texts, whole or as a stream."""

        async def answer(account: Account, wanted: Wanted, data: bytes) -> Answer:
            def made() -> Writer:
                return make(served, read(account, body_type, data))

            writer = await served.in_thread(made, size=len(data)) if len(data) > LARGE else made()
            account.texts = writer.texts = texts = await served.begin(writer.asked, len(data))
            if writer.stream:
                return EventStream(writer, wanted, account)
            try:
                return JSONResponse(writer.whole(await texts.all(), texts.prompt_tokens))
            finally:
                texts.cancel()

        return posted(answer)

    def computing(body_type: type[Body], compute: Callable[..., dict[str, Any]]) -> Handler:
        """A handler that answers without the engine."""

        async def answer(account: Account, wanted: Wanted, data: bytes) -> Answer:
            def work() -> Response:
                return JSONResponse(compute(served, read(account, body_type, data)))

            return await served.in_thread(work, size=len(data), embeds=issubclass(body_type, EmbedderBody))

        return posted(answer)

    async def health(request: Request) -> Response:
        request.state.account.endpoint = None  # it is neither counted nor logged
        state = served.health()
        if state == "ok" and served.draining and request.url.path != "/health/live":
            state = "draining"
        return JSONResponse({"status": state}, 200 if state == "ok" else 503)

    async def described(request: Request) -> Response:
        request.state.account.endpoint = None
        return JSONResponse(describe({path: (name, body) for path, name, body, *_ in (*TEXTS, *OTHERS)}))

    async def count(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(request: Request) -> Response:
        return JSONResponse(list_models(served))

    async def model(request: Request) -> Response:
        return JSONResponse(one_model(served, request.path_params["name"]))

    handlers = [(path, name, writing(body, ask), form) for path, name, body, ask, form in TEXTS]
    handlers += [(path, name, computing(body, answer), form) for path, name, body, answer, form in OTHERS]
    routes = [Route(path, guarded(name, handle, form), methods=["POST"]) for path, name, handle, form in handlers]
    routes += [
        Route("/v1/models", guarded("models", models)),
        Route("/v1/models/{name:path}", guarded("models", model)),
        *(Route(path, health) for path in ("/health", "/health/live", "/health/ready")),
        Route("/openapi.json", described),
        Route("/metrics", guarded(None, count)),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-ignored-fields", "retry-after"],  # else a page cannot read them
    )
    accounting = Middleware(Accounting, ended=ended, log_texts=settings.log_texts)
    application = Starlette(
        routes=routes,
        middleware=[accounting, cors] if settings.cors_origins else [accounting],
        exception_handlers={404: _no_route, 405: _no_route},
    )
    application.state.served, application.state.metrics = served, metrics
    return application


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    said = "the path does not take this method" if status == 405 else "the path does not exist"
    headers = dict(getattr(error, "headers", None) or {})
    return _refusal(ApiError(status, f"{request.method} {request.url.path}: {said}.", headers=headers), in_openai_form)


def _refusal(error: ApiError, form: ErrorForm) -> Response:
    return JSONResponse(form(error), error.status, error.headers)
