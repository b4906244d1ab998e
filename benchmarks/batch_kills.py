"""Whether jobs survive when workers and drivers are killed with SIGKILL at random moments, run after run.

    python -m benchmarks.batch_kills --runs 100

Each run is one job of `gen batch run` on two processes. Two workers and the driver are killed, at random moments within
the time that an undisturbed job takes; then the driver is started again. In the end every row is there once, and all
parts are byte for byte those of one undisturbed process.

Most of a process's time goes into importing torch. So the processes are forks of this one, which has imported it; their
code, pipes and deaths are the same as with the command. With `--start command` they are started as the command does it.
With `--executor ray` the workers are actors of a cluster of two nodes with a CPU each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from benchmarks.measuring import publish, read_arguments
from tests.helpers import forked

ROWS, ROWS_AT_ONCE, ROWS_A_SHARD = 48, 2, 4
KILLS = ("worker", "worker", "driver")  # in each run
_WORKER = {"local": b"", "ray": b"ray::Actor"}  # what a worker's command begins with


class Forked:
    """A process that runs a function, with the part of `subprocess.Popen` that drivers and workers need.

    Args:
        pipes: whether the parent writes its stdin and reads its stdout.
    """

    def __init__(self, run: Callable[[], object], *, pipes: bool = False) -> None:
        self.returncode: int | None = None
        theirs = [os.open(os.devnull, os.O_RDWR)] * 2
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        if pipes:
            (asked, to), (back, answers) = os.pipe(), os.pipe()
            theirs, self.stdin, self.stdout = [asked, answers], open(to, "w"), open(back)  # noqa: SIM115
        self._fork = forked.Forked(run, prepare=lambda: os.closerange(3, 1024), stdin=theirs[0], stdout=theirs[1])
        self.pid = self._fork.pid
        for descriptor in set(theirs):
            os.close(descriptor)

    def poll(self) -> int | None:
        if self.returncode is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.wait()
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode, _, _ = self._fork.end()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Kills:
    """Starts jobs in a folder, and kills their workers and drivers.

    Attributes:
        engine: the jobs' engine.
        options: the command line options that name the engine.
        forks: whether processes are forks of this one.
        killed: how many of each kind were killed.
    """

    folder: Path
    engine: str
    options: Sequence[str]
    forks: bool
    draw: random.Random
    killed: Counter[str] = field(default_factory=Counter)

    def begin(self, out: str, options: Sequence[str]) -> Any:
        """Start a driver."""
        settings = ["--batch-size", ROWS_AT_ONCE, "--part-rows", ROWS_A_SHARD, "--seed", 5]
        words = ["batch", "run", "rows.jsonl", out, *map(str, settings), *options]
        if self.forks:
            return Forked(partial(_run_command, self.folder, words))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-m", "gen", *words], cwd=self.folder, **quiet)  # type: ignore[call-overload]

    def disturb(self, out: str, seconds: float) -> None:
        """Run a job to its end, killing on the way."""
        plan = sorted((self.draw.random() * seconds, kind) for kind in KILLS)
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
            if command.startswith(_WORKER[self.engine]) and (parent == driver or self.engine == "ray"):
                found.append(int(path.name))
        return found


def _run_command(folder: Path, words: list[str]) -> None:
    """Run the command with forks as its workers."""
    from gen.cli import main
    from gen.offline import worker
    from gen.offline.executors import processes
    from gen.offline.executors.processes import WorkerProcess

    class ForkedWorker(WorkerProcess):
        def __init__(self) -> None:
            self._process: Any = Forked(worker.main, pipes=True)

    vars(processes)["WorkerProcess"] = ForkedWorker
    os.chdir(folder)
    main(words)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.jsonl"))}


def main() -> None:
    given = read_arguments(
        __doc__,
        runs=100,
        executor={"choices": [*_WORKER], "default": "local"},
        start={"choices": ["fork", "command"], "default": "fork"},
        seed=1,
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    forks = given.executor == "local" and given.start == "fork"
    if forks:
        _import_all()
    options = ["--devices", "cpu,cpu"]
    if given.executor == "ray":
        options = ["--executor", "ray", "--ray-address", _cluster()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": f"Once upon a time {number}", "max_new_tokens": 4 + number} for number in range(ROWS)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        kills = Kills(folder, given.executor, options, forks, random.Random(given.seed))
        assert kills.begin("quiet", ["--devices", "cpu"]).wait() == 0
        expected = parts(folder / "quiet")
        begin = time.monotonic()
        assert kills.begin("timed", options).wait() == 0
        seconds = time.monotonic() - begin
        for number in range(given.runs):
            out = folder / f"out{number}"
            kills.disturb(out.name, seconds)
            assert parts(out) == expected, f"run {number} has other parts"
            print(f"run {number + 1}: {len(expected)} parts are equal; so far {dict(kills.killed)} killed", flush=True)
    equal = {"runs": given.runs, "runs with equal parts": given.runs, "parts of a run": len(expected)}
    started = "fork" if forks else "command"
    publish(given, executor=given.executor, start=started, **equal, killed=dict(kills.killed))


def _import_all() -> None:
    """What a worker imports, so that its forks need not.

    The lock of progress bars becomes each process's own. tqdm's is shared by forks: a driver that was killed while it
    held the lock would stop all drivers after it.
    """
    import transformers
    from tqdm import tqdm

    import gen.offline.worker

    tqdm.set_lock(threading.RLock())
    gen.load("demo", device="cpu")
    assert transformers and gen.offline.worker


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
