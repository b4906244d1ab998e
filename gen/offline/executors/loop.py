"""A job's workers: a first one checks the job, then each device has one at a time, and a thread that asks it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import RLock, Thread
from typing import Any

from gen.errors import GenError
from gen.offline.executors.processes import Answer, Processes, Worker, WorkerDied
from gen.offline.executors.progress import say
from gen.offline.executors.schedule import Schedule, Slot

_LOOK = 0.5  # seconds until Ctrl-C, or an error, is noticed at the latest
_TRIES = 3  # on a device before another one is tried


class Workers:
    """The workers of one job.

    Args:
        settings, threads: see `gen.offline.folder.Manifest`.

    Attributes:
        slots: where workers run, once `check` has found them.
    """

    def __init__(self, executor: Processes, settings: Mapping[str, Any], threads: int) -> None:
        self._executor, self._settings, self._threads = executor, settings, threads
        self.slots: list[Slot] = []
        self._workers: dict[int, Worker] = {}
        self._ending = RLock()  # held while workers end, so that `close` waits for those that a thread is ending

    def check(self, longest: Mapping[str, Any] | None) -> Answer:
        """The answer of a first worker that checks the job; see `gen.offline.worker.Worker.check`.

        It runs on the first device where a worker stays alive.

        Args:
            longest: the row with the longest prompt.
        """
        names, reason = self._executor.slots(), ""
        for number, name in enumerate(names or [None]):
            where = name or "this machine"
            for _ in range(_TRIES):
                try:
                    self._start(number, name)
                    facts = self._workers[number].ask(check=longest, devices=self._executor.devices)
                except WorkerDied as death:
                    reason = str(death)
                    self._end(number)
                    say(f"a worker of {where} {reason}, before the first row")
                else:
                    self.slots = [Slot(one, out=index < number) for index, one in enumerate(names or facts["devices"])]
                    return facts
            say(f"{where} is left out: {_TRIES} workers died there before the first row.")
        raise GenError(f"no device is left: workers died on each of them. The last one {reason}.")

    def run(
        self,
        schedule: Schedule,
        asking: Mapping[str, Any],
        done: Callable[[str, Answer], object],
        look: Callable[[], object],
    ) -> None:
        """Run a schedule of the slots to its end, in a thread for each of them.

        Args:
            asking: what a worker is told with each step.
            done: called with the device and the answer for each part that was made as a whole.
            look: called again and again until the end.
        """
        threads = [
            Thread(target=self._sit, args=(schedule, number, asking, done), name=f"gen batch {slot.name}", daemon=True)
            for number, slot in enumerate(self.slots)
        ]
        try:
            for thread in threads:
                thread.start()
            while not schedule.over and any(thread.is_alive() for thread in threads):
                next(thread for thread in threads if thread.is_alive()).join(_LOOK)
                look()
        except BaseException as error:
            schedule.fail(GenError(f"the job was ended: {type(error).__name__}"))
            raise
        finally:
            self.close()
        if schedule.error is not None:
            raise schedule.error

    def close(self) -> None:
        """End all workers now; none is left when it returns."""
        with self._ending:
            for number in list(self._workers):
                self._end(number)

    def _sit(
        self, schedule: Schedule, number: int, asking: Mapping[str, Any], done: Callable[[str, Answer], object]
    ) -> None:
        """Keep a slot's worker busy until nothing is left for it."""
        slot = schedule.slots[number]
        try:
            while True:
                if number not in self._workers:
                    if not schedule.may_start(slot):
                        return
                    try:
                        self._start(number, slot.name)
                    except WorkerDied as death:
                        self._end(number)
                        schedule.started(slot, str(death))
                        continue
                    schedule.started(slot)
                if (step := schedule.take(slot)) is None:
                    return
                asked = {"part": step.task.part, "row": step.row, "attempt": step.task.kills + 1}
                try:
                    answer = self._workers[number].ask(task=asked, **asking)
                except WorkerDied as death:
                    self._end(number)
                    schedule.died(slot, step, str(death))
                    continue
                if step.row is None:
                    done(slot.name, answer)
                schedule.finished(slot, step, answer["good"], answer.get("result"))
        except Exception as error:
            schedule.fail(error)
        finally:
            self._end(number)

    def _start(self, number: int, name: str | None) -> None:
        """Start a slot's worker, which loads the model."""
        self._workers[number], device = self._executor.worker(name)
        self._workers[number].ask(settings=dict(self._settings), device=device, threads=self._threads)

    def _end(self, number: int) -> None:
        with self._ending, suppress(KeyError):
            self._workers.pop(number).end()
