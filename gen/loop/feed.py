"""A text on its way from an engine's queue to its readers, in threads and in event loops; and that queue.

The engine never waits for a reader. At each turn it only checks whether a reader waits; readers decode the text.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Lock, Thread, current_thread
from time import monotonic, sleep
from typing import Literal, NamedTuple, TypeVar

from gen.completions import Completion, StreamEvent
from gen.errors import ArgumentError, own
from gen.loop.jobs import Job
from gen.loop.results.events import Events
from gen.models.base import Model

BETWEEN = 0.008  # seconds that a reader in a thread waits after a piece, because waking it costs a part of a step

T = TypeVar("T")
Sleeper = tuple[asyncio.AbstractEventLoop | None, Callable[[], object]]  # a reader's event loop, and what wakes it


class Feed:
    """One request's text on its way from the engine's thread to its readers.

    Args:
        wake: makes the engine's thread look again; may be called at any moment, also by a finaliser.
        thread: the engine's, which may not wait; None where there is none.

    Attributes:
        over: whether nothing more will come.
        came: when the request came, on the clock of `time.monotonic`.
        joined: when it got a row; None if it has none yet.
        first: when its first token was there; None before.
        left: when it was over; None before.
    """

    def __init__(self, job: Job, wake: Callable[["Feed"], object], thread: Thread | None = None) -> None:
        self.job, self._wake, self._thread = job, wake, thread
        job.done = self._end
        self.over = False
        self.came = monotonic()
        self.joined: float | None = None
        self.first: float | None = None
        self.left: float | None = None
        self._reading = Lock()  # only readers take it
        self._taken = 0.0  # when the newest piece was taken
        self._events: Events | None = None
        self._for_more: deque[Sleeper] = deque()
        self._for_end: deque[Sleeper] = deque()

    @property
    def ended(self) -> bool:
        """Whether it is over, and not because it was cancelled."""
        return self.over and (self.job.error is not None or all(taker.ended for taker in self.job.takers))

    def take(self) -> str | None:
        """What has come since the last call; "" if the text is over, None if nothing has come yet.

        Raises:
            Exception: a tokenizer has failed; the request ends with its error.
        """
        over = self.over  # looked up before the text is read
        piece = self._read(lambda: "".join([text.read() for text in self.job.texts]))
        return piece if piece or over else None

    def take_event(self) -> StreamEvent | Literal[""] | None:
        """As `take`, as an event."""
        over = self.over
        event = self._read(lambda: self._read_event(over))
        return "" if event is None and over else event

    def _read_event(self, over: bool) -> StreamEvent | None:
        if not (texts := self.job.texts):  # a search is under way
            return None
        if self._events is None or self._events.request is not self.job.request:  # replaced when its type is compiled
            self._events = Events(self.job.request, self.job.told_of_prompt)
        return self._events.read(texts[0], last=over)

    def _read(self, read: Callable[[], T]) -> T:
        """Let one reader at a time read; if reading fails, as a tokenizer may, the request ends with the error."""
        with self._reading:
            try:
                found = read()
                if found:
                    self._taken = monotonic()
                return found
            except Exception as error:
                self.job.error = error
                self.cancel()
                raise

    def so_far(self) -> Completion:
        over = self.over  # looked up before the text is read
        self.check()
        with self._reading:
            return self.job.so_far(over=over)

    def completion(self) -> Completion:
        """The text once it has ended; a reader that decodes it at this moment is waited for.

        Raises:
            Exception: as `Job.completions`.
        """
        with self._reading:
            return self.job.completions()[0]

    def check(self) -> None:
        """Raise the error of the request or the engine, if there is one; each time a copy."""
        for error in (self.job.error, *(text.error for text in self.job.texts)):
            if error is not None:
                raise own(error)

    def wait(self, *, end: bool = False) -> None:
        """Wait until more has come, or with `end` until the text is over."""
        if not end and not self._ready(end) and (rest := self._taken + BETWEEN - monotonic()) > 0:
            sleep(rest)
        while not self._ready(end):
            waiting = Lock()
            waiting.acquire()
            if self._sleeps((None, waiting.release), end):
                waiting.acquire()

    async def arrival(self, *, end: bool = False) -> None:
        """As `wait`, in an event loop."""
        while not self._ready(end):
            event = asyncio.Event()
            if self._sleeps((asyncio.get_running_loop(), event.set), end):
                await event.wait()

    def cancel(self) -> None:
        """End the text: its row is free by the next step. Takes no lock, because finalisers call it."""
        if not self.over:
            self.job.cancelled = True
            self._wake(self)

    def fail(self, error: BaseException) -> list[Sleeper]:
        """End the text with an error that the request is not to blame for, unless it is over; return the readers to
        wake."""
        if not self.over:
            self.job.error = own(error)
            self._end(self.job)
        return self.sleepers()

    def sleepers(self) -> list[Sleeper]:
        """The readers to wake, because what they wait for has come; each is returned once."""
        if self.first is None and any(text.token_ids for text in self.job.texts):
            self.first = monotonic()
        found: list[Sleeper] = []
        if self._for_more and self._ready(end=False):
            _move(self._for_more, found)
        if self._for_end and self.over:
            _move(self._for_end, found)
        return found

    def _end(self, job: Job) -> None:
        self.left = monotonic()
        self.over = True

    def _ready(self, end: bool) -> bool:
        return self.over or (not end and any(text.grown for text in self.job.texts))

    def _sleeps(self, sleeper: Sleeper, end: bool) -> bool:
        """Let a reader be woken later; whether it must wait, because nothing has come in the meantime."""
        if current_thread() is self._thread:
            raise ArgumentError(
                "an engine's thread, which runs logits processors, cannot wait for a text of that engine: it would "
                "wait for itself. Call gen.generate there, or another engine."
            )
        (self._for_end if end else self._for_more).append(sleeper)
        return not self._ready(end)


def wake(sleepers: Iterable[Sleeper]) -> None:
    """Wake readers, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}
    for loop, wakes in sleepers:
        if loop is None:
            wakes()
        else:
            by_loop.setdefault(loop, []).append(wakes)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the event loop is closed, and its readers are gone
            loop.call_soon_threadsafe(_call_all, some)


def _call_all(functions: list[Callable[[], object]]) -> None:
    for function in functions:
        function()


def _move(source: deque[Sleeper], target: list[Sleeper]) -> None:
    """Move all readers; those that add themselves meanwhile are moved too."""
    while source:
        target.append(source.popleft())


PATIENCE = 60.0  # seconds after which a request is next, whatever its priority


class _Place(NamedTuple):
    model: Model
    priority: int
    since: float


class WaitingLine:
    """Waiting requests: the lowest priority comes first, among equals the first that came. A request that has waited
    long is next, whatever its priority.
    """

    def __init__(self) -> None:
        self._places: dict[Feed, _Place] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._places)

    def add(self, feed: Feed, model: Model, priority: int, now: float) -> None:
        """Let a request wait, from `now` on, in seconds of any clock."""
        self._places[feed] = _Place(model, priority, now)

    def pop(self, now: float) -> tuple[Feed, Model]:
        """Take the next request out of the line."""
        feed, first = next(iter(self._places.items()))
        if now - first.since < PATIENCE:  # nobody has waited longer
            feed = min(self._places, key=lambda one: self._places[one].priority)  # the first among equals
        return feed, self._places.pop(feed).model

    def remove(self, feed: Feed) -> bool:
        """Take a request out of the line; whether it was in it."""
        return self._places.pop(feed, None) is not None
