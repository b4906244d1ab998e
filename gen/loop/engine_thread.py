"""A batch that runs in a thread of its own; requests join and leave it. A server is built on it."""

import atexit
import logging
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from threading import TIMEOUT_MAX, Lock, Thread, current_thread
from time import monotonic, perf_counter, sleep
from weakref import WeakSet, finalize

from gen.errors import ArgumentError, EngineClosed, EngineFull, IncompleteError
from gen.loop.feed import Feed, WaitingLine, wake
from gen.loop.jobs import Job, new_job
from gen.loop.memory import check_room
from gen.loop.options import Options
from gen.loop.runner import Runner
from gen.models.base import Model
from gen.requests.request import Request
from gen.runtime.forking import new_lock

logger = logging.getLogger("gen")

_PREPARERS = 2  # threads
_YIELDS = 8  # times that other threads may run before it is assumed that no more requests come at the same time
_APART = 0.004  # seconds to wait for the next of requests that come together, as over a network, if the last ones did
_AT_MOST = 0.03  # seconds to wait for all of them


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """What an engine does at the moment of `Engine.stats`.

    Attributes:
        running: how many requests have joined the batch and have not ended.
        waiting: how many wait for a row.
        compiling: how many wait for their output type to be compiled.
        tokens: how many new tokens all texts have got, texts that have ended included.
        prompt_tokens: how many tokens the prompts have of all requests that have joined the batch.
        steps: how many turns the loop has taken: a step of the rows, parts of prompts that are read after it, or both.
        progress_age: seconds since the last turn or the last compilation ended, or since there was work again; 0.0
            while there is no work.
        closed: whether it takes no more requests.
        failure: the error with which the loop has failed, such as "RuntimeError: no memory"; None if it has not failed.
    """

    running: int
    waiting: int
    compiling: int
    tokens: int
    prompt_tokens: int
    steps: int
    progress_age: float
    closed: bool
    failure: str | None


