"""What servers and asyncio programs call: an engine that requests join and leave, `agenerate` and `astream`."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from gen.arguments import LARGEST, check_flag, read_whole
from gen.calls import OneArguments, PromptArguments, Result, read_call, read_submitted
from gen.errors import ArgumentError
from gen.loop.engine_thread import EngineThread
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.results.texts import Completion
from gen.loop.run_all import run_all
from gen.loop.searches.drawing import draws
from gen.models.base import Model
from gen.models.idle_rows import Idle
from gen.requests.prompts import AnyPrompt, Prompt, Prompts
from gen.requests.reading import check_model
from gen.requests.request import Request
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler, Sampler
from gen.streaming import EngineStream

ROWS = 32  # how many requests run at once in the engine of `agenerate` and `astream`


class Engine:
    """One running batch in a thread of its own, which requests join and leave at any step; first come, first served.

    A text is what `gen.generate` gives for the same arguments, whatever runs beside it. The engine closes at the end of
    its `with` block, or when neither it nor a stream of it is referred to any more.

    Args:
        model: as for `gen.generate`.
        rows: how many requests run at once.
        max_waiting: how many more may wait.
        max_batch_tokens: as for `gen.generate`.
        replay: as for `gen.generate`.
        cuda_graph: as for `gen.generate`.
    Raises:
        ArgumentError: an argument cannot be used.
    """

    def __init__(
        self,
        model: Model,
        rows: int = 32,
        max_waiting: int = 256,
        max_batch_tokens: int | None = None,
        replay: bool = True,
        cuda_graph: bool = True,
    ) -> None:
        check_model(model)
        for name, flag in (("replay", replay), ("cuda_graph", cuda_graph)):
            check_flag(name, flag)
        if max_batch_tokens is not None:
            max_batch_tokens = read_whole("max_batch_tokens", max_batch_tokens, minimum=1)
        options = Options(
            rows=read_whole("rows", rows, minimum=1),
            max_batch_tokens=max_batch_tokens,
            replay=replay,
            cuda_graph=cuda_graph,
        )
        self._model = model
        self._loop = EngineThread(self, options, max_waiting=read_whole("max_waiting", max_waiting))

    def submit(self, prompt: Prompt, output_type: Any = None, **arguments: Unpack[OneArguments]) -> EngineStream:
        """Let a request join the batch; from any thread, at once.

        Arguments are those of `gen.stream`, but for `replay` and `cuda_graph`, which are the engine's. They are checked
        in the caller's thread. An output type that has not been compiled before is compiled in another thread, and what
        is amiss with it is raised by the stream.

        Returns:
            Its text, as it grows: to read with `for` in a thread or with `async for` in any event loop.
        Raises:
            ArgumentError, ModelError: as of `gen.generate`.
            EngineFull: `rows` requests run and `max_waiting` wait.
            EngineClosed: the engine was closed, or has failed; its readers have been told why.
        """
        request, constrain = read_submitted("submit", self._model, prompt, output_type, arguments)
        return _submit(self._loop, self._model, request, constrain, owner=self)

    def close(self) -> None:
        """Take no more requests, and end those under way, whose readers get `EngineClosed`; wait at most a step."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def astream(model: Model, prompt: Prompt, output_type: Any = None, **arguments: Unpack[OneArguments]) -> EngineStream:
    """As `gen.stream`, for `async for`: the text grows in the model's own engine, beside those of others.

    The model makes that engine at the first call, and closes it in `model.release()` or at its own end.

    Arguments are those of `gen.stream`, but for `replay` and `cuda_graph`; they are checked at the call, output types
    as by `Engine.submit`.

    Raises:
        ArgumentError, ModelError: as of `gen.generate`.
    """
    request, constrain = read_submitted("astream", model, prompt, output_type, arguments)
    return _submit(_own_loop(model), model, request, constrain, owner=model)


Value = TypeVar("Value")
One = GreedySampler | None  # samplers that make one text a prompt, whatever their settings


