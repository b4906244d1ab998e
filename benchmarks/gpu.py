"""What a machine with CUDA shows of gen, in under ten minutes and without a network: `make gpu`.

    PYTHONPATH=. python -m benchmarks.gpu --out build/gpu

Each step is a process of its own, so that one that breaks the device does not break the others:

    tests       those that need a GPU: graphs against eager steps, host syncs, streams and devices, Triton against torch
    triton      the loop's tests once more, with Triton's kernels in it
    samplers    a step of each sampler by itself, on both paths
    decode      the demo model, and random Llamas of 135 million and of a billion parameters in bfloat16
    throughput  benchmarks.throughput on every GPU
    exllama     builds exllamav2's and exllamav3's extensions where they are installed, with the time that is left
    stubs       the tests of what is built, and of the stubs that stand for it elsewhere

The folder gets gpu.json, with all that was measured and how each step ended, and plots. The exit code is 1 if a step
failed or ran out of time; without a CUDA device there is nothing to do, which is said, and the exit code is 0.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIMIT = 560.0  # seconds for all steps
_PYTEST = ("-m", "pytest", "-q", "-rs", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors")
_NEEDS_GPU = re.compile(r"mark\.gpu|\(gpu: torch\.device|, gpu: torch\.device|two_gpus: None")
ROOT = Path(__file__).parents[1]
_TAIL = 4000  # characters of a step's output that are kept


@dataclass(frozen=True)
class Step:
    """A process: what Python is given, for how many seconds it may run, and what is in its environment.

    Where an argument is "{json}", it is the file whose content becomes part of the report.
    """

    name: str
    arguments: Sequence[str]
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a step ended; `code` is None where its time was over."""

    name: str
    code: int | None
    seconds: float
    output: str


def steps(gpus: int) -> list[Step]:
    """All steps, the most important ones first."""
    devices = [f"cuda:{index}" for index in range(gpus)][:2]
    tests = [path for path in gpu_tests() if not path.startswith("tests/models/exllama")]
    loop = [path for path in tests if path.startswith(("tests/loop", "tests/samplers"))]
    cases = ("-m", "benchmarks.gpu_cases", "--json", "{json}")
    return [
        Step("tests", (*_PYTEST, *tests), 240),
        Step("decode", (*cases, "decode"), 150),
        Step("samplers", (*cases, "samplers"), 60),
        Step("triton", (*_PYTEST, *loop), 120, {"GEN_TRITON": "1"}),
        Step("throughput", ("-m", "benchmarks.throughput", "--json", "{json}", "--devices", *devices), 90),
        Step("exllama", ("-m", "benchmarks.exllama_extensions", "--seconds", "280"), 290),
        Step("stubs", (*_PYTEST, "tests/models/exllama/test_on_a_gpu.py"), 200),
    ]


def gpu_tests() -> list[str]:
    """The files with tests that need a GPU; others import what need not be there."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [file.relative_to(ROOT).as_posix() for file in files if _NEEDS_GPU.search(file.read_text(encoding="utf-8"))]


def main() -> int:
    arguments = _arguments()
    try:
        import torch
    except ImportError:
        print(f"{sys.executable} has no torch, and so no CUDA device: nothing to do. Name another: make gpu PYTHON=...")
        return 0
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device here: nothing to do.")
        return 0
    from benchmarks.measuring import machine, write_json

    arguments.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "steps": []}
    end = time.monotonic() + LIMIT
    for step in steps(torch.cuda.device_count()):
        made = arguments.out / f"{step.name}.json"
        made.unlink(missing_ok=True)
        outcome = run(step, made, end - time.monotonic())
        print(f"{step.name}: {'out of time' if outcome.code is None else outcome.code} after {outcome.seconds:.0f} s")
        report["steps"].append(asdict(outcome))
        if made.exists():
            report[step.name] = json.loads(made.read_text())
            made.unlink()
        write_json(arguments.out / "gpu.json", report)  # whatever comes
    _plot(report, arguments.out)
    failed = [step["name"] for step in report["steps"] if step["code"] != 0]
    print(f"{arguments.out / 'gpu.json'}: {'failed: ' + ', '.join(failed) if failed else 'all steps passed'}")
    return bool(failed)


def run(step: Step, made: Path, left: float) -> Outcome:
    """Run a step for as long as it may, at most for what is left for all."""
    command = [sys.executable, *(str(made.absolute()) if part == "{json}" else part for part in step.arguments)]
    own = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **step.environment}
    begin = time.monotonic()
    code: int | None = None
    output: Any
    try:
        done = subprocess.run(
            command,
            env=os.environ | own,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(0.0, min(step.seconds, left)),
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.output.decode(errors="replace") if isinstance(error.output, bytes) else error.output or ""
    return Outcome(step.name, code, round(time.monotonic() - begin, 1), output[-_TAIL:])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="the folder for the report and plots")
    return parser.parse_args()


def _plot(report: dict[str, Any], folder: Path) -> None:
    """Draw what was measured."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: this Python has no matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report.get("decode", [])
    names = list(dict.fromkeys(row["model"] for row in rows))
    if names:
        figure, charts = pyplot.subplots(1, len(names), figsize=(4.5 * len(names), 4), squeeze=False)
        for axes, name in zip(charts[0], names, strict=True):
            for program in dict.fromkeys(row["program"] for row in rows):
                own = [row for row in rows if (row["model"], row["program"]) == (name, program)]
                axes.plot([row["batch"] for row in own], [row["ms/step"] for row in own], marker="o", label=program)
            own = [row for row in rows if row["model"] == name]
            axes.axhline(own[0]["ms to read"], color="black", linestyle=":", label="its weights read once")
            axes.set(title=name, xlabel="batch", ylabel="ms a step", xscale="log", yscale="log")
            axes.legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(folder / "decode.png", dpi=120)
    rows = [row for row in report.get("samplers", []) if "us" in row]
    names = list(dict.fromkeys(row["logits"] for row in rows))
    if names:
        figure, charts = pyplot.subplots(len(names), 1, figsize=(8, 3.5 * len(names)), squeeze=False)
        for axes, name in zip(charts[:, 0], names, strict=True):
            own = [row for row in rows if row["logits"] == name]
            bars = axes.barh([row["case"] for row in own], [row["us"] for row in own])
            axes.bar_label(bars, padding=3, fontsize=7)
            axes.set(title=name, xlabel="microseconds", xscale="log")
        figure.tight_layout()
        figure.savefig(folder / "samplers.png", dpi=120)


if __name__ == "__main__":
    sys.exit(main())
