"""Whether jobs survive when workers and drivers are killed with SIGKILL at random moments, run after run.

    python -m benchmarks.batch_kills --runs 100

Each run is one job of `gen batch run` on two processes. Two workers and the driver are killed, at random moments
between the first part and the end of an undisturbed job; then the driver is started again. In the end every row is
there once, and all parts are byte for byte those of one undisturbed process. With `--executor ray` the workers are
actors of a cluster of two nodes with a CPU each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import publish, read_arguments

ROWS, ROWS_AT_ONCE, ROWS_A_SHARD = 48, 2, 4
KILLS = ("worker", "worker", "driver")  # in each run
_WORKER = {"local": b"", "ray": b"ray::Actor"}  # what a worker's command begins with


@dataclass
class Kills:
    """Starts jobs in a folder, and kills their workers and drivers.

    Attributes:
        executor: the jobs' executor.
        options: the command line options that name the executor.
        killed: how many of each kind were killed.
    """

    folder: Path
    executor: str
    options: Sequence[str]
    draw: random.Random
    killed: Counter[str] = field(default_factory=Counter)

    def begin(self, out: str, options: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a driver."""
        settings = ["--batch-size", ROWS_AT_ONCE, "--part-rows", ROWS_A_SHARD, "--seed", 5]
        command = [sys.executable, "-m", "gen", "batch", "run", "rows.jsonl", out, *map(str, settings), *options]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.folder, stdout=quiet, stderr=quiet)

    def time_one(self, out: str) -> tuple[float, float]:
        """Seconds to the first part and to the end of a job that nothing disturbs."""
        begin, driver = time.monotonic(), self.begin(out, self.options)
        while driver.poll() is None and not parts(self.folder / out):
            time.sleep(0.02)
        first = time.monotonic() - begin
        assert driver.wait() == 0
        return first, time.monotonic() - begin

    def disturb(self, out: str, first: float, last: float) -> None:
        """Run a job to its end, killing on the way."""
        plan = sorted((self.draw.uniform(first, last), kind) for kind in KILLS)
        begin, driver = time.monotonic(), self.begin(out, self.options)
        for moment, kind in plan:
            time.sleep(max(0.0, begin + moment - time.monotonic()))
            if kind == "worker" and (workers := self._workers(driver.pid)):
                self._kill(self.draw.choice(workers), kind)
            elif kind == "driver" and driver.poll() is None:
                self._kill(driver.pid, kind)
                driver.wait()
                driver = self.begin(out, self.options)
        assert driver.wait() == 0, f"{out}: exit code {driver.returncode}"

    def _kill(self, pid: int, kind: str) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
            self.killed[kind] += 1
        except ProcessLookupError:
            pass  # it has ended by itself

    def _workers(self, driver: int) -> list[int]:
        """The workers of a driver."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if command.startswith(_WORKER[self.executor]) and (parent == driver or self.executor == "ray"):
                found.append(int(path.name))
        return found


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.jsonl"))}


def main() -> None:
    given = read_arguments(__doc__, runs=100, executor={"choices": [*_WORKER], "default": "local"}, seed=1)
    os.environ["OMP_NUM_THREADS"] = "1"
    options = ["--devices", "cpu,cpu"]
    if given.executor == "ray":
        options = ["--executor", "ray", "--ray-address", _cluster()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": f"Once upon a time {number}", "max_new_tokens": 4 + number} for number in range(ROWS)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        kills = Kills(folder, given.executor, options, random.Random(given.seed))
        assert kills.begin("quiet", ["--devices", "cpu"]).wait() == 0
        expected = parts(folder / "quiet")
        seconds = kills.time_one("timed")
        for number in range(given.runs):
            out = folder / f"out{number}"
            kills.disturb(out.name, *seconds)
            assert parts(out) == expected, f"run {number} has other parts"
            print(f"run {number + 1}: {len(expected)} parts are equal; so far {dict(kills.killed)} killed", flush=True)
    equal = {"runs": given.runs, "runs with equal parts": given.runs, "parts of a run": len(expected)}
    publish(given, executor=given.executor, **equal, killed=dict(kills.killed))


def _cluster() -> str:
    """The address of a cluster of two nodes on this machine."""
    import ray.cluster_utils

    made = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    return str(made.address)


if __name__ == "__main__":
    main()
