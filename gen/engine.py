"""An engine, what a server stands on: requests join its running batch, and leave it, at any step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from gen.arguments import LARGEST, check_flag, check_salt, read_whole
from gen.calls import Submitted, find_step_rows, read_all_submitted, read_submitted
from gen.completions import Completion
from gen.errors import ArgumentError
from gen.loop.engine_thread import EngineStats, EngineThread
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.prefixes.tree import tree_of, usual_bytes
from gen.loop.speculation.settings import Speculate, read_speculate
from gen.models.base import Model
from gen.models.checking import check_model
from gen.requests.prompts import AnyPrompt, Prompt, Prompts
from gen.requests.request import Request
from gen.requests.settings import EngineArguments, PromptArguments, read_settings
from gen.samplers import BeamSearchSampler, MultinomialSampler, Sampler
from gen.samplers.kinds import draws
from gen.streaming import EngineStream

Value = TypeVar("Value")
Yes = Literal[True]
No = Literal[False]


class Engine:
    """One running batch in a thread of its own, which requests join and leave at any step.

    A text is what `gen.generate` gives for the same arguments, whatever runs beside it. The engine closes at the end of
    its `with` block, or when neither it nor a stream of it is referred to any more.

    Args:
        model: as for `gen.generate`.
        rows: how many requests run at once.
        max_waiting: how many more may wait.
        max_batch_tokens: as for `gen.generate`.
        admit_tokens: how many tokens of prompts are read at most before those that run get their next token; None for
            as many as take no longer than a step, which is measured. Prompts with images, and those of models with
            recurrent layers, are read whole. While nothing runs up to 4096 are read at once.
        replay: as for `gen.generate`.
        cuda_graph: as for `gen.generate`.
        prefix_bytes: how many bytes the columns of finished texts may take; a later prompt that begins like one of
            them is read from there on. What `gen.prefix` keeps is not counted. None is a tenth of the devices' memory,
            less what idle rows take; 0 keeps nothing. A model keeps them for all of its engines: the largest number
            counts, and they are dropped with the last engine.
        speculate: as for `gen.generate`, for all requests.
        exact: as for `gen.generate`; then `rows` is taken to the next whole number of fours, or of what steps need.
    Raises:
        ArgumentError: an argument cannot be used.
        ModelError: the model cannot run with exact=True.
    """

    def __init__(
        self,
        model: Model,
        rows: int = 32,
        max_waiting: int = 256,
        max_batch_tokens: int | None = None,
        admit_tokens: int | None = None,
        replay: bool = True,
        cuda_graph: bool = True,
        prefix_bytes: int | None = None,
        exact: bool = False,
        speculate: Speculate = "auto",
    ) -> None:
        check_model(model)
        for name, flag in (("replay", replay), ("cuda_graph", cuda_graph)):
            check_flag(name, flag)
        if max_batch_tokens is not None:
            max_batch_tokens = read_whole("max_batch_tokens", max_batch_tokens, minimum=1)
        if admit_tokens is not None:
            admit_tokens = read_whole("admit_tokens", admit_tokens, minimum=1)
        most_bytes = usual_bytes(model) if prefix_bytes is None else read_whole("prefix_bytes", prefix_bytes)
        tree = tree_of(model) if most_bytes else None
        rows = read_whole("rows", rows, minimum=1)
        options = Options(
            rows=rows,
            max_batch_tokens=max_batch_tokens,
            admit_tokens=admit_tokens,
            replay=replay,
            cuda_graph=cuda_graph,
            keeps=tree is not None,
            step_rows=find_step_rows(model, exact),
            speculate=read_speculate(speculate),
        )
        self._model, self._rows, self._max_batch_tokens = model, rows, max_batch_tokens
        max_waiting, asks = read_whole("max_waiting", max_waiting), object()
        if tree is not None:
            tree.open(asks, most_bytes, with_rows=prefix_bytes is None)
        closed = None if tree is None else partial(tree.close, asks)
        self._thread = EngineThread(self, options, max_waiting=max_waiting, when_closed=closed)

    @property
    def model(self) -> Model:
        """The model that it runs."""
        return self._model

    @property
    def rows(self) -> int:
        """How many requests run at once."""
        return self._rows

    @property
    def max_batch_tokens(self) -> int | None:
        """How many tokens all rows may have room for; None where that is not limited by the caller."""
        return self._max_batch_tokens

    def submit(self, prompt: Prompt, output_type: Any = None, **arguments: Unpack[EngineArguments]) -> EngineStream:
        """Let a request join the batch; from any thread, at once.

        Arguments are those of `gen.stream` without `replay`, `cuda_graph` and `speculate`, which are the engine's, and
        cache_salt, such as a name for each of your tenants: what was read for a request is shared only with requests of
        the same salt, so that nobody can tell from the time to a first token what others have asked. No salt counts as
        one. Arguments are checked in the caller's thread. An output type that has not been compiled before is compiled
        in another thread, and its errors are raised by the stream.

        Of the requests that wait, the one with the lowest `priority` (usually 0) is next, and of several the first that
        came. A request that has waited for 60 seconds is next, whatever its priority.

        Returns:
            Its text, as it grows: to read with `for` in a thread or with `async for` in any event loop.
        Raises:
            ArgumentError, ModelError: as of `gen.generate`.
            EngineFull: `rows` requests run and `max_waiting` wait.
            EngineClosed: the engine was closed, or has failed; its readers have been told why.
        """
        return self._submit("submit", prompt, output_type, arguments)

    def submit_all(
        self,
        prompts: Prompt | Prompts[AnyPrompt],
        output_type: Any = None,
        *,
        sampler: Sampler | Sequence[Sampler] | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        **arguments: Unpack[PromptArguments],
    ) -> list[EngineStream]:
        """Let requests join the batch together: all of them do, or `EngineFull` is raised and none does.

        Args: as for `submit`, but several prompts as for `gen.generate`, with lists of one argument for each.
        Returns:
            A stream for each prompt, in order; where its sampler is multinomial(samples=n) n of them side by side, each
            with the seed that gives its text alone.
        Raises:
            ArgumentError: they are more than `rows` and `max_waiting` together; or as of `submit`.
            ModelError, EngineFull, EngineClosed: as of `submit`.
        """
        settings = read_settings("submit_all", {"sampler": sampler, **arguments})
        submitted = read_all_submitted(self._model, prompts, output_type, settings, self._max_batch_tokens)
        return self._join(submitted, cache_salt, priority)

    @overload
    def generate(
        self,
        prompt: Prompt,
        output_type: None = ...,
        *,
        details: No = ...,
        **arguments: Unpack[EngineArguments],
    ) -> str: ...
    @overload
    def generate(
        self, prompt: Prompt, output_type: object = ..., *, details: Yes, **arguments: Unpack[EngineArguments]
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        output_type: type[Value],
        *,
        details: No = ...,
        **arguments: Unpack[EngineArguments],
    ) -> Value: ...
    @overload
    def generate(
        self, prompt: Prompt, output_type: object, *, details: bool = ..., **arguments: Unpack[EngineArguments]
    ) -> Any: ...
    def generate(
        self, prompt: Prompt, output_type: Any = None, *, details: bool = False, **arguments: Unpack[EngineArguments]
    ) -> Any:
        """What `gen.generate` gives for one prompt, from the running batch; waits for it, in the caller's thread.

        Arguments are those of `submit`, and `details` as of `gen.generate`.

        Raises: as `submit`; and as `gen.generate` of its text.
        """
        return _made(self._submit("generate", prompt, output_type, arguments).completion(), details)

    @overload
    async def agenerate(
        self,
        prompt: Prompt,
        output_type: None = ...,
        *,
        details: No = ...,
        **arguments: Unpack[EngineArguments],
    ) -> str: ...
    @overload
    async def agenerate(
        self, prompt: Prompt, output_type: object = ..., *, details: Yes, **arguments: Unpack[EngineArguments]
    ) -> Completion: ...
    @overload
    async def agenerate(
        self,
        prompt: Prompt,
        output_type: type[Value],
        *,
        details: No = ...,
        **arguments: Unpack[EngineArguments],
    ) -> Value: ...
    @overload
    async def agenerate(
        self, prompt: Prompt, output_type: object, *, details: bool = ..., **arguments: Unpack[EngineArguments]
    ) -> Any: ...
    async def agenerate(
        self, prompt: Prompt, output_type: Any = None, *, details: bool = False, **arguments: Unpack[EngineArguments]
    ) -> Any:
        """As `generate`, from asyncio; a task that is cancelled frees its row by the next step."""
        async with self._submit("agenerate", prompt, output_type, arguments) as stream:
            return _made(await stream.acompletion(), details)

    def _submit(self, function: str, prompt: Prompt, output_type: Any, arguments: Mapping[str, Any]) -> EngineStream:
        settings = dict(arguments)
        own = {name: settings.pop(name) for name in ("cache_salt", "priority") if name in settings}
        given = read_settings(function, settings)
        submitted = read_submitted(function, self._model, prompt, output_type, given, self._max_batch_tokens)
        [stream] = self._join([submitted], **own)
        return stream

    def _join(
        self, submitted: Sequence[Submitted], cache_salt: str | None = None, priority: int = 0
    ) -> list[EngineStream]:
        check_salt(cache_salt)
        priority = read_whole("priority", priority, minimum=-LARGEST)
        salted = [(replace(request, cache_salt=cache_salt), constrain) for request, constrain in submitted]
        return submit(self._thread, self._model, salted, owner=self, priority=priority)

    def stats(self) -> EngineStats:
        """What the engine does now, for a server's metrics and health; from any thread, without a lock.

        Its numbers are seen one after another, so that they may be of moments that are microseconds apart.
        """
        return self._thread.stats()

    def close(self) -> None:
        """Take no more requests, and end those under way, whose readers get `EngineClosed`.

        Waits for the step and the part of a prompt under way, and for nothing more.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _made(completion: Completion, details: bool) -> Any:
    return completion if details else completion.value


