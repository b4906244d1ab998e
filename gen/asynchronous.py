"""The functions for asyncio programs: `agenerate` and `astream`, whose texts grow in an engine that the model keeps."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeVar, Unpack, overload

from gen.arguments import LARGEST
from gen.calls import OnErrors, Result, read_call, read_submitted
from gen.completions import Completion
from gen.engine import runs_in_engines, submit
from gen.errors import ArgumentError, own
from gen.loop.engine_thread import EngineThread
from gen.loop.feed import Feed
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.run_all import run_all
from gen.loop.speculation.settings import Speculate, read_speculate
from gen.models.base import Model
from gen.models.checks import check_loaded
from gen.requests.prompts import AnyPrompt, Prompt, Prompts
from gen.requests.settings import OneArguments, PromptArguments, read_settings
from gen.samplers import GreedySampler, Sampler
from gen.streaming import EngineStream

ROWS = 32  # how many requests run at once in a model's own engine


class AnyArguments(PromptArguments, total=False):
    """The arguments of `agenerate` that do not change the type of its result."""

    num_return_sequences: int
    speculate: Speculate


class Arguments(AnyArguments, total=False):
    """The arguments of a call that raises its errors."""

    errors: Literal["raise"]


Value = TypeVar("Value")
One = GreedySampler | None  # samplers that always make one text a prompt


def astream(model: Model, prompt: Prompt, output_type: Any = None, **arguments: Unpack[OneArguments]) -> EngineStream:
    """As `gen.stream`, for `async for`: the text grows in the model's own engine, beside the texts of other calls.

    The model makes that engine at the first call, and closes it in `model.release()`, or when nothing refers to the
    model any more.

    Arguments are those of `gen.stream` without `replay`, `cuda_graph`, `exact` and `speculate`. They are checked at the
    call; output types are checked as `Engine.submit` does it.

    Raises:
        ArgumentError, ModelError: as `gen.generate`.
    """
    submitted = read_submitted("astream", model, prompt, output_type, read_settings("astream", arguments))
    [stream] = submit(_own_engine(model), model, [submitted], owner=model)
    return stream


@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    errors: Literal["return"],
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool = ...,
    **arguments: Unpack[AnyArguments],
) -> list[Any]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt,
    output_type: None = ...,
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> str: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt,
    output_type: object = ...,
    *,
    sampler: One = ...,
    details: Literal[True],
    **arguments: Unpack[Arguments],
) -> Completion: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> list[str]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    sampler: One = ...,
    details: Literal[True],
    **arguments: Unpack[Arguments],
) -> list[Completion]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool = ...,
    **arguments: Unpack[Arguments],
) -> Result: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt,
    output_type: type[Value],
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> Value: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: type[Value],
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> list[Value]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: object,
    *,
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool = ...,
    **arguments: Unpack[Arguments],
) -> Any: ...
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any = None,
    *,
    sampler: Sampler | Sequence[Sampler] | None = None,
    details: bool = False,
    num_return_sequences: int = 1,
    errors: OnErrors = "raise",
    speculate: Speculate = "auto",
    **arguments: Unpack[PromptArguments],
) -> Any:
    """As `gen.generate`, from asyncio: the texts grow in the model's own engine, beside those of other calls.

    That engine does not run beam searches, several samples a prompt, and calls whose `speculate` is not "auto": a
    worker thread runs these. Output types are compiled in a worker thread too. A task that is cancelled frees its rows
    by the next step.

    Args: as for `gen.generate`, without `max_batch_tokens`, `progress`, `replay`, `cuda_graph` and `exact`.
    Raises: as `gen.generate`; and EngineClosed if the model was released, or its engine has failed, before the end.
    """
    settings = read_settings("agenerate", {"sampler": sampler, **arguments})
    read = partial(
        read_call,
        model,
        prompt,
        output_type,
        settings,
        details=details,
        num_return_sequences=num_return_sequences,
        errors=errors,
        check=check_loaded,
    )
    call = read() if output_type is None else await asyncio.to_thread(read)
    jobs = [new_job(model, request) for request in call.requests]
    if read_speculate(speculate) == "auto" and all(map(runs_in_engines, call.requests)):
        await _run_beside_others(model, jobs)
    else:
        try:
            await asyncio.to_thread(run_all, model, jobs, Options(speculate=speculate))
        finally:
            for job in jobs:
                if not job.ended:
                    job.cancel()
    return call.results(jobs)


async def _run_beside_others(model: Model, jobs: Sequence[Job]) -> None:
    """Run jobs in the model's engine until all have ended; the error of a job that has failed is in the job."""
    thread = _own_engine(model)
    feeds: list[Feed] = []
    try:
        feeds += thread.add(model, [(job, None) for job in jobs])
        for feed in feeds:
            await feed.arrival(end=True)
            if isinstance(feed.failure, Exception):
                feed.job.error = own(feed.failure)
            elif feed.failure is not None:
                raise feed.failure
    finally:
        for feed in feeds:
            feed.cancel()


def _own_engine(model: Model) -> EngineThread:
    """The model's own engine: made at the first call, and again if it was closed or has failed."""
    check_loaded(model)
    if model.idle is None:
        raise ArgumentError(
            f"{type(model).__name__} has no place for an engine (`idle`, see gen.models.idle_rows); make a "
            "gen.Engine of it."
        )
    thread: EngineThread = model.idle.engine(
        lambda: EngineThread(model, Options(rows=ROWS, admit_tokens=None), max_waiting=LARGEST)
    )
    return thread
