"""The functions that users call: `generate` and `stream` fill a batch and drain it in the caller's thread; the texts of
`agenerate` and `astream`, for asyncio, grow in an engine that the model keeps."""

import asyncio
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from tqdm import tqdm

from gen.arguments import LARGEST, check_flag
from gen.calls.reading import OnErrors, read_call
from gen.calls.retrying import retry_refused
from gen.calls.rollouts import Rollouts, for_rollouts, rollouts_of
from gen.calls.streams import EngineStream, OwnTurns, Stream
from gen.completions import Completion
from gen.engine import runs_in_engines, submit
from gen.errors import ArgumentError, Interrupted, show
from gen.loop.engine_thread import EngineThread
from gen.loop.feed import Feed
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.runner import Runner, run_all
from gen.loop.speculation.settings import Speculate
from gen.models.base import Model
from gen.models.checks import check_loaded
from gen.requests.prompts import AnyPrompt, Prompt, Prompts
from gen.requests.settings import AllSettings, OtherSettings, read_settings, shows_settings
from gen.samplers import GreedySampler

ROWS = 32  # how many requests run at once in a model's own engine


Value = TypeVar("Value")
No = Literal[False]
Yes = Literal[True]


class AsyncRunning(TypedDict, total=False):
    """How `agenerate` runs."""

    num_return_sequences: int
    retries: int
    speculate: Speculate


class Running(AsyncRunning, total=False):
    """How `generate` runs."""

    max_batch_tokens: int | None
    progress: bool
    replay: bool
    cuda_graph: bool
    exact: bool


class One(OtherSettings, total=False):
    """Settings with a sampler that always makes one text a prompt."""

    sampler: GreedySampler | Sequence[GreedySampler] | None


class AsyncArguments(One, AsyncRunning, total=False):
    """The arguments of `agenerate` that do not change the type of its result."""


class Arguments(One, Running, total=False):
    """The arguments of `generate` that do not change the type of its result."""


class TensorArguments(AllSettings, Running, total=False):
    """The arguments of `generate` beside details="tensors"."""


class AnyAsyncArguments(AllSettings, AsyncRunning, total=False):
    """All arguments of `agenerate`."""

    details: bool
    errors: OnErrors


class AnyArguments(AnyAsyncArguments, Running, total=False):
    """All arguments of `generate`."""


