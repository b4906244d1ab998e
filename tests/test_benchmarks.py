"""The benchmarks run at small size and report what they promise; nothing here looks at times."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import samplers, throughput


def test_throughput_reports_every_program_and_leaves_out_devices_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, plot = tmp_path / "report.json", tmp_path / "plot.png"
    sizes = ["--batch", "1", "2", "--new-tokens", "4", "--rounds", "1"]
    outputs = ["--json", str(report), "--plot", str(plot)]
    monkeypatch.setattr(sys, "argv", ["throughput", "--devices", "cuda:63", "cpu", *sizes, *outputs])
    throughput.main()
    captured = capsys.readouterr()
    assert "left out: device cuda:63 does not exist" in captured.err
    assert "batch 2, same seed: one device only" in captured.out
    rows = json.loads(report.read_text())["rows"]
    assert [(row["batch"], row["program"]) for row in rows] == [
        (batch, program) for batch in (1, 2) for program in ("gen", "transformers", "bare")
    ]
    for row in rows:
        assert row["program"] in captured.out
        assert row["tokens/s"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_throughput_runs_with_random_weights_and_a_vocabulary_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.json"
    sizes = ["--vocab", "1001", "--batch", "2", "--new-tokens", "3", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["throughput", *sizes, "--json", str(report)])
    throughput.main()
    assert [row["program"] for row in json.loads(report.read_text())["rows"]] == ["gen", "transformers", "bare"]


def test_samplers_reports_every_case_of_every_shape_with_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, tables, plot = tmp_path / "report.json", tmp_path / "tables.md", tmp_path / "plot.png"
    shapes = ["--batch", "4", "--vocab", "1001", "--dtype", "float32", "bfloat16", "--kind", "zipf", "demo"]
    outputs = ["--json", str(report), "--markdown", str(tables), "--plot", str(plot)]
    monkeypatch.setattr(samplers, "WARM_UP", 0)
    monkeypatch.setattr(sys, "argv", ["samplers", *shapes, "--threads", "1", "--rounds", "1", *outputs])
    samplers.main()
    rows = json.loads(report.read_text())["rows"]
    assert {(row["logits"], row["dtype"], row["vocab"]) for row in rows} == {
        (kind, dtype, vocab) for kind, vocab in (("zipf", 1001), ("demo", 2000)) for dtype in ("float32", "bfloat16")
    }
    cases = {row["case"] for row in rows}
    for name in ("temperature", "top-k", "top-p", "min-p", "temperature, top-k, top-p"):
        assert {
            f"gen: {name}",
            f"gen, a value each row: {name}",
            f"torch path: {name}",
            f"transformers: {name}",
        } <= cases
    assert {"torch.argmax", "read", "gen: greedy", "gen: greedy, ids alone", "torch race: temperature"} <= cases
    printed = capsys.readouterr().out
    for row in rows:
        assert row["case"] in printed and row["case"] in tables.read_text()
        assert row["memory"] > 0 or row["case"] in ("torch.argmax", "read"), row
    assert plot.read_bytes().startswith(b"\x89PNG")
