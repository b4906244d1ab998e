"""Workers as processes of this machine, one for each device, made again when they die."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol

from gen.errors import ArgumentError, GenError
from gen.offline.engines.schedule import Schedule, Seat, Work, told

Answer = dict[str, Any]

_LOOK = 0.5  # seconds after which Ctrl-C, or an error, is heard at the latest


class WorkerDied(Exception):
    """A worker ended while it was asked for something; the message says how, as in "was killed by SIGKILL"."""


class Worker(Protocol):
    """What runs work: a process, or what a test has in its place."""

    def ask(self, **asked: Any) -> Answer:
        """Its answer.

        Raises:
            WorkerDied: it has died.
            ArgumentError, GenError: what the worker says ends the job.
        """

    def end(self) -> None:
        """Let it end, now."""


class WorkerProcess:
    """A process that runs `gen.offline.worker.process`."""

    def __init__(self) -> None:
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)  # what the driver can import
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gen.offline.worker.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            encoding="utf-8",
        )

    def ask(self, **asked: Any) -> Answer:
        """See `Worker.ask`."""
        line = ""
        assert self._process.stdin is not None and self._process.stdout is not None  # tells mypy
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        answer: Answer = json.loads(line) if line.endswith("\n") else {"fault": ""}
        if "fault" in answer:
            raise WorkerDied((answer["fault"] and f"failed: {answer['fault']}") or _how_ended(self._process.wait()))
        if "error" in answer:
            raise (ArgumentError if answer["usage"] else GenError)(answer["error"])
        return answer

    def end(self) -> None:
        """See `Worker.end`."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def read_answer(answer: Answer) -> Answer:
    """What a worker answers.

    Raises:
        WorkerDied, ArgumentError, GenError: as of `Worker.ask`.
    """
    if "fault" in answer:
        raise WorkerDied(f"failed with {answer['fault']}")
    if "error" in answer:
        raise (ArgumentError if answer["usage"] else GenError)(answer["error"])
    return answer


def run_work(
    schedule: Schedule,
    start: Callable[[Seat], Worker],
    asking: Mapping[str, Any],
    done: Callable[[Seat, Work, Answer], object],
    ready: Mapping[int, Worker],
) -> None:
    """Run a schedule to its end, in a thread for each of its seats.

    Args:
        start: makes a worker for a seat.
        asking: what a worker is told with each piece of work.
        done: told of all that was done.
        ready: workers that there are already, by the numbers of their seats.
    Raises:
        Exception: what ended the job before its end.
    """
    workers = dict(ready)

    def sit(number: int, seat: Seat) -> None:
        try:
            while (work := schedule.take(seat)) is not None:
                begun = False
                try:
                    if number not in workers:
                        workers[number] = start(seat)
                    begun = True
                    answer = workers[number].ask(task=told(work), **asking)
                except WorkerDied as death:
                    if begun:
                        workers.pop(number).end()
                    schedule.died(seat, work, str(death), begun=begun)
                else:
                    schedule.finished(seat, work, answer["good"])
                    if not work.probe:
                        done(seat, work, answer)
        except Exception as error:
            schedule.fail(error)
        finally:
            if number in workers:
                workers.pop(number).end()

    threads = [
        Thread(target=sit, args=(number, seat), name=f"gen batch {seat.name}", daemon=True)
        for number, seat in enumerate(schedule.seats)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and schedule.error is None:
                thread.join(_LOOK)
    except BaseException as error:
        schedule.fail(GenError(f"the job was ended: {type(error).__name__}"))
        raise
    finally:
        for worker in list(workers.values()):
            worker.end()
    if schedule.error is not None:
        raise schedule.error


def _how_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
