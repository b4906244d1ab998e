"""Health and metrics show what the engine does; the tests control its clock and its steps."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import gen
from gen.calls import streams
from gen.loop import engine_thread, feed
from gen.server import app
from tests.helpers.engines import FailingModel, GatedModel
from tests.server.client import Client, until


def numbers(application: Any) -> dict[str, float]:
    """All metrics of an application, by name and endpoint."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(application.state.metrics.text().decode()):
        for one in family.samples:
            found[
                " ".join([one.name, *(one.labels[key] for key in ("endpoint", "status", "le") if key in one.labels)])
            ] = one.value
    return found


def test_an_engine_that_does_not_get_on_is_unhealthy_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(engine_thread, "monotonic", lambda: now)
    model = GatedModel("hello")
    with gen.Engine(model, rows=1) as engine:
        application = app(engine, stall_timeout=10)
        client = Client(application)
        now = 1000.0
        assert client.get("/health").json == {"status": "ok"}  # there is nothing to do
        streams = [engine.submit("a"), engine.submit("b")]
        assert model.begun.acquire(timeout=60)
        now += 11
        reply = client.get("/health")
        assert (reply.status, reply.json) == (503, {"status": "stalled"})
        told = numbers(application)
        assert (told["vllm:num_requests_running"], told["vllm:num_requests_waiting"]) == (1, 1)
        assert told["gen_progress_age_seconds"] == 11
        model.gate.release()
        assert model.begun.acquire(timeout=60)
        assert client.get("/health").status == 200
        model.open()
        assert ["".join(stream) for stream in streams] == ["hello"] * 2
        told = numbers(application)
        assert (told["vllm:generation_tokens_total"], told["vllm:prompt_tokens_total"]) == (10, 2)
    assert (client.get("/health").status, client.get("/health").json) == (503, {"status": "closed"})


def test_an_engine_whose_loop_has_failed_is_unhealthy() -> None:
    model = FailingModel()
    engine = gen.Engine(model)
    stream = engine.submit("x")
    model.open()
    with pytest.raises(ZeroDivisionError):
        list(stream)
    reply = Client(app(engine)).get("/health")
    assert (reply.status, reply.json) == (503, {"status": "failed"})


@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_timed_whether_or_not_they_are_streamed(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    for module in (feed, engine_thread, streams):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    model: Any = GatedModel("hello")
    with gen.Engine(model) as engine:
        application = app(engine)

        async def run() -> None:
            nonlocal now
            fields = {"model": "gen", "prompt": "x", "stream": stream, "max_tokens": 9}
            asking = asyncio.create_task(Client(application).send("POST", "/v1/completions", fields))
            await until(lambda: model.begun.acquire(blocking=False))  # its first step has begun
            for _ in range(4):
                now += 3
                model.gate.release()
                await until(lambda: model.begun.acquire(blocking=False))
            now += 3
            model.open()
            assert (await asking).status == 200

        asyncio.run(run())
        told = numbers(application)
    assert told["gen_requests_total completions 200"] == 1
    for name in ("request_queue_time", "time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert told[f"vllm:{name}_seconds_count"] == 1
    assert told["vllm:request_queue_time_seconds_sum"] == 0
    assert 0 <= told["vllm:time_to_first_token_seconds_sum"] <= 3
    assert 2 <= told["vllm:inter_token_latency_seconds_sum"] <= 4
    assert (told["vllm:prefix_cache_queries_total"], told["vllm:prefix_cache_hits_total"]) == (1, 0)
