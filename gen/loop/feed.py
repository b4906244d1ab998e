"""A text on its way from the engine's thread to its readers, in threads and in event loops; nobody waits for them."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Condition

from gen.loop.jobs import Job
from gen.loop.results.texts import Text

Sleeper = tuple[asyncio.AbstractEventLoop, asyncio.Event]  # a reader in an event loop that waits for more


class Feed:
    """One request's text on its way from the engine's thread to its readers.

    Args:
        wake: lets the thread look again; may be called at any moment, by a finaliser too.

    Attributes:
        failure: what ended it, through no fault of the request.
    """

    def __init__(self, job: Job, wake: Callable[[], object]) -> None:
        self.job, self._wake = job, wake
        self._changed = Condition()  # of what follows
        self._unread = ""
        self._over = False
        self.failure: BaseException | None = None
        self._sleepers: list[Sleeper] = []

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._over

    @property
    def ended(self) -> bool:
        """Whether it is over, and not because it was cancelled."""
        job = self.job
        failed = self.failure is not None or job.error is not None
        return self._over and (failed or all(taker.ended for taker in job.takers))

    def take(self) -> str | None:
        """What has come since the last call; "" where it is over, None where nothing has come yet."""
        with self._changed:
            piece, self._unread = self._unread, ""
            return piece if piece or self._over else None

    def check(self) -> None:
        """Raise what went wrong, if something did, with this request or with the engine."""
        errors = [self.failure, self.job.error, *(text.error for text in self._texts)]
        for error in errors:
            if error is not None:
                raise error

    def wait(self, *, end: bool = False) -> None:
        """Wait for the next piece, or for the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready(end))

    async def arrival(self, *, end: bool = False) -> None:
        """As `wait`, in an event loop."""
        while True:
            with self._changed:
                if self._ready(end):
                    return
                event = asyncio.Event()
                self._sleepers.append((asyncio.get_running_loop(), event))
            await event.wait()

    def cancel(self) -> None:
        """Nobody wants it any more: its row is free by the next step. Takes no lock, since finalisers call it."""
        if not self._over:
            self.job.cancelled = True
            self._wake()

    def put(self) -> list[Sleeper]:
        """Add what its text has grown by, in the engine's thread; whom to wake."""
        over = self.job.ended  # before the text is read
        piece = "".join(text.read() for text in self._texts)
        return self._put(piece, over) if piece or over else []

    def fail(self, error: BaseException) -> list[Sleeper]:
        """Nothing more will come, through no fault of the request; whom to wake."""
        self.failure = error
        return self._put("", over=True)

    @property
    def _texts(self) -> list[Text]:
        return [text for taker in self.job.takers for text in taker.texts]

    def _put(self, piece: str, over: bool) -> list[Sleeper]:
        with self._changed:
            self._unread += piece
            self._over = over
            self._changed.notify_all()
            sleepers, self._sleepers = self._sleepers, []
            return sleepers

    def _ready(self, end: bool) -> bool:
        return self._over or (bool(self._unread) and not end)


def wake(sleepers: Iterable[list[Sleeper]]) -> None:
    """Wake readers in event loops: one call a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for some in sleepers:
        for loop, event in some:
            by_loop.setdefault(loop, []).append(event)
    for loop, events in by_loop.items():
        with suppress(RuntimeError):  # the event loop is closed, and its readers are gone
            loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