@overload
async def agenerate(
    model: Model,
    prompt: Prompt,
    output_type: None = ...,
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[PromptArguments],
) -> str: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt,
    output_type: object = ...,
    *,
    sampler: One = ...,
    details: Literal[True],
    **arguments: Unpack[PromptArguments],
) -> Completion: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[PromptArguments],
) -> list[str]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    sampler: One = ...,
    details: Literal[True],
    **arguments: Unpack[PromptArguments],
) -> list[Completion]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool = ...,
    **arguments: Unpack[PromptArguments],
) -> Result: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt,
    output_type: type[Value],
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[PromptArguments],
) -> Value: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: type[Value],
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[PromptArguments],
) -> list[Value]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: object,
    *,
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool = ...,
    **arguments: Unpack[PromptArguments],
) -> Any: ...
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any = None,
    *,
    sampler: Sampler | Sequence[Sampler] | None = None,
    details: bool = False,
    **arguments: Unpack[PromptArguments],
) -> Any:
    """As `gen.generate`, from asyncio: the texts grow in the model's own engine, beside those of other calls.

    What that engine cannot run, such as beams and several samples a prompt, runs in a worker thread; output types are
    compiled in one. A task that is cancelled frees its rows by the next step.

    Args: as for `gen.generate`, but for `max_batch_tokens`, `progress`, `replay` and `cuda_graph`.
    Raises: as `gen.generate`; and EngineClosed where the model was released, or its engine has failed, before the end.
    """
    read = partial(read_call, model, prompt, output_type, sampler=sampler, details=details, **arguments)
    call = read() if output_type is None else await asyncio.to_thread(read)
    jobs = [new_job(model, request) for request in call.requests]
    if all(map(_runs, call.requests)):
        await _run_beside_others(model, jobs)
    else:
        try:
            await asyncio.to_thread(run_all, model, jobs, Options())
        finally:
            for job in jobs:
                job.cancelled = not job.ended
    return call.results(jobs)


async def _run_beside_others(model: Model, jobs: Sequence[Job]) -> None:
    """Run jobs in the model's engine until all have ended; what went wrong with one is in the job."""
    loop = _own_loop(model)
    feeds = [loop.add(model, job) for job in jobs]
    try:
        for feed in feeds:
            await feed.arrival(end=True)
            if isinstance(feed.failure, Exception):
                feed.job.error = feed.failure
            elif feed.failure is not None:
                raise feed.failure
    finally:
        for feed in feeds:
            feed.cancel()


def _runs(request: Request) -> bool:
    """Whether an engine runs it."""
    return draws(request.sampler) and len(request.seeds) == 1


def _submit(
    loop: EngineThread,
    model: Model,
    request: Request,
    constrain: Callable[[Request], Request] | None,
    *,
    owner: object,
) -> EngineStream:
    if not _runs(request):
        name = type(request.sampler).__name__
        what = {
            BeamSearchSampler: "a search of one beam is gen.samplers.greedy, or goes",
            MultinomialSampler: "give each parameter of the sampler as a number instead of a tensor, or let it go",
        }.get(type(request.sampler), f"a sampler of your own, as {name}, goes")
        raise ArgumentError(
            f"an engine runs gen.samplers.greedy and multinomial, whose parameters are numbers; {what} through "
            "gen.generate, or gen.agenerate from asyncio."
        )
    job = new_job(model, request, streamed=True)
    if constrain is None:
        return EngineStream(loop.add(model, job), owner)

    def prepare() -> None:
        job.request = constrain(request)
        job.takers = new_job(model, job.request, streamed=True).takers

    return EngineStream(loop.add(model, job, prepare), owner)


def _own_loop(model: Model) -> EngineThread:
    """The model's own engine, made at the first call, and made anew where it was closed or has failed."""
    idle: Any = getattr(model, "idle", None)
    if not isinstance(idle, Idle):
        check_model(model)
        raise ArgumentError(
            f"{type(model).__name__} has no place for an engine (`idle`, see gen.models.idle_rows); make a "
            "gen.Engine of it."
        )
    loop: EngineThread = idle.engine(lambda: EngineThread(model, Options(rows=ROWS), max_waiting=LARGEST))
    return loop