@overload
def generate(
    model: Model, prompt: Prompt, output_type: None = ..., *, details: No = ..., **given: Unpack[Arguments]
) -> str: ...
@overload
def generate(
    model: Model, prompt: Prompt, output_type: type[Value], *, details: No = ..., **given: Unpack[Arguments]
) -> Value: ...
@overload
def generate(
    model: Model, prompt: Prompt, output_type: object = ..., *, details: Yes, **given: Unpack[Arguments]
) -> Completion: ...
@overload
def generate(
    model: Model, prompt: Prompts[AnyPrompt], output_type: None = ..., *, details: No = ..., **given: Unpack[Arguments]
) -> list[str]: ...
@overload
def generate(
    model: Model, prompt: Prompts[AnyPrompt], output_type: type[Value], *, details: No = ..., **given: Unpack[Arguments]
) -> list[Value]: ...
@overload
def generate(
    model: Model, prompt: Prompts[AnyPrompt], output_type: object = ..., *, details: Yes, **given: Unpack[Arguments]
) -> list[Completion]: ...
@overload
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    details: Literal["tensors"],
    **given: Unpack[TensorArguments],
) -> Rollouts: ...
@overload
def generate(
    model: Model, prompt: Prompt | Prompts[AnyPrompt], output_type: object = ..., **given: Unpack[AnyArguments]
) -> Any: ...
@shows_settings
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any = None,
    *,
    details: bool | Literal["tensors"] = False,
    errors: OnErrors = "raise",
    num_return_sequences: int = 1,
    max_batch_tokens: int | None = None,
    progress: bool = False,
    replay: bool = True,
    cuda_graph: bool = True,
    exact: bool = False,
    retries: int = 0,
    speculate: Speculate = "auto",
    **settings: Unpack[AllSettings],
) -> Any:
    """Continue a prompt, or each of a list of prompts.

    A text depends on its prompt and seed alone: it is the same in any batch, and when it is streamed. This holds in
    float32; in bfloat16 the logits themselves change with the batch. Equal prompts with equal seeds give equal texts.

    Args:
        model: a model from `gen.load`, `gen.from_transformers` or another function that loads or takes one.
        prompt: a text, a list of chat messages ({"role": ..., "content": ...}) or a list of token ids; or a list of
            any of these. An empty text starts from the bos token. Token ids may also be an array or a tensor,
            (length,) for one prompt or (prompts, length) for a list. Wherever an argument is a whole number, you may
            give one of numpy, or a tensor of shape ().
        output_type: the type of value that the text must spell: a Python type that pydantic knows (a model, dataclass,
            TypedDict, int, Literal, Enum, list[...], ...), `gen.regex`, `gen.choice`, `gen.json_schema`,
            `gen.grammar`, parts (`gen.sequence`, `gen.either`, `gen.repeat`, `gen.text`), calls of tools
            (`gen.tool_calls`), or one of these compiled by `gen.compile`. The text of a type whose JSON is always a
            string has no quotes. None is no type; `type(None)` is null. For a list of prompts you may give a list
            with a type or None for each.
        images: the images of a prompt for a vision-language model, in the order of their places in the prompt: PIL
            images, uint8 arrays (height, width, 3) or paths. For a list of prompts, give a list for each. In messages
            an image may be part of the content instead: {"type": "image", "image": picture}, or with a "path" or a
            "url" (file: or data:) in the place of "image".
        sampler: chooses the tokens, and has the sampling parameters. None is what the checkpoint's generation config
            recommends; if that recommends nothing, it is `gen.samplers.multinomial()`, at temperature 1. For a list of
            prompts you may give a list with one sampler for each.
        max_new_tokens: the largest number of tokens of each text, without a thought before it; the end of the context
            may come first. None is 128; with an output type it is 2048, or fewer if the context or max_batch_tokens
            leaves fewer. For a list of prompts you may give a list with one number for each. Time and memory depend on
            the tokens that are made, not on this limit.
        stop: strings and compiled regexes that end a text and are left out of it. A match may begin and end within a
            token. A regex ends the text as soon as it matches in the text so far. It runs as an automaton, in time that
            grows with the text alone, so it cannot have references to groups, look-around, atomic groups or possessive
            repeats. Special tokens have no text, but a stop that names one, such as "<|im_end|>", ends the text at that
            token. For a list of prompts you may give a list with a list or None for each.
        include_stop: whether the text keeps the stop string that ended it, or the longest part that the regex matched.
        seed: one whole number below 2**63 for all prompts, or a list with one for each; None draws one for each. If a
            prompt has several samples, the seeds of all but the first are derived from the prompt's seed.
        eos_token_id: the token ids that end a text, instead of the model's own; with an empty list no token does.
        chat: whether to give a text to the tokenizer's chat template, as the user's message. Lists of messages always
            go through the template, and token ids cannot. If the last message is the assistant's, the text continues
            it.
        chat_template_kwargs: further arguments of the chat template, such as {"enable_thinking": False}; see
            `apply_chat_template` of transformers. {"tools": [...]} takes the same tools as `gen.tool_calls`.
        thinking: how much a model thinks before it answers a chat, where the chat template marks thoughts. None lets
            the model choose; False closes the thought at once, by the template's own argument if it has one; True lets
            it think first; a number is the most tokens of the thought. The closing mark comes at this bound, or at the
            end of a line in the last 16 tokens before it. Without a number the bound is half of what the context
            leaves, and at most 8,192. The thought is in `Completion.reasoning`; the text, its pieces, its value and
            stop are those of the answer alone. A thought never takes the room that the answer needs. A beam search
            takes False alone. For a list of prompts you may give a list with one for each.
        describe: whether the system message of a chat ends with a description of the output type, `gen.describe` of it.
            A chat without a system message gets one.
        skip_special_tokens: whether special tokens are left out of the text; or a list of those to leave out, while all
            others stay. The eos token that ended a text is never part of it. Special tokens that an output type writes
            always stay.
        details: whether to return a `Completion` instead of each text. "tensors" returns the `Rollouts` of all texts
            instead: their tokens and log-probabilities as tensors on the device, for trainers.
        errors: with "return", if a prompt of a list fails, its error takes the place of its result, and the other
            prompts go on. This includes prompts that are too long, images that cannot be read and texts that are not
            whole. Errors that are not about a single prompt are raised.
        num_return_sequences: how many texts of a beam search to return for each prompt, best first.
        logits_processors: functions (token_ids, lengths, logits) -> logits that change the logits before the sampler.
            token_ids, (rows, columns) int64, has each row's tokens so far, of prompt and text, and -1 after them;
            lengths, (rows,) int64, says how many they are; logits is (rows, vocab). All are on the logits' device. The
            logits of a row may depend on that row alone. Logits processors of transformers, and functions of two
            parameters (input_ids, scores), are called for one row at a time, with its tokens (1, length) and its scores
            (1, vocab) in float32. In a beam search all of them get log-probabilities instead of logits.
        top_logprobs: how many of the likeliest tokens to report with each token of a completion, with their
            log-probabilities and its own, under the model's own distribution (`Completion.top_logprobs`). Needs
            details=True; not for beam search.
        prompt_logprobs: the same for each token of the prompt after its first one (`Completion.prompt_logprobs`).
            Needs details=True. The whole prompt is then read, even if another call has read its beginning.
        shorten: near its limit, a text of an output type is steered to a whole value, which the limit has then shaped.
            With shorten=True such a value is returned, with the finish_reason "length", instead of an IncompleteError.
            A text for whose max_new_tokens max_batch_tokens has no room then gets as many as there is room for, instead
            of an ArgumentError.
        truncate: "left" cuts the beginning of a prompt that leaves no room in the context for max_new_tokens: the
            prompt keeps its last tokens, and its bos token if it begins with one. With an output type and no
            max_new_tokens, a quarter of the context is left free, or as much as the type's shortest text needs. Chats
            and prompts with images cannot be cut in this way; they raise an ArgumentError. "turns" cuts a chat instead,
            for max_new_tokens or for that quarter: whole turns go, the oldest first, each a user's message with all
            answers to it. The system message and the last turn stay; an ArgumentError says if they alone have no room.
            None cuts nothing: a prompt that leaves no room for a single new token raises an ArgumentError.
        max_time: after this many seconds from the call, waiting included, texts end as they are, with the finish_reason
            "timeout". A step that has begun is finished first. A text of an output type then raises an IncompleteError;
            with shorten=True a whole value is returned instead. None is no limit. Not for beam search.
        draft: a text that was made before and that the new one may be like: a `Completion`, its receipt, a list of
            token ids, or a str. Steps then read up to 63 of its tokens at once, on CUDA up to 7, and make as many where
            the two texts are the same. The text is the same with any draft; a wrong one costs little time. For a list
            of prompts, give a list with a draft or None for each; samples of a prompt share theirs. It is ignored where
            `speculate` says that steps run without drafts.
        local_files: whether images may be paths and file: URLs. Give False if messages come from people whom you do not
            know. data: URLs are read either way, up to 40 million pixels.
        max_batch_tokens: how many tokens all rows that run at once may have room for together. Each prompt must fit
            with its text, or with all beams of its search. If the samples of a prompt do not all fit, they are drawn in
            parts. None is what fits into the free memory of a GPU, or into half of a CPU's available memory.
        progress: whether to show a progress bar of prompts on stderr.
        replay: whether to record and replay steps where that is possible, on a CPU; texts are the same.
        cuda_graph: whether to capture steps as CUDA graphs where that is possible, on CUDA; texts are the same. Steps
            of a model that is spread over several devices are not captured.
        speculate: whether a step reads drafts of the next tokens beside the newest token, so that it may make several
            tokens. Texts are the same; log-probabilities differ by at most 1e-4. "auto" drafts in float32, where that
            saves time: it takes the tokens that an output type forces, and those that followed the same last tokens
            earlier. It does not draft in half precision, where the numbers of a step depend on how many tokens it
            reads. `gen.Speculation(...)` does, and then every step reads the same number of tokens. False never drafts.
            Beam searches, samplers and processors of yours, output types on the host engine, `exact`, recurrent layers,
            and models on several devices run without drafts; the reason is logged (INFO), once for a model.
        exact: whether to give each text and its log-probabilities the same bits alone and in any batch, on one machine
            with one number of threads, also in bfloat16 and float16. A step then has two, four or more rows, as many as
            this takes on the machine. For models of transformers on a CPU that run gen's own attention; for others a
            ModelError says what they lack.
        retries: how often a chat may go on where the type's own validators refuse a value: the refused answer, without
            its thought, and what the type says of it become further turns. `Completion.attempts` counts the answers; if
            the last one is refused too, its error is raised. Of a list, only the prompts that failed are asked again.
            truncate="turns" leaves the question with its refused answers.
            For chats with an output type, and samplers that make one text.
    Returns:
        A str for a prompt, or a value of its output type; for a list of prompts, which may be empty, a list with one
        for each. A prompt that has several texts (a multinomial sampler with samples, num_return_sequences above 1) has
        a list of them instead.
    Raises:
        ArgumentError: an argument cannot be used, or max_batch_tokens is too little for a prompt; nothing has run.
        ConstraintError: an output type cannot be used, or there is no room for a whole text of it; nothing has run.
        IncompleteError: the text of an output type ended before it was whole, at a stop string, at max_time or, on the
            host engine, at its limit; or it is whole, but its limit has shaped it.
        ValueRefusedError: the text of an output type is whole, but its type refuses the value, as your validators do.
        SamplingError: a row had no token left to choose.
        BatchError: some prompts of a list failed, with this or another error; its `results` has the others' results. If
            all failed, the first one's own error is raised, and has the `results`.
        Interrupted: you pressed Ctrl-C; its `results` has the texts that were done, and the begun parts of the others.
        ModelError: the checkpoint recommends sampling parameters that no sampler takes; or a prompt with its text, or
            its search, does not fit into memory even alone.
    Torch settings around the call change no text: autocast is off while gen computes, and the default device is not
    used.
    Host sync: on CUDA none for each token, because tokens are read one step late; one for each argument that is a
    tensor on CUDA.
    """
    check_flag("progress", progress)
    options = Options(max_batch_tokens=max_batch_tokens, replay=replay, cuda_graph=cuda_graph, speculate=speculate)
    if (tensors := isinstance(details, str)) and details != "tensors":
        raise ArgumentError(f'details must be True, False or "tensors", got {show(details)}')
    call = read_call(
        model,
        prompt,
        output_type,
        read_settings(generate, settings),
        details=tensors or details,  # type: ignore[arg-type]  # read_call checks it
        num_return_sequences=num_return_sequences,
        max_batch_tokens=options.max_batch_tokens,
        errors=errors,
        exact=exact,
        retries=retries,
    )
    if tensors and retries:
        raise ArgumentError('details="tensors" tells one text of a prompt, and retries write several; leave one out.')
    call = for_rollouts(call) if tensors else call
    jobs = [new_job(model, request) for request in call.requests]
    options = replace(options, step_rows=call.step_rows)
    try:
        with tqdm(total=len(jobs), unit="prompt", file=sys.stderr, disable=not progress) as bar:
            run_all(model, jobs, options, lambda _: bar.update())
        while again := retry_refused(model, [call] * len(jobs), jobs):
            run_all(model, again, options)
    except KeyboardInterrupt:
        raise Interrupted(call.so_far(jobs)) from None
    results = call.results(jobs)
    return rollouts_of(model, jobs, results) if tensors else results


