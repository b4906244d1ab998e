"""Spans of OpenTelemetry, one for each request that texts are made for, with the names of its `gen_ai.*` conventions.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai
"""

import time
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from gen.server.accounts import Account

_OPERATIONS = {"chat": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion"}
_NAMES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "first_token": "gen_ai.server.time_to_first_token",
    "queue": "queue.seconds",
    "id": "request.id",
    "key": "api_key.name",
    "status": "http.response.status_code",
}


def tracer_of_environment() -> Tracer:
    """A tracer that sends spans to where `OTEL_EXPORTER_OTLP_ENDPOINT` says, in a thread of its own."""
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "gen"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("gen")


def record(tracer: Tracer, account: Account, model: str) -> None:
    """Make the span of a request that has ended: a child of the client's span, if its `traceparent` names one.

    Args:
        model: the name that the server has for it.
    """
    operation = _OPERATIONS.get(account.endpoint or "")
    if operation is None:
        return
    told = account.told()
    attributes: dict[str, Any] = {_NAMES[name]: value for name, value in told.items() if name in _NAMES}
    attributes |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "gen", "gen_ai.request.model": model}
    now, failed = time.time_ns(), account.status >= 400
    span = tracer.start_span(
        f"{operation} {model}",
        context=extract(account.trace),
        kind=SpanKind.SERVER,
        attributes=attributes | ({"error.type": str(account.status)} if failed else {}),
        start_time=now - int(account.seconds() * 1e9),
    )
    if failed:
        span.set_status(Status(StatusCode.ERROR))
    span.end(now)
