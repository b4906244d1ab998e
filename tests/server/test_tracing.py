"""Spans of requests: their names and numbers, whose child they are, and that they are exported."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import gen
from gen.server.accounts import Account
from gen.server.tracing import record, tracer_of_environment
from tests.server.client import Client

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(engine: gen.Engine, exported: InMemorySpanExporter) -> Client:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Client(gen.server.app(engine, names=["tiny"], tracer=provider.get_tracer("gen")))


def only(exported: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, object]]:
    [span] = exported.get_finished_spans()
    return span, dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_has_the_tokens_and_times_of_its_texts(
    stream: bool, client: Client, engine: gen.Engine, exported: InMemorySpanExporter
) -> None:
    asked = {"prompt": "One", "n": 2, "max_tokens": 3, "ignore_eos": True, "temperature": 1, "stream": stream}
    assert client.post(TEXT, asked, x_request_id="mine", traceparent=PARENT).status == 200
    span, told = only(exported)
    assert (span.name, span.kind, span.status.status_code) == (
        "text_completion tiny",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    assert span.parent is not None and span.context is not None
    assert f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}-01" == PARENT
    assert span.context.trace_id == span.parent.trace_id
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": len(engine.model.tokenizer.encode("One")),
        "gen_ai.usage.output_tokens": 6,
        "request.id": "mine",
        "http.response.status_code": 200,
    }
    assert told.items() >= expected.items()
    first, (start, end) = told["gen_ai.server.time_to_first_token"], (span.start_time or 0, span.end_time or 0)
    assert isinstance(first, float) and 0 < first <= (end - start) / 1e9
    assert "One" not in span.to_json()


def test_a_refused_request_is_an_error_without_a_parent(client: Client, exported: InMemorySpanExporter) -> None:
    assert client.post(CHAT, {"messages": []}).status == 400
    span, told = only(exported)
    assert (span.name, span.parent, span.status.status_code) == ("chat tiny", None, StatusCode.ERROR)
    assert told["error.type"] == "400"


def test_other_requests_have_no_span(client: Client, exported: InMemorySpanExporter) -> None:
    for path in ("/health", "/v1/models", "/nothing"):
        client.get(path)
    assert client.post("/tokenize", {"prompt": "One"}).status == 200
    assert exported.get_finished_spans() == ()


def test_spans_are_exported_in_the_name_of_gen(exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen.server.tracing.OTLPSpanExporter", lambda: exported)  # which reads the environment
    tracer = tracer_of_environment()
    record(tracer, Account(id="mine", method="POST", endpoint="chat", status=499), "tiny")
    tracer.span_processor.shutdown()  # type: ignore[attr-defined]  # sends what is left
    span, _ = only(exported)
    assert (span.name, span.resource.attributes["service.name"]) == ("chat tiny", "gen")
