"""Jobs on a cluster of two nodes with a CPU each: if an actor, a node or the driver is killed, no row is lost."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gen
from tests.offline.helpers import read_parts, write_rows

# As in tests/offline/test_processes.py: once for each line of the plan, an actor kills a process at one of its parts.
FAULTS = """
import os, signal, sys
from pathlib import Path

folder = Path(__file__).parent
if "gen" in sys.orig_argv:
    (folder / "driver").write_text(str(os.getpid()))
elif any("default_worker.py" in word for word in sys.orig_argv):
    plan, replace = folder / "plan", os.replace

    def replaced(source, target):
        kill = None
        if Path(target).suffix == ".jsonl" and plan.exists():
            lines = plan.read_text().splitlines()
            part, kill = lines[0].split()
            if Path(target).stem != part:
                kill = None
            else:
                plan.write_text("\\n".join(lines[1:])) if lines[1:] else plan.unlink()
        if kill == "actor":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if kill == "node":
            os.kill(os.getppid(), signal.SIGKILL)
        elif kill == "driver":
            os.kill(int((folder / "driver").read_text()), signal.SIGKILL)

    os.replace = replaced
"""

# In an actor: die at the row whose id is "deadly".
DEADLY = """
import json, os, signal, sys

if any("default_worker.py" in word for word in sys.orig_argv):
    loads = json.loads

    def loaded(text, **more):
        found = loads(text, **more)
        if isinstance(found, dict) and found.get("id") == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    json.loads = loaded
"""


def run(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    words = ["rows.jsonl", "out", "--batch-size", 2, "--part-rows", 3, "--seed", 7, "--max-new-tokens", 12, *options]
    command = [sys.executable, "-m", "gen", "batch", "run", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_killed_actor_node_and_driver_cost_nothing(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    rows: list[dict[str, Any]] = [{"prompt": f"One {number}", "id": str(number), "n": number} for number in range(24)]
    write_rows(tmp_path / "rows.jsonl", rows)
    quiet = gen.run_batch(
        tmp_path / "rows.jsonl", tmp_path / "quiet", model="demo", batch_size=2, part_rows=3, seed=7, max_new_tokens=12
    )
    (tmp_path / "plan").write_text("part-00001 actor\npart-00003 driver\npart-00005 node")
    ends = [run(tmp_path, "--executor", "ray", "--ray-address", cluster.address)]
    while ends[-1].returncode < 0:
        ends.append(run(tmp_path, "--executor", "ray", "--ray-address", cluster.address))
    assert [end.returncode for end in ends] == [-9, 0], ends[-1].stderr
    assert not (tmp_path / "plan").exists()
    assert ends[-1].stdout.endswith(f"24 rows, 0 failed, {quiet.tokens} tokens\n")  # Ray prints there, too
    for part in quiet.parts:
        assert (tmp_path / "out" / part.name).read_bytes() == part.read_bytes()


def test_what_a_worker_of_ray_refuses_is_told(tmp_path: Path, cluster: Any) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"prompt": "x"}])
    address = ["--executor", "ray", "--ray-address", cluster.address]
    refused = run(tmp_path, *address, "--top-p", 7)
    assert (refused.returncode, "top_p must be" in refused.stderr) == (2, True)
    refused = run(tmp_path, *address, "--devices", "cuda:0")
    assert (refused.returncode, "each actor has a GPU that Ray chooses" in refused.stderr) == (2, True)


def test_a_row_that_kills_actors_gets_an_error_and_no_other_row_loses_its_text(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    rows = [{"prompt": f"One {number}", "id": "deadly" if number == 3 else str(number)} for number in range(6)]
    write_rows(tmp_path / "rows.jsonl", rows)
    quiet = gen.run_batch(
        tmp_path / "rows.jsonl", tmp_path / "quiet", model="demo", batch_size=2, part_rows=3, seed=7, max_new_tokens=12
    )
    ended = run(tmp_path, "--executor", "ray", "--ray-address", cluster.address)
    assert (ended.returncode, "1 of 6 rows failed" in ended.stderr) == (1, True), ended.stderr
    expected = read_parts(quiet.parts)
    results = read_parts(sorted((tmp_path / "out").glob("part-*.jsonl")))
    assert [one for one in results if one["id"] != "deadly"] == [one for one in expected if one["id"] != "deadly"]
    assert "while it ran this row alone" in results[3]["error"]
    assert "has died" in ended.stderr
