"""A text that comes piece by piece, and the completion that it ends as."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace

from gen.completions import Completion
from gen.errors import GenError
from gen.loop.feed import Feed
from gen.loop.jobs import Job
from gen.loop.results.values import valued


class Stream(Iterator[str], ABC):
    """The pieces of one text, none of them empty, and at its end the completion.

    A text of an output type that ends before it is whole raises `IncompleteError` after its last piece.

    A stream that is no longer referred to is closed.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def prompt_tokens(self) -> int:
        """How many tokens its prompt has."""
        return len(self._job.request.prompt_ids)

    @abstractmethod
    def so_far(self) -> Completion:
        """What has become certain of the text by now, at once; at its end what `completion` gives.

        Before its end the finish_reason is None, or "cancelled" once it was closed or cancelled. The value of an output
        type is None. Nothing is taken from the pieces.

        Raises:
            Exception: what went wrong, where the text has failed.
        """

    @abstractmethod
    def __next__(self) -> str: ...

    @abstractmethod
    def close(self) -> None:
        """Stop generating and free the text's memory; the pieces so far were all."""

    @abstractmethod
    def completion(self) -> Completion:
        """What `generate` returns for the same arguments with `details=True`.

        Raises:
            GenError: there is none: the text has not ended yet, or it was closed or failed before its end.
            IncompleteError: the text is no whole value of its output type.
        """


class CallerStream(Stream):
    """A text that grows in the thread that takes its pieces: each piece is made when it is asked for."""

    def __init__(self, pieces: Generator[str], job: Job) -> None:
        super().__init__(job)
        self._pieces = pieces
        self._closed = False

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """See `Stream.close`."""
        self._pieces.close()
        self._closed = True

    def so_far(self) -> Completion:
        """See `Stream.so_far`."""
        found = self._job.so_far(over=self._job.ended)
        return replace(found, finish_reason="cancelled") if self._closed and found.finish_reason is None else found

    def completion(self) -> Completion:
        """See `Stream.completion`; all pieces must have been taken."""
        if not self._job.ended:
            raise GenError(
                "the text has not ended; take all pieces of the stream before its completion (a stream that was closed "
                "early, or that failed, has none)."
            )
        try:
            made = self._job.completions()[0]
        except Exception as error:  # a processor of the user's fails with errors of every kind
            raise GenError(f"the stream has failed and has no completion: {error}") from error
        return valued(self._job.request, made)


class EngineStream(Stream, AsyncIterator[str]):
    """A text that grows in an engine's thread, for readers in threads (`for`) and in event loops (`async for`).

    Pieces that have not been taken are merged into one: nobody waits for a slow reader.

    Args:
        owner: what closes the engine when it ends; it stays for as long as the stream does.
    """

    def __init__(self, feed: Feed, owner: object) -> None:
        super().__init__(feed.job)
        self._feed, self._owner = feed, owner
        self._closed = False

    def __next__(self) -> str:
        while (piece := self._take()) is None:
            self._feed.wait()
        if not piece:
            raise StopIteration
        return piece

    async def __anext__(self) -> str:
        while (piece := self._take()) is None:
            try:
                await self._feed.arrival()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if not piece:
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        """See `Stream.close`: the row is free by the next step, and a request that waits never starts."""
        self._closed = True
        self._feed.cancel()

    def cancel(self) -> None:
        """As `close`."""
        self.close()

    def so_far(self) -> Completion:
        """See `Stream.so_far`; from any thread."""
        return self._feed.so_far()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def completion(self) -> Completion:
        """See `Stream.completion`; waits for the end of the text, whether or not its pieces have been taken."""
        self._feed.wait(end=True)
        if not self._feed.ended:
            raise GenError("the stream was closed before its text had ended; it has no completion.")
        self._feed.check()
        return valued(self._feed.job.request, self._feed.job.completions()[0])

    async def acompletion(self) -> Completion:
        """As `completion`, for event loops; a task that is cancelled frees the row by the next step."""
        try:
            await self._feed.arrival(end=True)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.completion()

    def __del__(self) -> None:
        self._feed.cancel()

    def _take(self) -> str | None:
        """What has come; "" at the end, None where nothing has come yet."""
        if self._closed:
            return ""
        piece = self._feed.take()
        if piece == "":
            self._feed.check()
            if self._feed.ended and self._feed.job.request.constraint is not None:
                self.completion()  # raises where the text is not whole
        return piece
