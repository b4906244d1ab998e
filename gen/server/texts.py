"""The texts of one request, which grow in the engine while its client waits; when the client leaves, they end."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gen.calls.streams import EngineStream, Progress
from gen.completions import Completion, StreamEvent
from gen.errors import EngineFull, IncompleteError, ValueRefusedError
from gen.loop.results.events import Events

WITHOUT_VALUE = (IncompleteError, ValueRefusedError)  # errors of texts that clients get nevertheless
_PAUSE = 0.02  # seconds until a text asks again for room in the engine, after other texts of its request got room
_TOGETHER = 0.02  # seconds: what grows within this time after an event is part of the next event


@dataclass(frozen=True)
class Ended:
    """A text that has ended.

    Attributes:
        completion: as `gen.generate` gives it with details=True.
        said: everything as one event: the text, the thoughts, and the calls of tools.
    """

    completion: Completion
    said: StreamEvent


class Texts:
    """The texts of a request, in order; at most as many run at once as the engine has rows.

    Args:
        submit: lets the texts of some numbers join the engine, either all of these or none.
        count: how many texts there are.
        n: how many of them each prompt has; they have consecutive numbers.
        rows: how many texts run at once.
        only_prompts: whether only the prompts' log-probabilities are wanted.
    """

    def __init__(
        self,
        submit: Callable[[Sequence[int]], Sequence[EngineStream]],
        count: int,
        n: int,
        rows: int,
        *,
        only_prompts: bool = False,
    ) -> None:
        self._submit, self._n, self._rows = submit, n, rows
        self._only_prompts = only_prompts
        self.streams: list[EngineStream | None] = [None] * count
        self._slots = asyncio.Semaphore(rows)
        self._joining = asyncio.Lock()  # held by the text that asks for room next
        self._cancelled = False

    def begin(self) -> None:
        """Let texts join the engine, in a thread: as many as it has rows if there is room for all, else the first."""
        try:
            self._join(range(min(self._rows, len(self.streams))))
        except EngineFull:
            self._join([0])

    def cancel(self) -> None:
        """End all texts, also those that a thread lets join meanwhile: the client wants no more."""
        self._cancelled = True
        for stream in self.streams:
            if stream is not None:
                stream.cancel()

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompts have of texts that have joined; a prompt of several texts counts once."""
        return sum(stream.prompt_tokens for stream in self.streams[:: self._n] if stream is not None)

    @property
    def cached_tokens(self) -> int:
        """How many of these tokens were in the KV cache already."""
        return sum(stream.progress().cached_tokens for stream in self.streams[:: self._n] if stream is not None)

    def progress(self) -> list[Progress]:
        """How far each of the texts has come that have joined the engine."""
        return [stream.progress() for stream in self.streams if stream is not None]

    def so_far(self) -> list[str]:
        """The texts as far as they have come; "" for one that has failed."""
        found = []
        for stream in self.streams:
            text = ""
            if stream is not None:
                with suppress(Exception):  # it has failed, and the request's error tells why
                    text = stream.so_far().text
            found.append(text)
        return found

    def prompt_ids(self, number: int) -> Sequence[int]:
        """The token ids of a text's prompt; the text must have joined."""
        stream = self.streams[number]
        assert stream is not None  # tells mypy
        return stream.prompt_token_ids

    async def all(self) -> list[Ended]:
        """All texts, once all have ended."""
        tasks = [asyncio.create_task(self._whole(number)) for number in range(len(self.streams))]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def events(self) -> AsyncGenerator[tuple[int, StreamEvent | Completion]]:
        """What is new of any text, with the text's number: events, and at its end the completion."""
        return self._follow(0) if len(self.streams) == 1 else self._follow_all()

    async def _follow_all(self) -> AsyncGenerator[tuple[int, StreamEvent | Completion]]:
        queue: asyncio.Queue[tuple[int, StreamEvent | Completion | Exception]] = asyncio.Queue()

        async def follow(number: int) -> None:
            try:
                async for found in self._follow(number):
                    queue.put_nowait(found)
            except Exception as error:
                queue.put_nowait((number, error))

        tasks = [asyncio.create_task(follow(number)) for number in range(len(self.streams))]
        left = len(tasks)
        try:
            while left:
                number, found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                left -= isinstance(found, Completion)
                yield number, found
        finally:
            for task in tasks:
                task.cancel()

    def _join(self, numbers: Sequence[int]) -> None:
        for number, stream in zip(numbers, self._submit(numbers), strict=True):
            self.streams[number] = stream
        if self._cancelled:
            self.cancel()

    async def _stream(self, number: int) -> EngineStream:
        if self.streams[number] is None:
            async with self._joining:
                while self.streams[number] is None:
                    try:
                        await asyncio.to_thread(self._join, [number])
                    except EngineFull:
                        await asyncio.sleep(_PAUSE)
        stream = self.streams[number]
        assert stream is not None  # tells mypy
        return stream

    async def _whole(self, number: int) -> Ended:
        async with self._slots:
            stream = await self._stream(number)
            try:
                made = await stream.acompletion()
            except WITHOUT_VALUE as error:
                made = error.completion
            if self._only_prompts:
                made = replace(made, text="", token_ids=[], logprobs=[], top_logprobs=[], finish_reason="length")
            return Ended(made, Events(stream.request, lambda: None).whole(made))

    async def _follow(self, number: int) -> AsyncGenerator[tuple[int, StreamEvent | Completion]]:
        if self._only_prompts:
            ended = await self._whole(number)
            yield number, ended.said
            yield number, ended.completion
            return
        async with self._slots:
            stream, now = await self._stream(number), asyncio.get_running_loop().time
            with suppress(*WITHOUT_VALUE):
                async for event in stream.events():
                    told = now()
                    yield number, event
                    await asyncio.sleep(0 if stream.over else told + _TOGETHER - now())
            try:
                yield number, stream.completion()
            except WITHOUT_VALUE as error:
                yield number, error.completion
