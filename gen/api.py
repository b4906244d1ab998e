"""What users call: `generate` and `stream` read their arguments, fill a batch, and drain it."""

import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from tqdm import tqdm

from gen.arguments import check_flag, read_whole
from gen.calls import OnErrors, Result, find_step_rows, read_call, read_one
from gen.completions import Completion
from gen.errors import Interrupted
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.results.values import valued
from gen.loop.run_all import run_all
from gen.loop.runner import Runner
from gen.loop.speculation.settings import Speculate, read_speculate
from gen.models.base import Model
from gen.requests.images import ImageLike
from gen.requests.processors import LogitsProcessor
from gen.requests.prompts import AnyPrompt, Prompt, Prompts
from gen.requests.settings import PromptArguments, Settings
from gen.requests.stops import Stops
from gen.requests.truncating import Truncate
from gen.requests.unknown_arguments import explains_unknown
from gen.samplers import GreedySampler, Sampler
from gen.streaming import CallerStream, Stream


class AnyArguments(PromptArguments, total=False):
    """The arguments of `generate` that the type of its result does not depend on."""

    num_return_sequences: int
    max_batch_tokens: int | None
    progress: bool
    replay: bool
    cuda_graph: bool
    exact: bool
    speculate: Speculate


class Arguments(AnyArguments, total=False):
    """The same, where errors are raised."""

    errors: Literal["raise"]


Value = TypeVar("Value")
One = GreedySampler | None  # samplers that make one text a prompt, whatever their settings


