"""Receipts of jobs and of a server: each text that they give is verified by the model that made it."""

from pathlib import Path
from typing import Any

import pytest

import gen
from gen.server import app
from tests.offline.helpers import WorkerHere, write_rows
from tests.server.client import Client


def test_a_job_writes_receipts(whole_demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", WorkerHere)
    source = write_rows(tmp_path / "rows.jsonl", [{"prompt": "Once upon"}, {"prompt": ""}, {"prompt": [5, 10**6]}])
    for name, samples in (("one", 1), ("two", 2)):
        out = tmp_path / name
        sampler = gen.samplers.multinomial(samples, temperature=0.8)
        report = gen.run_batch(source, out, model="demo", sampler=sampler, max_new_tokens=9, receipts=True)
        [part] = report.parts
        receipts = gen.Receipt.load(part)
        assert len(receipts) == 2 * samples  # the last row has failed
        assert [one.kind for one in gen.verify(whole_demo, receipts)] == ["equal"] * len(receipts)
    bare = gen.run_batch(source, tmp_path / "bare", model="demo", max_new_tokens=9)
    with pytest.raises(gen.ArgumentError, match="line 1: the result has no receipt"):
        gen.Receipt.load(bare.parts[0])


def test_a_server_gives_receipts(whole_demo: Any) -> None:
    with gen.Engine(whole_demo, rows=4) as engine:
        client = Client(app(engine, names=["demo"]))
        text: dict[str, Any] = {"prompt": ["Once", "A dog"], "n": 2, "max_tokens": 9, "return_receipt": True}
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "stop": ["e"]}
        chat |= {"return_receipt": True, "response_format": {"type": "json_object"}}
        choices = client.post("/v1/completions", text).json["choices"]
        choices += client.post("/v1/chat/completions", chat).json["choices"]
        receipts = [gen.Receipt.read(one["receipt"]) for one in choices]
        assert [one.text for one in receipts[:4]] == [one["text"] for one in choices[:4]]
        for path, fields in (("/v1/completions", text), ("/v1/chat/completions", chat)):
            events = client.post(path, {**fields, "stream": True}).events
            chosen = [one["choices"][0] for one in events if isinstance(one, dict)]
            receipts += [gen.Receipt.read(one["receipt"]) for one in chosen if "receipt" in one]
        assert len(receipts) == 10
        assert [one.kind for one in gen.verify(whole_demo, receipts)] == ["equal"] * 10
        del text["return_receipt"]
        assert "receipt" not in client.post("/v1/completions", text).json["choices"][0]
