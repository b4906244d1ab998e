"""`make gpu`: what it says without a GPU, that its measures run, and that its report has whatever came of each step."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_cases
from benchmarks.gpu import Step
from gen.samplers.backends import torch_backend
from tests.conftest import LEFT_OUT

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def test_without_a_gpu_it_says_so_and_exits_with_0(tmp_path: Path) -> None:
    command = ["make", "gpu", f"PYTHON={sys.executable}", f"OUT={tmp_path / 'out'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "finds no CUDA device here: nothing to do." in done.stdout
    assert not (tmp_path / "out").exists()


def test_the_report_has_what_came_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device is played; the steps are real processes."""
    decode = [
        {"model": model, "program": program, "batch": batch, "ms/step": 2.0 / batch, "ms to read": 0.1}
        for model in ("demo", "1b")
        for program in ("gen", "transformers")
        for batch in (1, 8)
    ]
    samplers = [{"logits": "8 x 9", "case": "torch.argmax", "us": 3.0}, {"logits": "8 x 9", "case": "x", "error": "no"}]
    write = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    fail = "import os; print('said', os.environ['GEN_TRITON']); raise SystemExit(3)"
    made = [
        Step("tests", ("-c", fail), 60, {"GEN_TRITON": "1"}),
        Step("decode", ("-c", write, "{json}", json.dumps(decode)), 60),
        Step("samplers", ("-c", write, "{json}", json.dumps(samplers)), 60),
        Step("throughput", ("-c", "import threading; threading.Event().wait()"), 0),
    ]
    monkeypatch.setattr(gpu, "steps", lambda gpus: made)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "a" / "b")])
    assert gpu.main() == 1
    assert "failed: tests, throughput" in capsys.readouterr().out
    folder = tmp_path / "a" / "b"
    report = json.loads((folder / "gpu.json").read_text())
    assert {step["name"]: step["code"] for step in report["steps"]} == {
        "tests": 3,
        "decode": 0,
        "samplers": 0,
        "throughput": None,
    }
    assert report["steps"][0]["output"].strip() == "said 1"
    assert report["decode"] == decode and report["samplers"] == samplers and "torch" in report["machine"]
    assert sorted(path.name for path in folder.iterdir()) == ["decode.png", "gpu.json", "samplers.png"]
    assert (folder / "decode.png").read_bytes().startswith(b"\x89PNG")


def test_all_steps_together_end_within_ten_minutes() -> None:
    assert gpu.LIMIT < 600
    done = gpu.run(Step("late", ("-c", "import threading; threading.Event().wait()"), 60), Path("unused"), left=-1.0)
    assert done.code is None
    names = [step.name for step in gpu.steps(1)]
    assert names == list(dict.fromkeys(names)) and set(names) == {
        *("tests", "triton", "samplers", "decode", "throughput", "exllama", "stubs")
    }
    assert ("tests/models/exllama/test_on_a_gpu.py" in gpu.steps(1)[-1].arguments) and names[-2:] == [
        "exllama",
        "stubs",
    ]
    devices: list[Any] = [step.arguments for step in gpu.steps(2) if step.name == "throughput"]
    assert devices[0][-2:] == ("cuda:0", "cuda:1")


def test_every_file_with_a_test_for_a_gpu_is_run(request: pytest.FixtureRequest) -> None:
    """The oracle is pytest's own marker, of all tests that were collected beside this one."""
    collected = [*request.session.items, *request.config.stash[LEFT_OUT]]
    marked = {item.path for item in collected if item.get_closest_marker("gpu")}
    found = gpu.gpu_tests()
    assert {path.relative_to(ROOT).as_posix() for path in marked} <= set(found)
    assert {"tests/loop/replay/test_cuda_graphs.py", "tests/testing/syncs/test_no_host_sync.py"} <= set(found)


def test_decode_measures_every_program_against_the_time_to_read_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "decode.json"
    monkeypatch.setattr(gpu_cases, "COPIED", 2**16)
    sizes = ["--models", "demo", "--batch", "1", "2", "--new-tokens", "3", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu_cases", "decode", "--device", "cpu", *sizes, "--json", str(made)])
    gpu_cases.main()
    rows = json.loads(made.read_text())
    programs = ("gen", "gen without graphs", "transformers")
    assert [(row["batch"], row["program"]) for row in rows] == [(size, name) for size in (1, 2) for name in programs]
    for row in rows:
        assert row["weights in MB"] == pytest.approx(5.6, abs=0.5)  # 1.4 million float32
        expected = row["weights in MB"] / row["copied in GB/s"]
        assert row["ms to read"] == pytest.approx(expected, rel=0.05)
        assert row["time / read"] == pytest.approx(row["ms/step"] / row["ms to read"], rel=0.05)


def test_samplers_are_timed_and_what_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "samplers.json"

    def broken(*arguments: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(torch_backend, "most_likely", broken)
    monkeypatch.setattr(sys, "argv", ["g", "samplers", "--device", "cpu", "--vocab", "300", "--json", str(made)])
    gpu_cases.main()
    rows = {row["case"]: row for row in json.loads(made.read_text())}
    assert {"torch.argmax", "torch backend: temperature", "torch backend: temperature, top-k, top-p"} <= rows.keys()
    assert rows["torch backend: greedy"]["error"] == "RuntimeError: no such kernel"
    assert all(row["us"] > 0 for name, row in rows.items() if name != "torch backend: greedy")
