"""What a job's driver costs: its memory for a million rows, its CPU for each part, and what reading a part costs.

    python -m benchmarks.batch_driver --rows 1000000 --workers 1 10 100 1000

The workers are only simulated, by threads that wait and then answer as a worker does. The driver runs in a process
without torch. The first and the last part are read equally often, in turns.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gen.offline.executors import processes
from gen.offline.folder import NAME, meta_path, read_manifest
from gen.offline.job import run_batch
from gen.receipts import versions

AT_ONCE, A_SHARD = 64, 512
WAIT = 0.05  # seconds that a simulated worker needs for a part


class Pretended:
    """A worker that only waits."""

    def ask(self, **asked: Any) -> dict[str, Any]:
        if "task" in asked:
            time.sleep(WAIT)
            counts = {"rows": A_SHARD, "failed": 0, "tokens": 100 * A_SHARD}
            meta_path(Path(asked["folder"]), asked["task"]["part"]).write_text(json.dumps(counts))
            return {**counts, "good": 0}
        facts = {"fingerprint": {}, "schema": None, "sources": {}, "versions": versions()}
        return {"batch_size": AT_ONCE, "devices": ["cpu"], **facts}

    def end(self) -> None:
        """Do nothing: there is nothing to end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    vars(processes)["WorkerProcess"] = Pretended
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "rows.jsonl").open("w") as file:
            for number in range(arguments.rows):
                file.write(
                    json.dumps({"prompt": f"A prompt of about eighty characters, as of a short question: {number}"})
                )
                file.write("\n")
        driving = []
        for workers in arguments.workers:
            driving.append(_run(folder, workers))
        reading = _reading(folder / f"out{arguments.workers[0]}")
    from benchmarks.measuring import publish  # imports torch, which no driver does

    publish(arguments, driving=driving, reading=reading)


def _run(folder: Path, workers: int) -> dict[str, Any]:
    out, devices = folder / f"out{workers}", ["cpu"] * workers
    begin = time.process_time()
    run_batch(
        folder / "rows.jsonl", out, model="demo", devices=devices, dry_run=True, part_rows=A_SHARD, progress=False
    )
    planning = time.process_time() - begin
    begin, wall = time.process_time(), time.perf_counter()
    run_batch(folder / "rows.jsonl", out, model="demo", devices=devices, part_rows=A_SHARD, progress=False)
    seconds, wall = time.process_time() - begin - planning, time.perf_counter() - wall
    parts = len(read_manifest(out)[0].parts)
    return {
        "workers": workers,
        "parts": parts,
        "planning, s of CPU": round(planning, 2),
        "ms of CPU a part": round(1000 * seconds / parts, 3),
        "wall, s": round(wall, 1),
        "most memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "manifest, MB": round((out / NAME).stat().st_size / 1e6, 2),
        "torch": "torch" in sys.modules,
    }


def _reading(out: Path) -> dict[str, float]:
    """Milliseconds that it takes to read the first and the last part."""
    manifest, _ = read_manifest(out)
    last = max(number for number, part in enumerate(manifest.parts) if part[-1] == A_SHARD)
    times: dict[int, list[float]] = {0: [], last: []}
    for _ in range(21):
        for number, taken in times.items():
            begin = time.process_time()
            manifest.rows_of(out, number)
            taken.append(1000 * (time.process_time() - begin))
    first, end = (statistics.median(taken) for taken in times.values())
    return {"first part, ms": round(first, 3), "last part, ms": round(end, 3), "ratio": round(end / first, 3)}


if __name__ == "__main__":
    main()
