"""Workers as processes of this machine, and what all workers have in common."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from gen.errors import ArgumentError, ConstraintError, DeviceError, GenError, ModelError
from gen.runtime import cpu_threads

Answer = dict[str, Any]

KINDS: tuple[type[GenError], ...] = (ConstraintError, ArgumentError, DeviceError, ModelError, GenError)
"""The errors that a worker may answer, by their numbers in its answers."""


ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""What each worker's process begins with: values that are sets have the same order in each of them."""


class WorkerDied(Exception):
    """A worker ended while it was asked for something; the message says how, as in "was killed by SIGKILL"."""


class Worker(Protocol):
    """Runs work: a process, or a test's substitute for one."""

    def ask(self, **asked: Any) -> Answer:
        """The worker's answer."""

    def end(self) -> None:
        """End the worker now."""


class Processes:
    """Where workers are: each is a process of this machine, unless a subclass says otherwise.

    Args:
        devices: their names; None for every CUDA device, or else the CPU.

    Attributes:
        devices: that the user has named.
        one_machine: whether all workers are on the driver's.
    """

    one_machine = True

    def __init__(self, devices: Sequence[str] | None) -> None:
        self.devices = list(devices or ())

    @property
    def threads(self) -> int:
        """How many threads of torch each worker on a CPU has, if a job begins now: its share of cores and quota."""
        given = os.environ.get("OMP_NUM_THREADS", "")
        sharing = max(1, self.devices.count("cpu"))
        return int(given) if given.isdecimal() and int(given) else max(1, cpu_threads.usable() // sharing)

    def slots(self) -> list[str]:
        """A name for each worker that may run at once; none if the first worker tells its machine's devices."""
        return self.devices

    def worker(self, slot: str | None) -> tuple[Worker, str | None]:
        """A new worker, and the device on which it loads the model; None for the first one of its machine."""
        return WorkerProcess(), slot

    def close(self) -> None:
        """Leave the cluster, if there is one."""


class WorkerProcess:
    """A process that runs `gen.offline.worker`."""

    def __init__(self) -> None:
        own = [folder or os.getcwd() for folder in sys.path]  # what the driver can import
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *own]))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the driver, from the start
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gen.offline.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **cpu_threads.variables(None), **ENVIRONMENT, "PYTHONPATH": path},
                encoding="utf-8",
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def ask(self, **asked: Any) -> Answer:
        line = ""
        assert self._process.stdin is not None and self._process.stdout is not None  # tells mypy
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise WorkerDied(_how_ended(self._process.wait()))
        return read_answer(json.loads(line))

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def read_answer(answer: Answer) -> Answer:
    """A worker's answer, unless it is an error."""
    if "fault" in answer:
        raise WorkerDied(f"failed with {answer['fault']}")
    if "error" in answer:
        raise KINDS[answer["kind"]](answer["error"])
    return answer


def _how_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
