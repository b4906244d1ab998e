"""`benchmarks.peer_suites` reports how other projects' tests run on virtual GPUs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peer_outcomes, peer_suites
from tests.helpers.forked import run_module

TESTS = """
import pytest, torch

@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two():
    assert torch.ones(1, device="cuda:1").is_cuda

def test_no_gpu():
    assert not torch.cuda.is_available(), "a GPU"
"""


def test_kept_outcomes_are_gone_on_with_and_only_what_failed_is_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.peer_suites.subprocess.run", run_module)
    folder, keep = tmp_path / "tests", tmp_path / "kept"
    (folder / "more").mkdir(parents=True)
    keep.mkdir()
    (folder / "more" / "test_theirs.py").write_text(TESTS)
    with_them, without_them = (keep / f"theirs-more-test_theirs.{side}" for side in ("virtual", "without"))
    with_them.write_text('["test_theirs.py::test_no_gpu", "started", ""]\n')  # this test ended the process
    arguments = [f"theirs={folder}", "--files", "more/test_theirs.py", "--failed", "--keep", str(keep)]
    monkeypatch.setattr(sys, "argv", ["peer_suites", *arguments])
    peer_suites.main()
    outcomes = {test: outcome for test, (outcome, _) in peer_outcomes.read(with_them).items()}
    assert outcomes == {"test_theirs.py::test_no_gpu": "failed", "test_theirs.py::test_two": "passed"}
    assert peer_outcomes.read(without_them) == {"test_theirs.py::test_no_gpu": ("passed", "")}
    assert "test_no_gpu: ended the process" in capsys.readouterr().out


def test_outcomes_with_and_without_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests with virtual GPUs run in a new process, as always; those without in a fork."""
    new = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        without = "pytest" in command and "--virtual-gpus" not in command
        return run_module(command, **options) if without else new(command, **options)

    monkeypatch.setattr("benchmarks.peer_suites.subprocess.run", run)
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_theirs.py").write_text(TESTS)
    report = tmp_path / "report.json"
    monkeypatch.setattr(sys, "argv", ["peer_suites", f"theirs={folder}", "--json", str(report)])
    peer_suites.main()
    found = json.loads(report.read_text())
    assert [(row["passed"], row["failed"], row["skipped"]) for row in found["runs"]] == [(1, 0, 1), (1, 1, 0)]
    assert list(found["suites"]["theirs"]["fails with virtual GPUs alone"]) == ["test_theirs.py::test_no_gpu"]
    assert "2 virtual GPUs" in capsys.readouterr().out


def test_a_file_none_of_whose_tests_begins_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pytest ends with 1, as after a test that fails, where it refuses a hook of the folder's conftest.py."""
    monkeypatch.setattr("benchmarks.peer_suites.subprocess.run", run_module)
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text("def pytest_collection_modifyitems(items, no_such_argument): pass\n")
    (folder / "test_theirs.py").write_text(TESTS)
    monkeypatch.setattr(sys, "argv", ["peer_suites", f"theirs={folder}"])
    peer_suites.main()
    told = capsys.readouterr().out
    assert "test_theirs.py::: the process ended before its tests did" in told
    assert "no_such_argument" in told