@overload
def generate(
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
def generate(
    model: Model,
    prompt: Prompt,
    output_type: None = ...,
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> str: ...
@overload
def generate(
    model: Model,
    prompt: Prompt,
    output_type: object = ...,
    *,
    sampler: One = ...,
    details: Literal[True],
    **arguments: Unpack[Arguments],
) -> Completion: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: One | Sequence[GreedySampler] = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> list[str]: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    sampler: One | Sequence[GreedySampler] = ...,
    details: Literal[True],
    **arguments: Unpack[Arguments],
) -> list[Completion]: ...
@overload
def generate(
    model: Model,
    prompt: Prompt,
    output_type: None = ...,
    *,
    sampler: Sampler,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> str | list[str]: ...
@overload
def generate(
    model: Model,
    prompt: Prompt,
    output_type: object = ...,
    *,
    sampler: Sampler,
    details: Literal[True],
    **arguments: Unpack[Arguments],
) -> Completion | list[Completion]: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: Sampler | Sequence[Sampler],
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> list[str | list[str]]: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: object = ...,
    *,
    sampler: Sampler | Sequence[Sampler],
    details: Literal[True],
    **arguments: Unpack[Arguments],
) -> list[Completion | list[Completion]]: ...
@overload
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: None = ...,
    *,
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool,
    **arguments: Unpack[Arguments],
) -> Result: ...
@overload
def generate(
    model: Model,
    prompt: Prompt,
    output_type: type[Value],
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> Value: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    output_type: type[Value],
    *,
    sampler: One | Sequence[GreedySampler] = ...,
    details: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> list[Value]: ...
@overload
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: object,
    *,
    sampler: Sampler | Sequence[Sampler] | None = ...,
    details: bool = ...,
    **arguments: Unpack[Arguments],
) -> Any: ...
@explains_unknown
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any = None,
    *,
    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None = None,
    sampler: Sampler | Sequence[Sampler] | None = None,
    max_new_tokens: int | Sequence[int] | None = None,
    stop: Stops | Sequence[Stops] = None,
    include_stop: bool = False,
    seed: int | Sequence[int] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    skip_special_tokens: bool | Sequence[str] = True,
    details: bool = False,
    errors: OnErrors = "raise",
    num_return_sequences: int = 1,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    top_logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    shorten: bool = False,
    truncate: Truncate = None,
    max_time: float | None = None,
    local_files: bool = True,
    max_batch_tokens: int | None = None,
    progress: bool = False,
    replay: bool = True,
    cuda_graph: bool = True,
    exact: bool = False,
    speculate: Speculate = "auto",
) -> Any:
    """Continue a prompt, or each of a list of prompts.

    A text depends on its prompt and seed alone: it is the same in any batch and streamed (in float32; logits in
    bfloat16 themselves change with the batch). Equal prompts with equal seeds give equal texts.

    Args:
        model: from `gen.load`, or another function that loads or takes a model.
        prompt: a text, a list of chat messages ({"role": ..., "content": ...}) or a list of token ids; or a list of
            any of these. An empty text starts from the bos token. Token ids may also be an array or a tensor,
            (length,) for one prompt or (prompts, length) for a list. Where a whole number is wanted, one of numpy or a
            tensor of one will do.
        output_type: what the text is held to, so that it stands for a value: a Python type that pydantic knows (a
            model, dataclass, TypedDict, int, Literal, Enum, list[...], ...), `gen.regex`, `gen.choice`,
            `gen.json_schema`, `gen.grammar`, parts (`gen.sequence`, `gen.either`, `gen.repeat`, `gen.text`), calls of
            tools (`gen.tool_calls`), or what `gen.compile` made of one. A type whose JSON is always a string is written
            without quotes. None is no type; `type(None)` is null. For a list of prompts it may be a list with
            one for each, None among them.
        images: for a vision-language model, the prompt's images in the order of their places in it, each a PIL image,
            a uint8 array (height, width, 3) or a path; for a list of prompts a list for each. In messages an image may
            be part of the content instead: {"type": "image", "image": picture}, or with its "path" or "url" (a file's).
        sampler: how tokens are chosen; it has the sampling parameters. None is what the checkpoint's generation config
            recommends, and `gen.samplers.multinomial()`, at temperature 1, where that recommends nothing. For a list
            of prompts it may be a list with one for each.
        max_new_tokens: how many tokens at most for each text; the end of the context may come before. None is 128; with
            an output type 2048, or as many as the context and max_batch_tokens leave. For a list of prompts it may be a
            list with one for each. Time and memory follow the tokens that are made.
        stop: strings and compiled regexes that end a text and are left out of it, wherever the borders of tokens are; a
            regex ends it as soon as it matches in the text so far. Special tokens have no text, but those that a stop
            names, such as "<|im_end|>", are found. For a list of prompts it may be a list with one for each: lists,
            or None.
        include_stop: keep in the text what ended it: the stop string, or what the regex matched.
        seed: one whole number below 2**63 for all prompts, or one for each; None draws one for each. Further samples
            of a prompt have seeds derived from its own.
        eos_token_id: what ends a text instead of the model's own ids; an empty list for nothing.
        chat: give a text as the user's message to the tokenizer's chat template (lists of messages always are). Where
            the last message is the assistant's, the text goes on with it.
        chat_template_kwargs: what the chat template takes beside the messages, such as {"enable_thinking": False}; see
            `apply_chat_template` of transformers. {"tools": [...]} takes what `gen.tool_calls` takes.
        skip_special_tokens: whether special tokens are left out of the text; or a list of those that are, and all
            others stay. The eos that ended a text is no part of it. The special tokens that an output type writes stay.
        details: return a `Completion` in the place of each text.
        errors: "return" puts the error of a prompt of a list in the place of its result, and the other prompts go on;
            also where a prompt is too long, or a text is not whole. Errors that concern no single prompt are raised.
        num_return_sequences: how many of a beam search's texts to return for each prompt, best first.
        logits_processors: functions (token_ids, lengths, logits) -> logits that change the logits before the sampler:
            token_ids (rows, columns) int64 are the tokens so far, prompt and text, -1 past a row's end; lengths (rows,)
            int64 says how many; logits are (rows, vocab), all on the logits' device. A row must depend on itself alone.
            Those of transformers, and functions of two parameters (input_ids, scores), are called for each row with its
            own tokens (1, length) and its scores (1, vocab) in float32.
        top_logprobs: with each token of a completion, tell its log-probability and this many of the likeliest tokens,
            under the model's own distribution (`Completion.top_logprobs`); for details=True, not for beam search.
        prompt_logprobs: tell the same of each token of the prompt after its first one, in
            `Completion.prompt_logprobs`; for details=True. All of the prompt is read then, whatever was read before.
        shorten: return values of an output type that their limit has shaped, where they are whole, in the place of an
            IncompleteError: their finish_reason is "length".
        truncate: "left" cuts a prompt on the left that leaves no room in the context for max_new_tokens: it keeps its
            last tokens, and its bos token where it begins with one. With an output type and no max_new_tokens, a
            quarter of the context is left free, or as much as the type's shortest text needs. Chats and prompts with
            images are not cut: they raise. None cuts nothing; an ArgumentError is raised where there is no room for a
            single new token.
        max_time: seconds from the call on, waiting included, after which texts end as they are: their finish_reason is
            "timeout". A text of an output type is then an IncompleteError, or with shorten=True a value where it is
            whole. A step that has begun ends first. None for any time. Not for beam search.
        local_files: whether images may be paths and file: URLs; False refuses these, for messages of people whom you do
            not know. data: URLs are read either way, up to 40 million pixels.
        max_batch_tokens: how many tokens all rows that run at once may have room for, at least what each prompt needs
            with its text, or with all beams of its search; samples of a prompt that do not all fit are drawn in parts.
            None is what fits into the memory that is free, of a CPU's half of what is available.
        progress: whether to show a progress bar of prompts on stderr.
        replay: whether steps are recorded and replayed where they can be, on a CPU; texts are the same.
        cuda_graph: whether steps are captured as CUDA graphs where they can be, on CUDA; texts are the same. A model
            that is spread over several devices runs as it is.
        speculate: whether a step reads drafts of the next tokens beside the newest one, so that it may make several.
            Texts are the same; log-probabilities differ by 1e-4 at most. "auto": where it pays, in float32; drafts are
            what an output type forces, and what followed the last tokens before. Not in half precision, where the
            numbers of a step depend on how many tokens it reads: `gen.Speculation(...)` turns it on there, with one
            number of tokens in all steps. False: never. Beam searches, samplers and processors of yours, output types
            on the host engine, `exact`, recurrent layers, and models on several devices go without; why is logged
            (INFO), once for a model.
        exact: give each text and its log-probabilities the same bits alone and in any batch, on one machine with one
            number of threads, in bfloat16 and float16 too. Steps then have at least four rows, or what the machine
            needs. For transformers models on a CPU that run gen's own attention; a ModelError says what others lack.
    Returns:
        A str for a prompt, or a value of its output type; a list of them for a list. Where a prompt has several texts
        (a multinomial sampler with samples, num_return_sequences above 1) a list of them stands in the place of one.
    Raises:
        ArgumentError: an argument cannot be used, or max_batch_tokens is too little for a prompt; nothing has run.
        ConstraintError: an output type cannot be held to, or there is no room for a whole text of it; nothing has run.
        IncompleteError: the limit has shaped the value of an output type, though it is whole; or the text ended before
            it was whole, at a stop string, or at its limit on the host engine; or its type refuses the value.
        SamplingError: a row had no token left to choose.
        BatchError: some prompts of a list failed, with this or another error; its `results` has those of the others.
        Interrupted: Ctrl-C; its `results` has the texts that were done, and what there is of the others.
        ModelError: the checkpoint recommends what no sampler takes; or memory has no room for a prompt's text, or its
            search, even alone.
    Settings around the call change no text: autocast is off while gen computes, and the default device is not used.
    Host sync: none a token on CUDA; tokens are read one step late. One for each argument that is a tensor on CUDA.
    """
    for name, flag in (("progress", progress), ("replay", replay), ("cuda_graph", cuda_graph)):
        check_flag(name, flag)
    if max_batch_tokens is not None:
        max_batch_tokens = read_whole("max_batch_tokens", max_batch_tokens, minimum=1)
    settings = Settings(
        images=images,
        sampler=sampler,
        max_new_tokens=max_new_tokens,
        stop=stop,
        include_stop=include_stop,
        seed=seed,
        eos_token_id=eos_token_id,
        chat=chat,
        chat_template_kwargs=chat_template_kwargs,
        skip_special_tokens=skip_special_tokens,
        logits_processors=logits_processors,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        shorten=shorten,
        truncate=truncate,
        max_time=max_time,
        local_files=local_files,
    )
    call = read_call(
        model,
        prompt,
        output_type,
        settings,
        details=details,
        num_return_sequences=num_return_sequences,
        max_batch_tokens=max_batch_tokens,
        errors=errors,
    )
    jobs = [new_job(model, request) for request in call.requests]
    options = Options(
        max_batch_tokens=max_batch_tokens,
        replay=replay,
        cuda_graph=cuda_graph,
        step_rows=find_step_rows(model, exact, call.requests),
        speculate=read_speculate(speculate),
    )
    try:
        with tqdm(total=len(jobs), unit="prompt", file=sys.stderr, disable=not progress) as bar:
            run_all(model, jobs, options, lambda _: bar.update())
    except KeyboardInterrupt:
        raise Interrupted(call.so_far(jobs)) from None
    return call.results(jobs)