@shows_settings
def stream(
    model: Model,
    prompt: Prompt,
    output_type: Any = None,
    *,
    replay: bool = True,
    cuda_graph: bool = True,
    exact: bool = False,
    speculate: Speculate = "auto",
    **settings: Unpack[AllSettings],
) -> Stream:
    """Continue one prompt piece by piece; the pieces joined are the text that `generate` makes of the same arguments.

    A piece never ends within a character. Text that may turn out to be part of a stop string is held back until that is
    known.

    Args, Raises: as for `generate`. Arguments are checked at the call, before the first piece is asked for.
    Returns:
        An iterator of str, none of them empty. After the last piece its `completion()` is what `generate` returns with
        details=True. Where `generate` raises an IncompleteError or a ValueRefusedError, the iterator
        raises it after the last piece.
    """
    options = Options(replay=replay, cuda_graph=cuda_graph, speculate=speculate)
    given = read_settings(stream, settings)
    call = read_call(model, prompt, output_type, given, one="stream", details=True, exact=exact)
    job = new_job(model, call.requests[0])
    return Stream(OwnTurns(_turns(model, job, replace(options, step_rows=call.step_rows)), job))


@overload
async def agenerate(
    model: Model, prompt: Prompt, output_type: None = ..., *, details: No = ..., **given: Unpack[AsyncArguments]
) -> str: ...
@overload
async def agenerate(
    model: Model, prompt: Prompt, output_type: type[Value], *, details: No = ..., **given: Unpack[AsyncArguments]
) -> Value: ...
@overload
async def agenerate(
    model: Model, prompt: Prompt, output_type: object = ..., *, details: Yes, **given: Unpack[AsyncArguments]
) -> Completion: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    details: No = ...,
    **given: Unpack[AsyncArguments],
) -> list[str]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: type[Value],
    *,
    details: No = ...,
    **given: Unpack[AsyncArguments],
) -> list[Value]: ...
@overload
async def agenerate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    details: Yes,
    **given: Unpack[AsyncArguments],
) -> list[Completion]: ...
@overload
async def agenerate(
    model: Model, prompt: Prompt | Prompts[AnyPrompt], output_type: object = ..., **given: Unpack[AnyAsyncArguments]
) -> Any: ...
@shows_settings
async def agenerate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any = None,
    *,
    details: bool = False,
    errors: OnErrors = "raise",
    num_return_sequences: int = 1,
    retries: int = 0,
    speculate: Speculate = "auto",
    **settings: Unpack[AllSettings],
) -> Any:
    """As `gen.generate`, from asyncio: the texts grow in the model's own engine, beside those of other calls.

    That engine does not run beam searches, several samples a prompt, and calls whose `speculate` is not "auto": a
    worker thread runs these. Output types are compiled in a worker thread too. A task that is cancelled frees its rows
    by the next step.

    Args: as for `gen.generate`, without `max_batch_tokens`, `progress`, `replay`, `cuda_graph` and `exact`.
    Raises: as `gen.generate`; and EngineClosed if the model was released, or its engine has failed, before the end.
    """
    options = Options(speculate=speculate)
    read = partial(
        read_call,
        model,
        prompt,
        output_type,
        read_settings(agenerate, settings),
        details=details,
        num_return_sequences=num_return_sequences,
        errors=errors,
        retries=retries,
        check=check_loaded,
    )
    call = read() if output_type is None else await asyncio.to_thread(read)
    jobs = [new_job(model, request) for request in call.requests]
    beside = options.speculate == "auto" and all(map(runs_in_engines, call.requests))
    asked = jobs
    while asked:
        if beside:
            await _run_beside_others(model, asked)
        else:
            try:
                await asyncio.to_thread(run_all, model, asked, options)
            finally:
                for job in asked:
                    if not job.ended:
                        job.cancel()
        asked = retry_refused(model, [call] * len(jobs), jobs)
    return call.results(jobs)


