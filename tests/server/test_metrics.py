"""Health and metrics show what the engine does; the tests control its clock and its steps."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import gen
from gen.loop import engine_thread
from gen.server import app, metrics
from tests.helpers.engines import FailingModel, GatedModel
from tests.server.client import Client


def numbers(client: Client) -> dict[str, float]:
    """All metrics by name and endpoint."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").body.decode()):
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
        client = Client(app(engine, stall_timeout=10))
        now = 1000.0
        assert client.get("/health").json == {"status": "ok"}  # there is nothing to do
        streams = [engine.submit("a"), engine.submit("b")]
        assert model.begun.acquire(timeout=60)
        now += 11
        reply = client.get("/health")
        assert (reply.status, reply.json) == (503, {"status": "stalled"})
        told = numbers(client)
        assert (told["gen_running_rows"], told["gen_waiting_requests"], told["gen_progress_age_seconds"]) == (1, 1, 11)
        model.gate.release()
        assert model.begun.acquire(timeout=60)
        assert client.get("/health").status == 200
        model.open()
        assert ["".join(stream) for stream in streams] == ["hello"] * 2
        told = numbers(client)
        assert (told["gen_generated_tokens_total"], told["gen_prompt_tokens_total"]) == (10, 2)
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


def test_streams_are_timed_by_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(metrics, "monotonic", lambda: now)
    model: Any = GatedModel("hello")
    with gen.Engine(model) as engine:
        client = Client(app(engine))

        async def run() -> None:
            nonlocal now
            fields = {"model": "gen", "prompt": "x", "stream": True, "max_tokens": 9}
            asking = asyncio.create_task(client.send("POST", "/v1/completions", fields))
            while not model.begun.acquire(blocking=False):  # the request has come, and its first step has begun
                await asyncio.sleep(0)
            now = 3.0
            for _ in range(4):
                model.gate.release()
                while not model.begun.acquire(blocking=False):
                    await asyncio.sleep(0)
            model.open()
            assert (await asking).events[-1] == "[DONE]"

        asyncio.run(run())
        told = numbers(client)
    assert told["gen_requests_total completions 200"] == 1
    assert told["gen_time_to_first_token_seconds_count completions"] == 1
    assert 0 <= told["gen_time_to_first_token_seconds_sum completions"] <= 3
    assert told["gen_time_between_tokens_seconds_count completions"] == 1
    assert 0 <= told["gen_time_between_tokens_seconds_sum completions"] <= 0.75
