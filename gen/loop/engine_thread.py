"""A batch that runs in a thread of its own, which requests join and leave: what a server stands on."""

import atexit
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock, Thread, current_thread
from weakref import WeakSet, finalize

from gen.errors import EngineClosed, EngineFull
from gen.loop.feed import Feed, wake
from gen.loop.jobs import Job
from gen.loop.memory import check_room
from gen.loop.options import Options
from gen.loop.runner import Runner
from gen.models.base import Model

logger = logging.getLogger("gen")

_PREPARERS = 2  # threads


class EngineThread:
    """One thread that runs requests, first come, first served, in one batch.

    It refers to no model while nothing runs, so that a model can go; its rows then lie with the model.

    Args:
        owner: the loop is closed when this ends.
        options: with `rows`, which says how many requests run at once.
        max_waiting: how many more may wait.
    """

    def __init__(self, owner: object, options: Options, *, max_waiting: int) -> None:
        assert options.rows is not None  # tells mypy
        self._options, self._rows, self._max_waiting = options, options.rows, max_waiting
        self._lock = Lock()  # of what waits; finalisers never take it
        self._waiting: deque[tuple[Model, Feed]] = deque()
        self._preparing: list[Feed] = []
        self._preparers = ThreadPoolExecutor(_PREPARERS, "gen engine prepares")
        self._running: list[Feed] = []
        self._some_cancelled = self._closed = False
        self._failure = ""
        self._asleep = Lock()  # held while there is nothing to do: unlike an event, finalisers may change it
        self._asleep.acquire()
        self._finalizer = finalize(owner, self._stop)
        self._thread = Thread(target=self._run, name="gen engine", daemon=True)
        _threads.add(self)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    def add(self, model: Model, job: Job, prepare: Callable[[], object] | None = None) -> Feed:
        """Let a request join.

        Args:
            prepare: to be run before that, in a thread for it; what it raises is the job's error.
        Raises:
            ArgumentError: it needs more room than there may be.
            EngineFull: as many wait as may.
            EngineClosed: it was closed, or has failed.
        """
        check_room([(job.request.number, job.width, job.most_tokens)], self._options.max_batch_tokens)
        feed = Feed(job, self._on_cancel)
        with self._lock:
            if self._full():
                self._drop_cancelled()
            if self._closed:
                raise EngineClosed(f"the engine {self._failure or 'was closed'}; make another one.")
            if self._full():
                raise EngineFull(
                    f"{self._rows} requests run and {self._max_waiting} wait, as many as may; ask again later."
                )
            if prepare is None:
                self._waiting.append((model, feed))
            else:
                self._preparing.append(feed)
                self._preparers.submit(self._prepare, model, feed, prepare)
        self._wake()
        return feed

    def close(self) -> None:
        """Take no more, end what there is with `EngineClosed`, and wait for the thread, a step at most."""
        self._finalizer.detach()
        self._stop()
        if current_thread() is not self._thread:
            self._thread.join()

    def _prepare(self, model: Model, feed: Feed, prepare: Callable[[], object]) -> None:
        """Run what comes before a request can wait, in a thread of its own kind."""
        try:
            if not feed.job.cancelled:
                prepare()
        except Exception as error:
            feed.job.error = error
        with self._lock:
            if feed not in self._preparing:  # the engine was closed
                return
            self._preparing.remove(feed)
            if not feed.job.ended:
                self._waiting.append((model, feed))
        if feed.job.ended:
            wake([feed.put()])
        else:
            self._wake()

    def _full(self) -> bool:
        taken = len(self._preparing) + len(self._waiting) + len(self._running)
        return taken >= self._max_waiting + self._rows

    def _stop(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self._asleep.release()

    def _on_cancel(self) -> None:
        self._some_cancelled = True
        self._wake()

    def _drop_cancelled(self) -> None:
        """Those who wait and were cancelled never start; the lock is held."""
        self._some_cancelled = False
        gone = [feed for _, feed in self._waiting if feed.job.cancelled]
        if gone:
            self._waiting = deque(waiting for waiting in self._waiting if waiting[1] not in gone)
            wake(feed.put() for feed in gone)

    def _run(self) -> None:
        """The thread."""
        error: BaseException = EngineClosed("the engine was closed while the request was under way.")
        try:
            while not self._closed:
                self._asleep.acquire()
                self._work()
        except BaseException as failure:  # whatever it is, readers are told, and nobody waits for ever
            logger.error("the engine's loop has failed: %s: %s", type(failure).__name__, failure)
            self._failure = f"has failed ({type(failure).__name__}: {failure})"
            error = failure
        with self._lock:
            self._closed = True
            left = [*self._running, *(feed for _, feed in self._waiting), *self._preparing]
            self._running, self._preparing = [], []
            self._waiting.clear()
        self._preparers.shutdown(wait=False, cancel_futures=True)
        wake(feed.fail(error) for feed in left)

    def _work(self) -> None:
        """Run until nothing is left to do, and give the rows back."""
        runner: Runner | None = None
        while not self._closed:
            for model, job in self._join():
                if runner is None:
                    runner = Runner(model, [job], self._options, rows=self._rows)
                else:
                    runner.add(job)
            if runner is None or not self._running:
                break
            runner.advance()
            wake(feed.put() for feed in self._running)
            self._running = [feed for feed in self._running if not feed.over]
        if runner is not None:
            runner.close()

    def _join(self) -> list[tuple[Model, Job]]:
        """Those who have waited longest, for as many as have a row; the others may still be cancelled."""
        taken = sum(not (feed.job.ended or feed.job.launched_all) for feed in self._running)
        with self._lock:
            if self._some_cancelled:
                self._drop_cancelled()
            joining = [self._waiting.popleft() for _ in range(min(self._rows - taken, len(self._waiting)))]
            self._running += [feed for _, feed in joining]
        return [(model, feed.job) for model, feed in joining]


_threads: WeakSet[EngineThread] = WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread computes while the interpreter ends, which torch does not survive."""
    for thread in list(_threads):
        thread.close()
