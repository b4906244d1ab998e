"""`make gpu`: what it says without a GPU, that its steps run on virtual ones, and that its report has all results."""

import json
import os
import runpy
import shlex
import subprocess
import sys
from concurrent import futures
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import running, tests
from benchmarks.gpu.running import Step
from benchmarks.gpu.tests import gpu_tests
from tests.conftest import LEFT_OUT
from tests.helpers.forked import Forked, run_module
from virtual_gpus import virtual_gpus

ROOT = Path(__file__).parents[2]
PROGRAM = Path(command.__file__).parent


def test_without_a_gpu_it_says_so_and_exits_with_0(tmp_path: Path) -> None:
    """The program that `make gpu` would start runs in a fork."""
    command = ["make", "--no-print-directory", "-n", "gpu", f"PYTHON={sys.executable}", f"OUT={tmp_path / 'out'}"]
    line = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    path, python, option, module, *arguments = shlex.split(line)
    assert (path, python, option, ROOT / module.replace(".", "/")) == (
        "PYTHONPATH=.:virtual_gpus/src",
        sys.executable,
        "-m",
        PROGRAM,
    )

    def program() -> None:
        os.chdir(ROOT)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    code, stdout, stderr = Forked(program).end()
    assert code == 0, stderr
    assert "finds no CUDA device here: nothing to do." in stdout
    assert not (tmp_path / "out").exists()


def test_the_report_has_what_came_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device is simulated. The steps are real processes; one of them is killed together with its children."""
    write = "import sys; open(sys.argv[1], 'w').write('{\"texts\": 1}')"
    for_ever = "import threading; threading.Event().wait()"
    waits = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {for_ever!r}])"
    made = [
        Step("smoke", ("-c", "print('said'); raise SystemExit(3)"), 60),
        Step("tests", ("-c", write, "{json}"), 60),
        Step("decode", ("-c", waits), 0),
    ]
    monkeypatch.setattr(command, "steps", lambda small: made)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    folder = tmp_path / "a" / "b"
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(folder)])
    assert command.main() == 1
    assert "failed: smoke, decode" in capsys.readouterr().out
    report = json.loads((folder / "gpu.json").read_text())
    assert {step["name"]: step["code"] for step in report["steps"]} == {"smoke": 3, "tests": 0, "decode": None}
    assert report["tests"] == {"texts": 1} and "torch" in report["machine"]
    assert (folder / "smoke.log").read_text() == "said\n"


def test_all_steps_together_end_within_ten_minutes(tmp_path: Path) -> None:
    assert running.LIMIT < 600
    seconds = {step.name: step.seconds for step in running.steps()}
    assert seconds == {"smoke": 60, "tests": 180, "attention": 60, "profiles": 60, "decode": 180}
    late = Step("late", ("-c", "import threading; threading.Event().wait()"), 60)
    assert running.run(late, tmp_path, left=-1.0).code is None
    assert any("tests/models/exllama" in step.arguments for step in running.exllama_steps())


def test_a_file_that_fails_runs_again_with_launches_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's process is simulated: the first file's tests pass, the second's do not."""
    ran: list[tuple[str, dict[str, str]]] = []

    def run(path: str, settings: dict[str, str], folder: Path, end: float) -> int:
        ran.append((path, settings))
        return int(path == tests._SMALL[1])

    monkeypatch.setattr(tests, "run", run)
    monkeypatch.setattr(
        sys, "argv", ["tests", "--small", "--out", str(tmp_path), "--json", str(tmp_path / "tests.json")]
    )
    assert tests.main() == 1
    passes, fails = tests._SMALL
    assert sorted(ran[:2]) == sorted([(passes, {}), (fails, {})])
    assert ran[2:] == [(fails, {"CUDA_LAUNCH_BLOCKING": "1"})]
    found = json.loads((tmp_path / "tests.json").read_text())
    assert found == {passes: {"code": 0}, fails: {"code": 1}, f"{fails}, blocking": {"code": 1}}


def test_every_file_with_a_test_for_a_gpu_is_run(request: pytest.FixtureRequest) -> None:
    """The oracle is pytest's own marker, on all tests that were collected together with this one."""
    collected = [*request.session.items, *request.config.stash[LEFT_OUT]]
    marked = {item.path.relative_to(ROOT).as_posix() for item in collected if item.get_closest_marker("gpu")}
    found = gpu_tests()
    assert {path for path in marked if not path.startswith("tests/models/exllama")} <= set(found)
    assert {"tests/loop/replay/test_cuda_graphs.py", "tests/virtual_gpus/syncs/test_no_host_sync.py"} <= set(found)


class Forks(subprocess.Popen[bytes]):
    """As Popen, but each process is a fork, which imports nothing anew, and has ended once it is made."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._done = run_module(command, **options)
        os.write(options["stdout"].fileno(), f"{self._done.stdout}{self._done.stderr}".encode())

    def wait(self, timeout: float | None = None) -> int:
        return self._done.returncode


@pytest.mark.slow
def test_every_step_runs_on_virtual_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes are forks; files of tests run in turn, since a thread that forks may end the process."""
    monkeypatch.setattr(subprocess, "Popen", Forks)
    monkeypatch.setattr(subprocess, "run", run_module)
    monkeypatch.setattr(futures, "ThreadPoolExecutor", lambda count: nullcontext(SimpleNamespace(map=map)))
    monkeypatch.setattr(sys, "argv", ["gpu", "--small", "--out", str(tmp_path)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with virtual_gpus(1):
        code = command.main()
    logs = {path.name: path.read_text()[-2000:] for path in tmp_path.rglob("*.log")}
    assert code == 0, logs
    report: dict[str, Any] = json.loads((tmp_path / "gpu.json").read_text())
    assert [step["name"] for step in report["steps"]] == ["smoke", "tests", "attention", "profiles", "decode"]
    assert {"texts: greedy", "texts: beams", "recovery", "memory", "captures a call"} <= report["smoke"].keys()
    assert report["smoke"]["captures a call"][1:] == [0, 0]
    [refused] = report["smoke"]["recovery"]["refused"]
    assert refused.startswith("CaptureFailed: ")
    junit = [ElementTree.parse(path).getroot() for path in (tmp_path / "tests").glob("*.xml")]
    assert len(junit) == 2 and sum(int(suite.get("tests", 0)) for root in junit for suite in root) == 10
    assert report["attention"]["1 x 64"]["as chosen"]["us"] > 0
    assert report["profiles"].keys() == {"gen", "gen without graphs", "transformers"}
    steps = [report["decode"]["tiny: 1 x 40"], report["decode"]["135m: 32 x 4096, cuDNN last"]]
    for made in steps:
        assert all(made[name] > 0 for name in ("gen", "gen without graphs", "transformers"))
    assert report["decode"]["samplers: 2 x 300 float32"]["torch: greedy"] > 0
