"""The engine of this machine: a process for each device, which is started again when it dies."""

import os
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any

from gen import cpu_threads
from gen.errors import GenError
from gen.offline.engines.engine import Open
from gen.offline.engines.processes import Answer, Worker, WorkerDied, WorkerProcess
from gen.offline.engines.progress import say
from gen.offline.engines.schedule import Schedule, Seat, told

_LOOK = 0.5  # seconds until Ctrl-C, or an error, is noticed at the latest
_TRIES = 3  # on a device before another one is tried


class Local:
    """See `gen.offline.engines.engine.Engine`.

    Args:
        devices: their names; None for every CUDA device, or else the CPU.
    """

    def __init__(self, devices: Sequence[str] | None) -> None:
        self._devices = devices
        self._seats: list[Seat] = []
        self._workers: dict[int, Worker] = {}

    def threads(self) -> int:
        """See `Engine.threads`: what cores and quota allow is shared."""
        given = os.environ.get("OMP_NUM_THREADS", "")
        sharing = max(1, sum(name == "cpu" for name in self._devices or ()))
        return int(given) if given.isdecimal() and int(given) else max(1, cpu_threads.usable() // sharing)

    def check(self, settings: Mapping[str, Any], threads: int, longest: Mapping[str, Any] | None) -> Answer:
        """See `Engine.check`: it runs on the first device where a worker stays alive."""
        asked, reason = list(self._devices or ()), ""
        for number, device in enumerate(asked or [None]):
            where = device or "this machine"
            for _ in range(_TRIES):
                try:
                    worker = self._workers[number] = _started(settings, device, threads)
                    facts = worker.ask(check=longest, devices=asked)
                except WorkerDied as death:
                    reason = str(death)
                    say(f"a worker of {where} {reason}, before the first row")
                else:
                    names = asked or facts["devices"]
                    self._seats = [Seat(name, out=index < number) for index, name in enumerate(names)]
                    return facts
            say(f"{where} is left out: {_TRIES} workers died there before the first row.")
        raise GenError(f"no device is left: workers died on each of them. The last one {reason}.")

    def run(self, job: Open) -> None:
        """See `Engine.run`."""
        manifest = job.manifest
        run_work(
            Schedule(shards=dict(job.shards), seats=self._seats, joined=job.joined, blame=job.blame, say=say),
            lambda seat: _started(manifest.settings, seat.name, manifest.threads),
            {"folder": str(job.folder), "digest": job.digest},
            job.done,
            self._workers,
        )

    def close(self) -> None:
        """See `Engine.close`."""
        while self._workers:
            self._workers.popitem()[1].end()


def _started(settings: Mapping[str, Any], device: str | None, threads: int) -> Worker:
    """A worker that has loaded the model."""
    worker = WorkerProcess()
    try:
        worker.ask(settings=dict(settings), device=device, threads=threads)
    except BaseException:
        worker.end()
        raise
    return worker


def run_work(
    schedule: Schedule,
    start: Callable[[Seat], Worker],
    asking: Mapping[str, Any],
    done: Callable[[str, Answer], object],
    workers: dict[int, Worker],
) -> None:
    """Run a schedule to its end, in a thread for each of its seats.

    Args:
        start: makes a worker for a seat.
        asking: further arguments for a worker with each piece of work.
        done: called with the device and the answer for each piece of work.
        workers: workers that exist already, by the numbers of their seats; empty in the end.
    Raises:
        Exception: the error that stopped the job before its end.
    """

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
                        done(seat.name, answer)
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