class EngineThread:
    """One thread that runs requests in one batch, in the order of `WaitingLine`.

    It refers to no model while nothing runs, so that a model can be deleted; the model then keeps the idle rows.

    Args:
        owner: the loop is closed when this object is deleted.
        options: with `rows`, which says how many requests run at once.
        max_waiting: how many more may wait.
        when_closed: called once, when the thread has done all its work.
    """

    def __init__(
        self, owner: object, options: Options, *, max_waiting: int, when_closed: Callable[[], object] | None = None
    ) -> None:
        assert options.rows is not None  # tells mypy
        self._options, self._rows, self._max_waiting = options, options.rows, max_waiting
        self._lock = new_lock()  # guards the requests that wait; finalisers never take it
        self._waiting = WaitingLine()
        self._preparing: set[Feed] = set()
        self._preparers = ThreadPoolExecutor(_PREPARERS, "gen engine prepares")
        self._running: list[Feed] = []
        self._made: tuple[int, list[Feed]] = 0, self._running  # tokens of finished texts, and the other texts' feeds
        self._prompt_tokens = self._steps = 0
        self._progress = monotonic()
        self._deadline = inf  # the earliest of requests that wait, or whose output type is being compiled
        self._cancelled: deque[Feed] = deque()  # cancelled feeds that the thread has not looked at yet
        self._followed = False  # whether requests have joined after those that an idle engine began with
        self._closed, self._when_closed = False, when_closed
        self._failure = ""
        self._error: BaseException | None = None
        self._asleep = Lock()  # held while there is nothing to do; unlike an event, finalisers may change its state
        self._asleep.acquire()
        self._finalizer = finalize(owner, self._stop)
        self._thread = Thread(target=self._run, name="gen engine", daemon=True)
        _threads.add(self)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    def stats(self) -> EngineStats:
        made, running = self._made
        compiling, waiting = len(self._preparing), len(self._waiting)
        busy, error = bool(running or waiting or compiling), self._error
        return EngineStats(
            running=len(running),
            waiting=waiting,
            compiling=compiling,
            tokens=made + _tokens_of(running),
            prompt_tokens=self._prompt_tokens,
            steps=self._steps,
            progress_age=max(0.0, monotonic() - self._progress) if busy else 0.0,
            closed=self._closed,
            failure=None if error is None else f"{type(error).__name__}: {error}",
        )

    def add(self, model: Model, jobs: Sequence[Job], priority: int = 0) -> list[Feed]:
        """Let requests join, all or none.

        Args:
            jobs: if a job's request comes late, a thread for that makes it before the job waits; see `Request.late`.
            priority: the lowest is first.
        Raises:
            ArgumentError: a job needs more room than there may be, or there are more jobs than may run and wait.
            EngineFull: as many requests run and wait as may.
            EngineClosed: the engine was closed, or has failed.
        """
        most = self._rows + self._max_waiting
        if len(jobs) > most:
            raise ArgumentError(
                f"{len(jobs)} texts are asked for at once, and the engine takes {most} (rows={self._rows} and "
                f"max_waiting={self._max_waiting}); ask for them in several calls."
            )
        self._check_room(job.request for job in jobs)
        feeds = [Feed(job, self._on_cancel, self._thread) for job in jobs]
        with self._lock:
            if self._taken() + len(jobs) > most:
                self._drop_cancelled()
            if self._closed:
                raise EngineClosed(f"the engine {self._failure or 'was closed'}; make another one.")
            if (taken := self._taken()) + len(jobs) > most:
                raise EngineFull(
                    f"{taken} requests run and wait, and {most} may (rows={self._rows} and "
                    f"max_waiting={self._max_waiting}); ask again later."
                )
            now = monotonic()
            if not taken:
                self._progress = now
            for feed in feeds:
                request = feed.job.request
                self._deadline = min(self._deadline, request.deadline or inf)
                if request.late is None:
                    self._waiting.add(feed, model, priority, now)
                else:
                    self._preparing.add(feed)
                    self._preparers.submit(self._prepare, model, feed, request.late, priority)
        self._wake()
        return feeds

    def close(self) -> None:
        """Take no more requests, end those that there are with `EngineClosed`, and wait for the thread: at most for one
        step and one part of a prompt."""
        self._finalizer.detach()
        self._stop()
        if current_thread() is not self._thread:
            self._thread.join()

    def after_fork(self) -> None:
        """Forget the thread and its requests in a forked process: they belong to the parent process."""
        self._failure = "belongs to the process that this one was forked from"
        self._finalizer.detach()
        self._end_all(EngineClosed(f"the engine {self._failure}; make another one."))

    def _prepare(self, model: Model, feed: Feed, late: Callable[[Request], Request], priority: int) -> None:
        """Make a request that comes late, in a thread for that; then let it wait. An error is its job's."""
        made: Job | None = None
        error: BaseException | None = None
        try:
            if feed in self._preparing:
                made = new_job(model, late(feed.job.request))
                self._check_room([made.request])
        except BaseException as failure:  # of any kind, as a panic of a library is, so that no reader waits for ever
            error = failure
        with self._lock:
            now = self._progress = monotonic()
            if feed not in self._preparing:  # it was cancelled, or the engine was closed
                return
            self._preparing.remove(feed)
            feed.job.error = error
            if made is not None:
                feed.job.request, feed.job.takers = made.request, made.takers
            if not feed.job.ended:
                self._waiting.add(feed, model, priority, now)
        if feed.job.ended:
            feed.job.finish()
            wake(feed.sleepers())
        else:
            self._wake()

    def _check_room(self, requests: Iterable[Request]) -> None:
        check_room(requests, self._options.step_rows, self._options.max_batch_tokens)

    def _taken(self) -> int:
        """How many requests run and wait."""
        return len(self._preparing) + len(self._waiting) + len(self._running)

    def _stop(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self._asleep.release()

    def _on_cancel(self, feed: Feed) -> None:
        self._cancelled.append(feed)
        self._wake()

    def _drop_cancelled(self) -> None:
        """Drop waiting requests that were cancelled, so that they never start; the caller holds the lock."""
        while self._cancelled:
            feed = self._cancelled.popleft()
            if self._waiting.remove(feed) or feed in self._preparing:
                self._preparing.discard(feed)
                feed.job.finish()
                wake(feed.sleepers())

    def _run(self) -> None:
        """What the thread runs."""
        error: BaseException = EngineClosed("the engine was closed while the request was under way.")
        try:
            while not self._closed:
                self._asleep.acquire(timeout=self._rest())
                self._expire()
                self._work()
        except BaseException as failure:  # readers get errors of any kind, so that none of them waits for ever
            error = self._error = failure
            traceback.clear_frames(failure.__traceback__)  # the frames hold rows, which must be freed
            said = f"{type(failure).__name__}: {failure}"
            self._failure = f"has failed ({said})"
            logger.error("the engine's loop has failed: %s", said)
        finally:  # also where a class of the user cannot say what its error is
            self._end_all(error)
            self._finalizer.detach()  # it keeps this object as long as the owner is there, which may make another one
            if self._when_closed is not None:
                self._when_closed()

    def _end_all(self, error: BaseException) -> None:
        """Take no more requests, and end those that there are with an error."""
        with self._lock:
            self._closed = True
            left = [*self._running, *self._waiting, *self._preparing]
            self._keep([])
            self._preparing.clear()
            self._waiting = WaitingLine()
        self._preparers.shutdown(wait=False, cancel_futures=True)
        wake(sleeper for feed in left for sleeper in feed.fail(error))

    def _work(self) -> None:
        """Run until nothing is left to do, and give the rows back."""
        while not self._closed and (joining := self._gather()):
            runner = self._begin(joining)
            self._tell()
            if runner is None:
                continue
            with runner.current():
                while self._running and not self._closed:
                    for _, job in joining:
                        runner.add(job)
                    runner.advance()
                    self._steps += 1
                    self._progress = monotonic()
                    self._tell()
                    if self._progress >= self._deadline:
                        self._expire()
                    joining = self._join()
                    self._followed |= bool(joining)
            runner.close()  # outside the block of the rows' streams: another thread may take the rows at once

    def _rest(self) -> float:
        """How many seconds to sleep at most; -1 for no limit."""
        return -1 if self._deadline == inf else min(max(0.0, self._deadline - monotonic()), TIMEOUT_MAX)

    def _expire(self) -> None:
        """End requests that wait when their time is over."""
        now, due = monotonic(), []
        if now < self._deadline:
            return
        with self._lock:
            self._deadline = inf
            for feed in [*self._waiting, *self._preparing]:
                deadline = feed.job.request.deadline or inf
                if deadline > now:
                    self._deadline = min(self._deadline, deadline)
                    continue
                due.append(feed)
                if feed in self._preparing:
                    self._preparing.remove(feed)
                    feed.job.error = _not_compiled(feed.job)
                else:
                    self._waiting.remove(feed)
        for feed in due:
            feed.job.expire()
        wake([sleeper for feed in due for sleeper in feed.sleepers()])

    def _gather(self) -> list[tuple[Model, Job]]:
        """Take the requests that wait, and those that come at the same time: their prompts are read together.

        The engine only waits for more requests if, the last time, others joined while the first ones ran.
        """
        joining, yielded = self._join(), 0
        while joining and len(joining) < self._rows and yielded < _YIELDS:
            sleep(0)  # only lets other threads run
            found = self._join()
            joining += found
            yielded = 0 if found else yielded + 1
        if not joining:
            return []
        waits, self._followed, end = self._followed, False, perf_counter() + _AT_MOST
        while waits and len(joining) < self._rows and self._asleep.acquire(timeout=_APART):
            found = self._join()
            joining += found
            self._followed |= bool(found)
            waits = perf_counter() < end and not self._closed
        return joining

    def _begin(self, joining: list[tuple[Model, Job]]) -> Runner | None:
        """Begin with the first job for which rows can be made; the others stay in the list."""
        while joining:
            model, job = joining.pop(0)
            try:
                return Runner(model, [job], self._options, rows=self._rows)
            except Exception as error:  # this job's error
                job.fail(error)
        return None

    def _tell(self) -> None:
        """Wake the readers of texts that have grown, and drop texts that are over."""
        wake([sleeper for feed in self._running for sleeper in feed.sleepers()])
        if any(feed.over for feed in self._running):
            self._keep([feed for feed in self._running if not feed.over])

    def _keep(self, running: list[Feed]) -> None:
        """Only these go on; the tokens of the others are counted as finished at the same moment."""
        gone = set(self._running).difference(running)
        self._running, self._made = running, (self._made[0] + _tokens_of(gone), running)

    def _join(self) -> list[tuple[Model, Job]]:
        """Take as many waiting requests as there are free rows; the others may still be cancelled."""
        if not (self._waiting or self._cancelled):
            return []
        free = self._rows - sum(not (feed.job.ended or feed.job.launched_all) for feed in self._running)
        with self._lock:
            self._drop_cancelled()
            now = monotonic()
            joining = [self._waiting.pop(now) for _ in range(min(free, len(self._waiting)))]
            for feed, _ in joining:
                feed.joined = now
            self._running += [feed for feed, _ in joining]
            self._prompt_tokens += sum(len(feed.job.request.prompt_ids) for feed, _ in joining)
        return [(model, feed.job) for feed, model in joining]


def _not_compiled(job: Job) -> IncompleteError:
    return IncompleteError(
        f"prompt {job.request.number}: max_time was over before its output type was compiled. Give more max_time, or "
        "compile the type once with gen.compile.",
        replace(job.so_far(over=False), finish_reason="timeout"),
    )


def _tokens_of(feeds: Iterable[Feed]) -> int:
    """How many new tokens their texts have by now."""
    return sum(len(text.token_ids) for feed in feeds for text in feed.job.texts)


_threads: WeakSet[EngineThread] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop the threads before the interpreter ends: torch crashes if a thread computes meanwhile."""
    for thread in list(_threads):
        thread.close()


def _after_fork() -> None:
    for thread in list(_threads):
        thread.after_fork()


os.register_at_fork(after_in_child=_after_fork)