@shows_settings
def astream(model: Model, prompt: Prompt, output_type: Any = None, **settings: Unpack[AllSettings]) -> EngineStream:
    """As `gen.stream`, for `async for`: the text grows in the model's own engine, beside the texts of other calls.

    The model makes that engine at the first call, and closes it in `model.release()`, or when nothing refers to the
    model any more.

    Arguments are those of `gen.stream` without `replay`, `cuda_graph`, `exact` and `speculate`. They are checked at the
    call; output types are checked as `Engine.submit` does it.

    Raises:
        ArgumentError, ModelError: as `gen.generate`.
    """
    given = read_settings(astream, settings)
    call = read_call(model, prompt, output_type, given, one="astream", details=True, late=True, check=check_loaded)
    [stream] = submit(_own_engine(model), model, call.submitted(), owner=model)
    return stream


def _turns(model: Model, job: Job, options: Options) -> Generator[None]:
    """Advance the text by one step at a time.

    The settings and CUDA streams under which a step computes are undone before each yield.
    """
    with Runner(model, [job], options) as runner:
        while not runner.idle:
            runner.advance()
            yield


async def _run_beside_others(model: Model, jobs: Sequence[Job]) -> None:
    """Run jobs in the model's engine until all have ended; the error of a job that has failed is in the job."""
    thread = _own_engine(model)
    feeds: list[Feed] = []
    try:
        feeds += thread.add(model, jobs)
        for feed in feeds:
            await feed.arrival(end=True)
            if not isinstance(feed.job.error, Exception | None):
                raise feed.job.error
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
