"""Workers are processes of their own: whichever is killed, and whenever, the job ends as if nothing had happened."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gen
from gen.offline.executors.processes import Processes, WorkerProcess
from tests.offline.helpers import read_parts, write_rows

PROGRAM = """
import sys
from pydantic import BaseModel
import gen
from shapes import Person

class Here(BaseModel):
    name: str

def run(kind):
    return gen.run_batch("rows.jsonl", "out", model="demo", output_type=kind, batch_size=2, part_rows=2, seed=7,
                         devices=["cpu"], progress=False, sampler=["multinomial", {"temperature": 0.5}])

try:
    run(Here)
except gen.ArgumentError as error:
    print(error)
report = run(Person)
print(report.rows, report.failed, len(report.parts), "torch" in sys.modules)
"""
SHAPES = """
from pydantic import BaseModel

class Person(BaseModel):
    name: str
    age: int
"""
# In a worker: once for each line of the plan, before or after the n-th part is renamed, kill the worker or the driver.
FAULTS = """
import os, signal, sys
from pathlib import Path

if "gen.offline.worker" in sys.orig_argv:
    plan, replace = Path("plan"), os.replace
    with open("pids", "a") as file:
        print(os.getpid(), file=file)

    def replaced(source, target):
        kill = None
        if Path(target).suffix == ".jsonl" and plan.exists():
            lines = plan.read_text().splitlines()
            part, when, kill = lines[0].split()
            if Path(target).stem != part:
                kill = None
            else:
                plan.write_text("\\n".join(lines[1:])) if lines[1:] else plan.unlink()
        pid = {"worker": os.getpid(), "driver": os.getppid(), None: None}[kill]
        if pid and when == "before":
            os.kill(pid, signal.SIGKILL)
        replace(source, target)
        if pid and when == "after":
            os.kill(pid, signal.SIGKILL)

    os.replace = replaced
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), str(Path(gen.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],  # as in a notebook: a child can import nothing as __main__
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended that is no child of the test."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(60_000), "a worker outlives its driver"
    os.close(descriptor)


def test_workers_on_one_cpu_share_what_cores_and_quota_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("gen.runtime.cpu_threads.usable", lambda: 6)
    asked: list[Any] = [None, ["cpu"], ["cuda:0", "cpu"], ["cpu"] * 2, ["cpu"] * 9]
    assert [Processes(devices).threads for devices in asked] == [6, 6, 6, 3, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert Processes(["cpu", "cpu"]).threads == 2


def test_sets_have_one_order_in_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(f"""#!/bin/sh
exec "{sys.executable}" -c "import json; print(json.dumps(dict(order=[*set('abcdefgh')])))"
""")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    orders = []
    for seed in "123":
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        worker = WorkerProcess()
        orders.append(worker.ask()["order"])
        worker.end()
    assert orders[1:] == orders[:1] * 2


def test_ctrl_c_does_not_reach_a_worker_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -INT $$\nread -r asked\necho '{}'\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    worker = WorkerProcess()
    assert worker.ask() == {}
    worker.end()


@pytest.mark.slow
def test_workers_and_drivers_that_are_killed_cost_nothing(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "Describe Ada as JSON.\n", "id": f"row {number}"} for number in range(5)]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    (tmp_path / "plan").write_text("part-00000 after worker\npart-00001 before driver")
    ends: list[subprocess.CompletedProcess[str]] = []
    while (tmp_path / "plan").exists() or not ends or ends[-1].returncode < 0:
        ends.append(run(tmp_path))
        assert ends[-1].returncode in (0, -9), ends[-1].stderr
    assert [end.returncode for end in ends] == [-9, 0]
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    for pid in pids:
        wait_for_end(pid)
    assert len(pids) == len(set(pids)) == 3
    refused, told = ends[-1].stdout.splitlines()
    assert "workers import the output type, and __main__.Here cannot be imported: move it to the top" in refused
    assert told == "5 0 3 False"  # the driver has no torch
    assert "a worker of cpu was killed by SIGKILL, in part" in ends[0].stderr
    results = read_parts(sorted((tmp_path / "out").glob("part-*.jsonl")))
    assert [result["id"] for result in results] == [row["id"] for row in rows]
    seeds = [result["seed"] for result in results]
    schema = json.loads((tmp_path / "out" / "manifest.json").read_text())["schema"]
    warm = gen.samplers.multinomial(temperature=0.5)
    assert [result["value"] for result in results] == gen.generate(
        gen.load("demo"), [row["prompt"] for row in rows], gen.json_schema(schema), seed=seeds, sampler=warm
    )
