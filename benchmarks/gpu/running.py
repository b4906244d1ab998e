"""The steps of `make gpu` as processes, and the files that each leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = 560.0  # seconds for all steps
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Step:
    """A process: what Python is given, and for how many seconds it may run.

    The argument "{out}" becomes the folder of the report, "{json}" the file for the step's measurements.
    """

    name: str
    arguments: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a step ended; `code` is None if it ran out of time."""

    name: str
    code: int | None
    seconds: float


def steps(*, small: bool = False) -> list[Step]:
    """All steps in order, with the smallest numbers if `small`."""
    limits = {"smoke": 60, "tests": 180, "attention": 60, "profiles": 60, "decode": 180}
    options = ("--out", "{out}", "--json", "{json}", *(["--small"] if small else []))
    return [Step(name, ("-m", f"benchmarks.gpu.{name}", *options), seconds) for name, seconds in limits.items()]


def exllama_steps() -> list[Step]:
    """The steps that build what exllamav2 and exllamav3 compile, and test it."""
    pytest = ("-m", "pytest", "-q", "-rs", "-m", "gpu", "-p", "no:cacheprovider")
    return [
        Step("extensions", ("-m", "benchmarks.gpu.extensions"), 290),
        Step("exllama", (*pytest, "tests/models/exllama"), 250),
    ]


def run(step: Step, out: Path, left: float, **settings: str) -> Outcome:
    """Run a step for at most its own seconds and the seconds `left` for all; its log is in the folder `out`.

    Args:
        settings: of its environment.
    """
    places = {"{out}": str(out.absolute()), "{json}": str((out / f"{step.name}.json").absolute())}
    begin = time.monotonic()
    with (out / f"{step.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, *(places.get(part, part) for part in step.arguments)],
            env=environment(**settings),
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = wait(process, min(step.seconds, left))
    return Outcome(step.name, code, round(time.monotonic() - begin, 1))


def environment(**more: str) -> dict[str, str]:
    """An environment without a network, and with this checkout."""
    own = (str(ROOT), str(ROOT / "virtual_gpus" / "src"))
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *own]))
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **more}


def wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """The exit code of a process that leads its own group; None if it ran out of time and its whole group was
    killed."""
    try:
        return process.wait(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None
