"""Whether jobs survive: workers and drivers killed with SIGKILL at random moments, run after run.

    python -m benchmarks.batch_kills --runs 100

Each run is one job of `gen batch run` on two processes. Two workers and the driver are killed, at moments drawn at
random over the time that a quiet job takes; the driver is then begun again. In the end every row is there once, and all
parts are byte for byte those of one process that nobody disturbed. With `--engine ray` the workers are actors of a
cluster on this machine.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS, ROWS_AT_ONCE, ROWS_A_SHARD = 96, 4, 8
KILLS = ("worker", "worker", "driver")  # of a run
OWN = {"local": "gen.offline.worker.process", "ray": "ray::MapWorker"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--engine", choices=OWN, default="local")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": f"Once upon a time {number}", "max_new_tokens": 8 + number} for number in range(ROWS)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        engine = ["--engine", "ray"] if arguments.engine == "ray" else ["--devices", "cpu,cpu"]
        begun(folder, "quiet", ["--devices", "cpu"]).wait()
        expected = parts(folder / "quiet")
        begin = time.monotonic()
        begun(folder, "timed", engine).wait()
        seconds = time.monotonic() - begin
        kills = dict.fromkeys(KILLS, 0)
        for number in range(arguments.runs):
            disturb(folder, f"out{number}", engine, OWN[arguments.engine], draw, seconds, kills)
            assert parts(folder / f"out{number}") == expected, f"run {number} has other parts"
            assert not list((folder / f"out{number}").glob("pieces/*")), f"run {number} has left pieces"
            print(f"run {number + 1}: {len(expected)} parts are equal; so far {kills} killed", flush=True)


def begun(folder: Path, out: str, engine: list[str]) -> subprocess.Popen[bytes]:
    """A driver."""
    options = ["--rows", ROWS_AT_ONCE, "--shard-rows", ROWS_A_SHARD, "--seed", 5]
    command = [sys.executable, "-m", "gen", "batch", "run", "rows.jsonl", out, *map(str, options), *engine]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)  # type: ignore[call-overload,no-any-return]


def disturb(
    folder: Path,
    out: str,
    engine: list[str],
    own: str,
    draw: random.Random,
    seconds: float,
    kills: dict[str, int],
) -> None:
    """Run a job to its end, killing on the way."""
    plan = sorted((draw.random() * seconds, kind) for kind in KILLS)
    begin, driver = time.monotonic(), begun(folder, out, engine)
    for moment, kind in plan:
        time.sleep(max(0.0, begin + moment - time.monotonic()))
        workers = children(driver.pid, own)
        if kind == "worker" and workers:
            kill(draw.choice(workers), kind, kills)
        elif kind == "driver" and driver.poll() is None:
            kill(driver.pid, kind, kills)
            driver.wait()
            driver = begun(folder, out, engine)
    assert driver.wait() == 0, f"{out}: exit code {driver.returncode}"


def kill(pid: int, kind: str, kills: dict[str, int]) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        kills[kind] += 1
    except ProcessLookupError:
        pass  # it has ended by itself


def children(driver: int, own: str) -> list[int]:
    """The workers of a driver, by what they are called."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if own in command and (parent == driver or own.startswith("ray")):
            found.append(int(path.name))
    return found


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.jsonl"))}


if __name__ == "__main__":
    main()
