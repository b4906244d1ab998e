"""One running batch in a thread of its own, which requests join and leave: what a server stands on."""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from threading import Condition, Thread
from typing import Any

from gen.errors import GenError
from gen.loop.batch import Job
from gen.loop.running import Options, Runner, completions
from gen.loop.texts import Completion, Text
from gen.models.base import Model

logger = logging.getLogger("gen")


class EngineFull(GenError):
    """As many requests wait as may: ask again later."""


class EngineClosed(GenError):
    """The engine takes no more requests, because it was closed or because its loop has failed."""


class Reader(Iterator[str], AsyncIterator[str]):
    """One request's text, piece by piece, for one reader: `for` in a thread, `async for` in an event loop.

    Pieces that the reader has not fetched yet are merged, so that a slow one holds nobody up and grows no queue.
    """

    def __init__(self, job: Job, inbox: "_Inbox") -> None:
        self._job, self._inbox = job, inbox
        self._changed = Condition()
        self._unread = ""
        self._over = False
        self._error: BaseException | None = None
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __iter__(self) -> "Reader":
        return self

    def __next__(self) -> str:
        with self._changed:
            self._changed.wait_for(lambda: self._unread or self._over)
            return self._take() or self._end(StopIteration())

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> str:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        try:
            while True:
                with self._changed:
                    if self._unread or self._over:
                        return self._take() or self._end(StopAsyncIteration())
                    self._waiter = loop, event
                    event.clear()
                await event.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            with self._changed:
                self._waiter = None

    async def aclose(self) -> None:
        """As `cancel`."""
        self.cancel()

    def close(self) -> None:
        """As `cancel`."""
        self.cancel()

    def cancel(self) -> None:
        """Stop this request: its row is free by the next step; one that waits never starts."""
        self._job.cancelled = True
        self._inbox.wake()

    def completion(self) -> Completion:
        """What `generate` returns with `details=True`; waits until the text has ended.

        Raises:
            GenError: what went wrong with this text, or that it was cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over)
        if self._error is not None:
            raise self._error
        if self._job.cancelled:
            raise GenError("the request was cancelled before its text had ended; it has no completion.")
        return completions(self._job)[0]

    def put(self) -> "tuple[asyncio.AbstractEventLoop, asyncio.Event] | None":
        """Called by the engine's thread when the text may have grown; whom to wake."""
        [taker] = self._job.takers
        assert isinstance(taker, Text)  # an engine's requests are draws of one text; tells mypy
        piece = taker.read()
        if not piece and not self._job.ended:
            return None
        with self._changed:
            self._unread += piece
            self._over = self._over or self._job.ended
            self._error = self._error or self._job.error or taker.error
            self._changed.notify_all()
            return self._waiter

    def fail(self, error: BaseException) -> "tuple[asyncio.AbstractEventLoop, asyncio.Event] | None":
        """Called by the engine's thread when nothing more will come, because of an error that is not this request's."""
        with self._changed:
            if not self._over:
                self._over, self._error = True, error
            self._changed.notify_all()
            return self._waiter

    def _take(self) -> str:
        piece, self._unread = self._unread, ""
        return piece

    def _end(self, stop: BaseException) -> Any:
        raise self._error if self._error is not None else stop


class _Inbox:
    """Where requests wait for the engine's thread; it knows no engine, so that one that nobody has any more can go."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.readers: deque[tuple[Job, Reader]] = deque()
        self.closed = False
        self.failure: BaseException | None = None
        self._woken = False

    def wake(self) -> None:
        """Let the thread look again."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def close(self) -> None:
        """Take no more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def wait(self) -> None:
        """Until there is something to do."""
        with self.changed:
            self.changed.wait_for(lambda: self.readers or self.closed or self._woken)
            self._woken = False


class Engine:
    """Runs requests as they come, first come, first served, in one batch of `rows` rows; see `gen.Engine`."""

    def __init__(self, model: Model, options: Options, *, max_waiting: int) -> None:
        self._model, self._options, self._max_waiting = model, options, max_waiting
        self._runner: Runner | None = None
        self._running: dict[Job, Reader] = {}
        self._inbox = _Inbox()
        self._waiting = 0
        self._thread = Thread(target=_run, args=(weakref.ref(self), self._inbox), name="gen engine", daemon=True)
        weakref.finalize(self, self._inbox.close)
        self._thread.start()

    def add(self, job: Job) -> Reader:
        """Let a request join.

        Raises:
            EngineFull: as many wait as may.
            EngineClosed: the engine is closed, or its loop has failed.
        """
        inbox = self._inbox
        with inbox.changed:
            if inbox.closed:
                raise EngineClosed(f"the engine is closed{f': {inbox.failure}' if inbox.failure else '.'}")
            if len(inbox.readers) + self._waiting >= self._max_waiting:
                raise EngineFull(f"{self._max_waiting} requests wait already; ask again later, or give max_waiting.")
            reader = Reader(job, inbox)
            inbox.readers.append((job, reader))
            inbox.changed.notify_all()
        return reader

    def close(self) -> None:
        """End all requests with `EngineClosed` and wait for the thread."""
        self._inbox.close()
        self._thread.join()

    def work(self) -> None:
        """Run until nothing is left to do; in the engine's thread."""
        while self._join() and self._runner is not None:
            self._runner.advance()
            self._tell([reader.put() for reader in self._running.values()])
            for job in [job for job in self._running if job.ended]:
                del self._running[job]
            with self._inbox.changed:
                self._waiting = self._runner.waiting

    def fail(self, error: BaseException) -> None:
        """Nothing more will come: tell all readers."""
        inbox = self._inbox
        with inbox.changed:
            inbox.closed = True
            if not isinstance(error, EngineClosed):
                inbox.failure = error
            left = [*self._running.values(), *(reader for _, reader in inbox.readers)]
            inbox.readers.clear()
        self._running.clear()
        self._tell([reader.fail(error) for reader in left])

    def _join(self) -> bool:
        """Take what has come into the batch; whether there is something to do."""
        inbox = self._inbox
        with inbox.changed:
            if inbox.closed:
                return False
            new = [*inbox.readers]
            inbox.readers.clear()
        for job, reader in new:
            self._running[job] = reader
            if self._runner is None:
                self._runner = Runner(self._model, [job], self._options, rows=self._options.rows)
            else:
                self._runner.add(job)
        return self._runner is not None and not self._runner.idle

    @staticmethod
    def _tell(waiters: "list[tuple[asyncio.AbstractEventLoop, asyncio.Event] | None]") -> None:
        """Wake readers in event loops: one call a loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        for waiter in waiters:
            if waiter is not None:
                by_loop.setdefault(waiter[0], []).append(waiter[1])
        for loop, events in by_loop.items():
            try:
                loop.call_soon_threadsafe(_set_all, events)
            except RuntimeError:  # that event loop is closed, and its readers with it
                logger.debug("an event loop was closed while its requests were running")


def _run(engine_of: "weakref.ref[Engine]", inbox: _Inbox) -> None:
    """The engine's thread: holds the engine only while it works, so that a model that nobody has any more can go."""
    while True:
        inbox.wait()
        engine = engine_of()
        if engine is None:
            return
        try:
            engine.work()
        except BaseException as error:  # whatever it is, readers are told, and nobody waits for ever
            logger.error("the engine's loop has failed: %s", error)
            engine.fail(error)
            return
        if inbox.closed:
            engine.fail(EngineClosed("the engine was closed."))
            return
        del engine


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
