"""What a job's worker costs, compared with one call of the loop for the same prompts and as many rows at once.

    python -m benchmarks.batch_cost

Each prompt has a limit of its own, of 8 to 320 new tokens. A round runs both; times are CPU time of the process with
one thread. A worker's start, which imports torch and loads the model, is reported separately.
"""

import json
import os
import random
import tempfile
from argparse import Namespace
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import gen
from benchmarks.measuring import interleave, publish, ratio, read_arguments
from gen.calls.reading import read_call
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.offline.folder import read_manifest
from gen.offline.rows import Row, row_seed
from gen.offline.worker import Worker
from gen.requests.settings import Settings

SHORTEST, LONGEST = 8, 320  # new tokens
SEED = 3


def main() -> None:
    given = read_arguments(__doc__, rows=1000, at_once=[64, 16], rounds=3, model="demo")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    draw = random.Random(1)
    rows: list[dict[str, Any]] = [
        {
            "id": str(number),
            "prompt": [draw.randrange(10, 1000) for _ in range(draw.randint(2, 60))],
            "max_new_tokens": int(SHORTEST * (LONGEST / SHORTEST) ** draw.random()),
        }
        for number in range(given.rows)
    ]
    publish(given, rows=[_measured(rows, at_once, given) for at_once in given.at_once])


def _measured(rows: list[dict[str, Any]], at_once: int, given: Namespace) -> dict[str, Any]:
    """Measure both with so many rows at once."""
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name) / "out", Path(name) / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings: Any = {"batch_size": at_once, "seed": SEED, "eos_token_id": [], "devices": "cpu", "progress": False}
        gen.run_batch(source, folder, model=given.model, **settings)
        manifest, digest = read_manifest(folder)
        begin = process_time()
        worker = Worker(manifest.settings, "cpu", threads=1)
        loading, model = process_time() - begin, gen.load(given.model, device="cpu")

        def job() -> None:
            vars(worker)["_model"].idle.take()  # as after its start
            for number in range(len(manifest.parts)):
                worker.run(folder, digest, number)

        cases = {"call": lambda: _one_call(model, rows, at_once), "job": job}
        times = interleave(cases, given.rounds, clock=process_time, warm=0)
    return {
        "rows": len(rows),
        "at once": at_once,
        "parts": len(manifest.parts),
        "new tokens": sum(row["max_new_tokens"] for row in rows),
        "call, s": round(median(times["call"]), 2),
        "job, s": round(median(times["job"]), 2),
        "job / call": round(ratio(times["job"], times["call"]), 3),
        "loading, s": round(loading, 2),
    }


def _one_call(model: Any, rows: list[dict[str, Any]], at_once: int) -> None:
    """Continue all prompts with one `gen.generate`."""
    settings = Settings(
        max_new_tokens=[row["max_new_tokens"] for row in rows],
        seed=[row_seed(SEED, Row(id=row["id"])) for row in rows],
        eos_token_id=[],
    )
    model.idle.take()
    call = read_call(model, [row["prompt"] for row in rows], None, settings, details=True)
    jobs = [new_job(model, request) for request in call.requests]
    run_all(model, jobs, Options(rows=at_once))
    call.results(jobs)


if __name__ == "__main__":
    main()
