"""Runs all steps, one after the other, each in a process of its own: a sticky CUDA error ends only its step.

    PYTHONPATH=.:virtual_gpus/src python -m benchmarks.gpu --out build/gpu

    smoke      texts with graphs, without and on the CPU; recovery from a bad capture; memory over 50 calls; captures
    tests      those that need a GPU, a process for each file; a file that fails runs again with blocking launches
    attention  torch's backends and gen's kernel on the masks and strides of gen's steps
    profiles   where a step's time goes: gen with graphs, gen without, transformers
    decode     steps of random Llamas over short and long contexts, and samplers by themselves

The folder gets each step's log, its measurements so far as JSON, the tests' junit files, and gpu.json with everything.
The exit code is 1 if a step failed or ran out of time. Without a CUDA device it says that there is nothing to do, and
the exit code is 0. With --exllama it only builds and tests what exllamav2 and exllamav3 compile.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.running import LIMIT, exllama_steps, run, steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="the folder for reports and logs")
    parser.add_argument("--exllama", action="store_true", help="build and test exllamav2 and exllamav3 alone")
    parser.add_argument("--small", action="store_true", help="use the smallest numbers, to see whether the steps run")
    given = parser.parse_args()
    try:
        import torch
    except ImportError:
        print(f"{sys.executable} has no torch, and so no CUDA device: nothing to do. Name another: make gpu PYTHON=...")
        return 0
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device here: nothing to do.")
        return 0
    from benchmarks.measuring import machine, write_json

    given.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "steps": []}
    end = time.monotonic() + LIMIT
    for step in exllama_steps() if given.exllama else steps(small=given.small):
        made = given.out / f"{step.name}.json"
        made.unlink(missing_ok=True)
        outcome = run(step, given.out, end - time.monotonic())
        print(f"{step.name}: {'out of time' if outcome.code is None else outcome.code} after {outcome.seconds:.0f} s")
        report["steps"].append(asdict(outcome))
        if made.exists():
            report[step.name] = json.loads(made.read_text())
        write_json(given.out / "gpu.json", report)  # also after an error
    failed = [step["name"] for step in report["steps"] if step["code"] != 0]
    print(f"{given.out / 'gpu.json'}: {'failed: ' + ', '.join(failed) if failed else 'all steps passed'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
