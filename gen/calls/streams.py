"""Streams: a text comes piece by piece, or event by event, and its completion at the end."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Literal, Self, TypeVar

from gen.calls.growing import END, NOTHING, Each, Found, Growing, items_of, values_of
from gen.completions import Completion, StreamEvent
from gen.constraints.constraint import Constraint
from gen.errors import GenError
from gen.loop.feed import Feed
from gen.loop.jobs import Job
from gen.loop.results.values import valued
from gen.requests.request import Request

T = TypeVar("T")


class Stream(Iterator[str]):
    """The pieces of one text, none of them empty, and at its end the completion.

    A text of an output type that ends before it is whole raises `IncompleteError` after its last piece, and one whose
    type refuses the value a `ValueRefusedError`.

    A stream is closed at the end of its `with` block, and when nothing refers to it any more.
    """

    _compiles_late = False  # whether its output type may be compiled after the call

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._closed = False
        self._read_as = ""
        self._growing: Growing | None = None

    @property
    def request(self) -> Request:
        """What it continues."""
        return self._feed.job.request

    @property
    def _constraint(self) -> Constraint | None:
        return self._feed.job.request.constraint

    @property
    def prompt_tokens(self) -> int:
        """How many tokens its prompt has."""
        return len(self._feed.job.request.prompt_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        """The token ids of its prompt."""
        return list(self._feed.job.request.prompt_ids)

    def so_far(self) -> Completion:
        """The part of the text that is certain by now, without waiting; after the end, what `completion` gives.

        Before the end, the finish_reason is None, or "cancelled" once the stream was closed or cancelled. The value of
        an output type is always None. No pieces are taken: you still get all of them.

        Raises:
            Exception: the error of a text that has failed.
        """
        return self._feed.so_far()

    def __next__(self) -> str:
        self._reads("pieces")
        return next(self._each(self._feed.take))

    def events(self) -> Each[StreamEvent]:
        """The text as events instead of pieces: each has the new text, reasoning, tool calls and tokens.

        The result is for `for` and `async for`; `async for` is for streams of engines.

        Raises:
            GenError: pieces have been read; a stream gives either pieces or events.
        """
        self._reads("events")
        return self._each(self._feed.take_event)

    def close(self) -> None:
        """Stop generating and free the text's memory; no more pieces come. In an engine, its row is free by the next
        step, and a request that waits never starts."""
        self._closed = True
        self._feed.cancel()

    def completion(self) -> Completion:
        """What `generate` returns for the same arguments with `details=True`.

        Raises:
            GenError: the text has not ended yet, or it was closed or failed before its end.
            IncompleteError: the text is no whole value of its output type.
            ValueRefusedError: its output type refuses the value.
        """
        if not self._feed.ended:
            raise GenError(
                "the text has not ended; take all pieces of the stream before its completion (a stream that was closed "
                "early, or that failed, has none)."
            )
        try:
            self._feed.check()
            made = self._feed.completion()
        except Exception as error:  # a processor of the user may raise any error
            raise GenError(f"the stream has failed and has no completion: {error}") from error
        return valued(self._feed.job.request, made)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._feed.cancel()

    def _each(self, take: Callable[[], T | Literal[""] | None]) -> Each[T]:
        return Each(self._feed, partial(self._take, take))

    def _take(self, take: Callable[[], T | Literal[""] | None]) -> Any:
        """What has come; END at the end, NOTHING where nothing has come yet."""
        if self._closed:
            return END
        if (found := take()) is None:
            return NOTHING
        if found != "":
            return found
        self._feed.check()
        if self._feed.ended and self._constraint is not None:
            self.completion()  # raises where the text is not whole
        return END

    def _grow(self, make: Callable[[], Found]) -> Growing:
        return Growing(self, self._each(self._feed.take), make)

    def values(self) -> Growing:
        """The value of an output type as far as it is written, as plain data, each time that it has grown.

        This is for types whose text is a JSON object or array. What a value has shown does not change, but for the end
        of the last string, and for a name of a dict that comes again. A number appears when it is whole, and so does a
        string that is an option, a date or in another format, or part of a union. Other types give one value, at the
        end. The result is for `for` and `async for`; `async for` is for streams of engines.

        Raises:
            GenError: the stream has been read as something else.
            IncompleteError, ValueRefusedError: at the end, as for pieces.
        """
        self._reads("values")
        self._growing = self._growing or self._grow(lambda: values_of(self._constraint))
        return self._growing

    def items(self, of: str | None = None) -> Growing:
        """The items of `list[T]` or `gen.repeat`, each as soon as no more text can change it, as a value of its type.

        They are read as T. What validates the whole list runs at the end: it may still refuse them, and what it changes
        is in the completion's value alone.

        Args:
            of: the field of an object whose items are given instead, as "lines" for lines: list[Line].
        Raises:
            ArgumentError: the output type has no such items.
            ValueRefusedError: its type refuses an item, at that item; or the whole value, after its last item.
            GenError, IncompleteError: as for `values`.
        """
        found = self._grow(lambda: items_of(self._constraint, of))
        if self._constraint is not None or not self._compiles_late:
            found.check()
        self._reads("items" if of is None else f"items of {of}")
        self._growing = self._growing or found
        return self._growing

    @property
    def over(self) -> bool:
        """Whether nothing more will come; pieces may still be there that nobody has taken."""
        return self._feed.over

    @property
    def given_up(self) -> bool:
        """Whether it was closed before its text had ended: then it has no completion."""
        return self._closed and not self._feed.ended

    def _reads(self, what: str) -> None:
        """Raise a GenError if the stream has been read as something else."""
        if self._read_as != what:
            if self._read_as:
                raise GenError(f"the stream is read as {self._read_as}, and gives no {what} beside them.")
            self._read_as = what


class OwnTurns(Feed):
    """The feed of a text that grows in the thread that reads it: who waits for more advances the text by one step.

    Args:
        turns: advances the text by one step at a time, and raises what goes wrong.
    """

    def __init__(self, turns: Generator[None], job: Job) -> None:
        super().__init__(job, lambda feed: self._close())
        self._turns = turns

    def _close(self) -> None:
        try:  # noqa: SIM105 - finalisers run this, for whom no import may be left
            self._turns.close()
        except ValueError:
            pass  # another thread takes a turn now, at whose end the text is over

    def wait(self, *, end: bool = False) -> None:
        try:
            next(self._turns, None)
            for _ in self._turns if self.over else ():
                pass  # its rows are given back
        except BaseException as error:
            self.fail(error)
            raise

    async def arrival(self, *, end: bool = False) -> None:
        self.wait(end=end)


@dataclass(frozen=True)
class Progress:
    """How far the text of an engine has come. Times are seconds since it was submitted.

    Attributes:
        tokens: how many it has.
        prompt_tokens: how many tokens its prompt has.
        cached_tokens: how many of these were in the KV cache already.
        waited: until it got a row; None if it has none yet.
        first_token: until its first token was there; None before.
        seconds: until its end, or until now.
    """

    tokens: int
    prompt_tokens: int
    cached_tokens: int
    waited: float | None
    first_token: float | None
    seconds: float


class EngineStream(Stream, AsyncIterator[str]):
    """A text that grows in an engine's thread, for readers in threads (`for`) and in event loops (`async for`).

    Pieces that have not been taken are merged into one, and so are events: the engine never waits for a slow reader. A
    reader in a thread waits at least 8 ms for a piece that is not there yet, so that it does not hold up a fast model.
    A reader that gives up waiting, as in `asyncio.wait_for(anext(stream), 1)`, loses no piece, and the text goes on.

    Args:
        owner: the object that closes the engine when it is deleted; the stream keeps it alive.
    """

    _compiles_late = True

    def __init__(self, feed: Feed, owner: object) -> None:
        super().__init__(feed)
        self._owner = owner

    async def __anext__(self) -> str:
        self._reads("pieces")
        return await anext(self._each(self._feed.take))

    def cancel(self) -> None:
        """As `close`."""
        self.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def completion(self) -> Completion:
        """See `Stream.completion`; waits for the end of the text, whether or not its pieces have been taken."""
        self._feed.wait(end=True)
        if not self._feed.ended:
            raise GenError("the stream was closed before its text had ended; it has no completion.")
        self._feed.check()
        return valued(self._feed.job.request, self._feed.completion())

    def progress(self) -> Progress:
        """How far the text has come, and when; from any thread, without waiting."""
        feed, job = self._feed, self._feed.job
        return Progress(
            tokens=sum(len(text.token_ids) for text in job.texts),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=job.cached,
            waited=None if feed.joined is None else feed.joined - feed.came,
            first_token=None if feed.first is None else feed.first - feed.came,
            seconds=(monotonic() if feed.left is None else feed.left) - feed.came,
        )

    async def acompletion(self) -> Completion:
        """As `completion`, for event loops."""
        await self._feed.arrival(end=True)
        return self.completion()