@explains_unknown
def stream(
    model: Model,
    prompt: Prompt,
    output_type: Any = None,
    *,
    images: Sequence[ImageLike] | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int | None = None,
    stop: Stops = None,
    include_stop: bool = False,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    skip_special_tokens: bool | Sequence[str] = True,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    top_logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    shorten: bool = False,
    truncate: Truncate = None,
    max_time: float | None = None,
    local_files: bool = True,
    replay: bool = True,
    cuda_graph: bool = True,
    exact: bool = False,
    speculate: Speculate = "auto",
) -> Stream:
    """Continue one prompt piece by piece; the pieces joined are the text that `generate` makes of the same arguments.

    A piece never ends within a character, and text that may yet be part of a stop string waits until that is known.

    Args, Raises: as for `generate`. Arguments are checked at the call, before the first piece is asked for.
    Returns:
        An iterator of str, none of them empty, whose `completion()` is at its end what `generate` returns with details.
        Its last step raises IncompleteError where `generate` does.
    """
    for name, flag in (("replay", replay), ("cuda_graph", cuda_graph)):
        check_flag(name, flag)
    settings = Settings(
        images=images,
        sampler=sampler,
        max_new_tokens=max_new_tokens,
        stop=stop,
        include_stop=include_stop,
        seed=seed,
        eos_token_id=eos_token_id,
        chat=chat,
        chat_template_kwargs=chat_template_kwargs,
        skip_special_tokens=skip_special_tokens,
        logits_processors=logits_processors,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        shorten=shorten,
        truncate=truncate,
        max_time=max_time,
        local_files=local_files,
    )
    request = read_one("stream", model, prompt, output_type, settings)
    job = new_job(model, request)
    options = Options(
        replay=replay,
        cuda_graph=cuda_graph,
        step_rows=find_step_rows(model, exact, [request]),
        speculate=read_speculate(speculate),
    )
    return CallerStream(_turns(model, job, options), job)


def _turns(model: Model, job: Job, options: Options) -> Generator[Completion | None]:
    """Let the text grow by a step at a time, and give that of a search at its end.

    Nothing of what a step computes with outlives a yield.
    """
    with Runner(model, [job], options) as runner:
        while not runner.idle:
            runner.advance()
            yield None
    [completion] = job.completions()
    if job.only_text is None:
        yield completion
    valued(job.request, completion)  # raises where the text is not whole