def runs_in_engines(request: Request) -> bool:
    """Whether an engine runs it."""
    return draws(request.sampler) and len(request.seeds) == 1


def submit(
    thread: EngineThread, model: Model, submitted: Sequence[Submitted], *, owner: object, priority: int = 0
) -> list[EngineStream]:
    """Let what `read_submitted` gives join an engine's batch, all or none.

    Args:
        owner: what closes the engine when it ends.
    Raises:
        ArgumentError: an engine does not run its sampler, or they are more than it takes.
        EngineFull, EngineClosed: as of `Engine.submit`.
    """
    jobs = []
    for request, constrain in submitted:
        _check_sampler(request)
        jobs.append((new_job(model, request), constrain and partial(_prepared, model, request, constrain)))
    return [EngineStream(feed, owner) for feed in thread.add(model, jobs, priority)]


def _prepared(model: Model, request: Request, constrain: Callable[[Request], Request]) -> Job:
    return new_job(model, constrain(request))


def _check_sampler(request: Request) -> None:
    if runs_in_engines(request):
        return
    name = type(request.sampler).__name__
    what = {
        BeamSearchSampler: "a search of one beam is gen.samplers.greedy, or goes",
        MultinomialSampler: "give each parameter of the sampler as a number instead of a tensor, or let it go",
    }.get(type(request.sampler), f"a sampler of your own, as {name}, goes")
    raise ArgumentError(
        f"an engine runs gen.samplers.greedy and multinomial, whose parameters are numbers; {what} through "
        "gen.generate, or gen.agenerate from asyncio."
    )
