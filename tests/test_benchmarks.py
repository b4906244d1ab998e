"""The benchmarks run at small size and report what they promise; nothing here looks at times."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import throughput


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
