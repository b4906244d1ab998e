"""The engine that a server is built on: requests join and leave its running batch at any step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from gen.arguments import LARGEST, check_flag, check_salt, read_whole
from gen.calls.reading import find_step_rows, read_call
from gen.calls.streams import EngineStream
from gen.completions import Completion
from gen.errors import ArgumentError, ModelError, ValueRefusedError
from gen.loop.engine_thread import EngineStats, EngineThread
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.prefixes.tree import tree_of, usual_bytes
from gen.loop.speculation.settings import Speculate
from gen.models.base import Model
from gen.models.checks import check_loaded, check_model
from gen.requests.prompts import AnyPrompt, Prompt, Prompts
from gen.requests.request import Request
from gen.requests.settings import AskedSettings, EngineSettings, read_settings, shows_settings
from gen.samplers import BeamSearchSampler, MultinomialSampler
from gen.samplers.kinds import draws

Value = TypeVar("Value")
Yes = Literal[True]
No = Literal[False]


class Engine:
    """One running batch in a thread of its own; requests join and leave it at any step.

    A text is what `gen.generate` gives for the same arguments, whatever runs beside it. The engine closes at the end of
    its `with` block, or when nothing refers to it or to one of its streams any more.

    Args:
        model: as for `gen.generate`.
        rows: how many requests run at once.
        max_waiting: how many more may wait.
        max_batch_tokens: as for `gen.generate`.
        admit_tokens: how many tokens of prompts may be read before the running requests get their next token. None is
            32 on a CPU and 512 on CUDA. Prompts with images, and prompts of models with recurrent layers, are read
            whole. While no request runs, up to 4096 tokens are read at once.
        replay: as for `gen.generate`.
        cuda_graph: as for `gen.generate`.
        prefix_bytes: how many bytes of KV cache may be kept from finished texts. If a later prompt begins like one of
            them, only the rest of it is read. What `gen.prefix` keeps does not count. None is a tenth of the devices'
            memory, less what idle rows take; 0 keeps nothing. All engines of a model share what is kept: the largest
            of their numbers is the limit, and everything is dropped with the last engine.
        speculate: as for `gen.generate`, for all requests.
        exact: as for `gen.generate`; as many rows run then as steps need for this, or the largest multiple of that
            number that is at most `rows`.
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
        most_bytes = usual_bytes(model) if prefix_bytes is None else read_whole("prefix_bytes", prefix_bytes)
        rows = read_whole("rows", rows, minimum=1)
        options = Options(
            rows=rows,
            max_batch_tokens=max_batch_tokens,
            admit_tokens=admit_tokens,
            replay=replay,
            cuda_graph=cuda_graph,
            step_rows=find_step_rows(model, exact),
            speculate=speculate,
        )
        tree = tree_of(model) if most_bytes else None
        options = replace(options, keeps=tree is not None)
        self._model, self._rows, self._max_batch_tokens = model, rows, options.max_batch_tokens
        self._prefix_bytes = most_bytes
        self._step_rows = options.step_rows
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
        """How many tokens all rows may have room for; None if the caller set no limit."""
        return self._max_batch_tokens

    @property
    def prefix_bytes(self) -> int:
        """How many bytes of KV cache it may keep from finished texts."""
        return self._prefix_bytes

    @shows_settings
    def submit(self, prompt: Prompt, output_type: Any = None, **settings: Unpack[EngineSettings]) -> EngineStream:
        """Let a request join the batch. You may call this from any thread; it returns at once.

        Arguments are those of `gen.stream` without `replay`, `cuda_graph`, `exact` and `speculate`, which are arguments
        of the engine, and with `cache_salt`, `priority` and `receipts`. They are checked in the caller's thread. An
        output type that has not been compiled before is compiled in another thread, and the stream raises its errors.
        With `receipts=False` completions have no receipts, for which each call looks at all of the weights.

        `cache_salt` may be a name for each of your tenants: requests share what was read of their prompts only with
        requests that have the same salt. So nobody can tell from the time to the first token what others have asked.
        Requests without a salt share with each other.

        Of the waiting requests, the one with the lowest `priority` starts next (it is 0 if you give none); of several,
        the one that came first. A request that has waited for 60 seconds starts next, whatever its priority.

        Returns:
            The stream of its text: read it with `for` in a thread or with `async for` in any event loop.
        Raises:
            ArgumentError, ModelError: as `gen.generate`.
            EngineFull: `rows` requests run and `max_waiting` wait.
            EngineClosed: the engine was closed, or has failed; the streams that were open have raised the reason.
        """
        [stream] = self._submit(Engine.submit, prompt, output_type, settings, one="submit")
        return stream

    @shows_settings
    def submit_all(
        self, prompts: Prompt | Prompts[AnyPrompt], output_type: Any = None, **settings: Unpack[EngineSettings]
    ) -> list[EngineStream]:
        """Let requests join the batch together: all of them do, or `EngineFull` is raised and none does.

        Args: as for `submit`, but prompts, and lists with an argument for each of them, as for `gen.generate`.
        Returns:
            A stream for each prompt, in order. A prompt whose sampler is multinomial(samples=n) has n streams, one
            after the other in the list, each with the seed that gives its text alone.
        Raises:
            ArgumentError: there are more requests than `rows` and `max_waiting` together; or as `submit`.
            ModelError, EngineFull, EngineClosed: as `submit`.
        """
        return self._submit(Engine.submit_all, prompts, output_type, settings)

    @overload
    def generate(
        self, prompt: Prompt, output_type: None = ..., *, details: No = ..., **settings: Unpack[AskedSettings]
    ) -> str: ...
    @overload
    def generate(
        self, prompt: Prompt, output_type: type[Value], *, details: No = ..., **settings: Unpack[AskedSettings]
    ) -> Value: ...
    @overload
    def generate(
        self, prompt: Prompt, output_type: object = ..., *, details: Yes, **settings: Unpack[AskedSettings]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Prompt, output_type: object, *, details: bool = ..., **settings: Unpack[AskedSettings]
    ) -> Any: ...
    @shows_settings
    def generate(
        self, prompt: Prompt, output_type: Any = None, *, details: bool = False, **settings: Unpack[AskedSettings]
    ) -> Any:
        """Return what `gen.generate` gives for one prompt, made in the running batch; the caller's thread waits for it.

        Arguments are those of `submit`, and `details` and `retries` as for `gen.generate`.

        Raises: as `submit`, and as `gen.generate` for a text that fails.
        """
        [stream] = self._submit(Engine.generate, prompt, output_type, settings, one="generate", details=details)
        while True:
            try:
                completion = stream.completion()
                return completion if details else completion.value
            except ValueRefusedError as error:
                stream = self._again(stream, error, settings)

    @overload
    async def agenerate(
        self, prompt: Prompt, output_type: None = ..., *, details: No = ..., **settings: Unpack[AskedSettings]
    ) -> str: ...
    @overload
    async def agenerate(
        self, prompt: Prompt, output_type: type[Value], *, details: No = ..., **settings: Unpack[AskedSettings]
    ) -> Value: ...
    @overload
    async def agenerate(
        self, prompt: Prompt, output_type: object = ..., *, details: Yes, **settings: Unpack[AskedSettings]
    ) -> Completion: ...
    @overload
    async def agenerate(
        self, prompt: Prompt, output_type: object, *, details: bool = ..., **settings: Unpack[AskedSettings]
    ) -> Any: ...
    @shows_settings
    async def agenerate(
        self, prompt: Prompt, output_type: Any = None, *, details: bool = False, **settings: Unpack[AskedSettings]
    ) -> Any:
        """As `generate`, from asyncio; a task that is cancelled frees its row by the next step."""
        [stream] = self._submit(Engine.agenerate, prompt, output_type, settings, one="agenerate", details=details)
        while True:
            try:
                async with stream:
                    completion = await stream.acompletion()
                    return completion if details else completion.value
            except ValueRefusedError as error:
                stream = self._again(stream, error, settings)

    def _again(self, stream: EngineStream, error: ValueRefusedError, settings: EngineSettings) -> EngineStream:
        """The next turn of a chat whose value was refused. Raises the error if there is to be none."""
        retry = stream.request.retry
        if retry is None or (request := retry(stream.request, error)) is None:
            raise error
        [again] = submit(self._thread, self._model, [request], owner=self, priority=settings.get("priority", 0))
        return again

    def _submit(
        self,
        function: Callable[..., Any],
        prompts: Prompt | Prompts[AnyPrompt],
        output_type: Any,
        given: EngineSettings | AskedSettings,
        *,
        one: str = "",
        details: bool = True,
    ) -> list[EngineStream]:
        settings: dict[str, Any] = {**given}
        cache_salt, priority = settings.pop("cache_salt", None), settings.pop("priority", 0)
        check_flag("receipts", receipts := settings.pop("receipts", True))
        retries = settings.pop("retries", 0) if one in ("generate", "agenerate") else 0
        call = read_call(
            self._model,
            prompts,
            output_type,
            read_settings(function, settings),
            one=one,
            late=True,
            details=details,
            max_batch_tokens=self._max_batch_tokens,
            exact=self._step_rows > 1,
            receipts=receipts,
            retries=retries,
            check=check_loaded,
        )
        if self._step_rows % call.step_rows:
            raise ModelError(
                f"exact=True needs steps of {call.step_rows} rows now, and this engine was made for steps of "
                f"{self._step_rows}: the model, or torch's threads or settings, have changed. Close it, and make "
                "another engine."
            )
        check_salt(cache_salt)
        priority = read_whole("priority", priority, minimum=-LARGEST)
        salted = [replace(request, cache_salt=cache_salt) for request in call.submitted()]
        return submit(self._thread, self._model, salted, owner=self, priority=priority)

    def stats(self) -> EngineStats:
        """What the engine does now, for a server's metrics and health; from any thread, without a lock.

        Its numbers are read one after another, so they may be of moments that are microseconds apart.
        """
        return self._thread.stats()

    def close(self) -> None:
        """Take no more requests, and end the requests under way: their readers get `EngineClosed`.

        It waits for the step or the part of a prompt that is being computed, and for nothing more.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def runs_in_engines(request: Request) -> bool:
    """Whether an engine can run this request."""
    return draws(request.sampler) and len(request.seeds) == 1


def submit(
    thread: EngineThread, model: Model, requests: Sequence[Request], *, owner: object, priority: int = 0
) -> list[EngineStream]:
    """Let requests from `Call.submitted` join an engine's batch, all or none.

    Args:
        owner: the object that closes the engine when it is deleted; the streams keep it alive.
    Raises:
        ArgumentError: an engine does not run the sampler of a request, or there are more requests than it takes.
        EngineFull, EngineClosed: as `Engine.submit`.
    """
    for request in requests:
        _check_sampler(request)
    jobs = [new_job(model, request) for request in requests]
    return [EngineStream(feed, owner) for feed in thread.add(model, jobs, priority)]


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
