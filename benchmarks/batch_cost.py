"""What a job's worker costs, compared with one call of the loop for the same prompts and as many rows at once.

    python -m benchmarks.batch_cost

Each prompt has a limit of its own, of 8 to 320 new tokens. A round runs both; times are CPU time of the process with
one thread. A worker's start, which imports torch and loads the model, is reported separately.
"""

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.measuring import machine, markdown_table, ratio, spread, write_json
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--at-once", type=int, nargs="+", default=[64, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    draw = random.Random(1)
    rows: list[dict[str, Any]] = [
        {
            "id": str(number),
            "prompt": [draw.randrange(10, 1000) for _ in range(draw.randint(2, 60))],
            "max_new_tokens": int(SHORTEST * (LONGEST / SHORTEST) ** draw.random()),
        }
        for number in range(arguments.rows)
    ]
    measured = [_measured(rows, at_once, arguments) for at_once in arguments.at_once]
    print(json.dumps(machine()), "\n")
    print(markdown_table(measured))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "rows": measured})


def _measured(rows: list[dict[str, Any]], at_once: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both with so many rows at once."""
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name) / "out", Path(name) / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings: Any = {"batch_size": at_once, "seed": SEED, "eos_token_id": [], "devices": "cpu", "progress": False}
        gen.run_batch(source, folder, model=arguments.model, **settings)
        manifest, digest = read_manifest(folder)
        begin = time.process_time()
        worker = Worker(manifest.settings, "cpu", threads=1)
        loading = time.process_time() - begin
        model = gen.load(arguments.model, device="cpu")
        times: dict[str, list[float]] = {"call": [], "job": []}
        for _ in range(arguments.rounds):
            begin = time.process_time()
            _one_call(model, rows, at_once)
            times["call"].append(time.process_time() - begin)
            vars(worker)["_model"].idle.take()  # as after its start
            begin = time.process_time()
            for number in range(len(manifest.parts)):
                worker.run(folder, digest, number)
            times["job"].append(time.process_time() - begin)
    return {
        "rows": len(rows),
        "at once": at_once,
        "parts": len(manifest.parts),
        "new tokens": sum(row["max_new_tokens"] for row in rows),
        "call, s": round(spread(times["call"]).median, 2),
        "job, s": round(spread(times["job"]).median, 2),
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
