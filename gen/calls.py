"""One call of the user's: its arguments read into requests, and what it returns made of the jobs they became."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from gen.arguments import LARGEST, as_lists, check_flag, read_whole
from gen.constraints.compiling import carry_out, compile, compiled_before
from gen.constraints.constraint import Constraint
from gen.constraints.plans import read_plan
from gen.errors import ArgumentError, BatchError, ConstraintError, show
from gen.isolation import isolated
from gen.loop.jobs import Job
from gen.loop.results.texts import Completion
from gen.loop.results.values import valued
from gen.models.base import Model, RecommendsSampler
from gen.requests.images import ImageLike, read_images
from gen.requests.prompts import AnyPrompt, Prompt, Prompts, split_prompts
from gen.requests.reading import check_model, read_requests
from gen.requests.request import LogitsProcessor, Request
from gen.samplers import BeamSearchSampler, MultinomialSampler, Sampler
from gen.samplers.base import read_sampler

Result = str | Completion | list[str] | list[Completion] | list[str | list[str]] | list[Completion | list[Completion]]


class PromptArguments(TypedDict, total=False):
    """What may be said of prompts and of how they go on, but for sampler and output type; see `gen.generate`."""

    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None
    max_new_tokens: int | Sequence[int]
    stop: str | Sequence[str] | None
    seed: int | Sequence[int] | None
    eos_token_id: int | Sequence[int] | None
    chat: bool
    chat_template_kwargs: Mapping[str, object] | None
    num_return_sequences: int
    logits_processors: Sequence[LogitsProcessor] | None
    top_logprobs: int | None


class OneArguments(TypedDict, total=False):
    """What may be said of one prompt that makes one text, but for its output type; see `gen.generate`."""

    images: Sequence[ImageLike] | None
    sampler: Sampler | None
    max_new_tokens: int
    stop: str | Sequence[str] | None
    seed: int | None
    eos_token_id: int | Sequence[int] | None
    chat: bool
    chat_template_kwargs: Mapping[str, object] | None
    logits_processors: Sequence[LogitsProcessor] | None
    top_logprobs: int | None


@dataclass(frozen=True)
class Call:
    """A call of `generate`, read and checked.

    Attributes:
        requests: one for each prompt.
        batch: whether the prompts came as a list.
        returned: how many of a beam search's texts are returned.
        details: whether completions are returned instead of values.
    """

    requests: list[Request]
    batch: bool
    returned: int
    details: bool

    def result(self, job: Job) -> Any:
        """A prompt's value or completion, or all of them where its sampler makes several."""
        several = len(job.request.seeds) > 1
        found = job.completions()
        if isinstance(job.request.sampler, BeamSearchSampler):
            found, several = found[: self.returned], self.returned > 1
        made = [valued(job.request, one) for one in found]
        results: list[Any] = [one if self.details else one.value for one in made]
        return results if several else results[0]

    def done(self, job: Job) -> Any:
        """A prompt's result; None where it has not ended, or has failed."""
        try:
            return self.result(job) if job.ended else None
        except Exception:  # as in `results`
            return None

    def results(self, jobs: Sequence[Job]) -> Result:
        """What the call returns.

        Raises:
            BatchError: some prompts have an error instead. If all have, the first one's is raised itself.
        """
        results: list[Any] = []
        errors: dict[int, Exception] = {}
        for number, job in enumerate(jobs):
            try:
                results.append(self.result(job))
            except Exception as error:  # a model, or a processor of the user's, fails with errors of every kind
                errors[number] = error
                results.append(error)
        if len(errors) == len(jobs):
            raise errors[0]
        if errors:
            raise BatchError(len(jobs), errors, results) from next(iter(errors.values()))
        returned: Result = results if self.batch else results[0]
        return returned


def read_call(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any = None,
    *,
    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None = None,
    sampler: Sampler | Sequence[Sampler] | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    details: bool = False,
    num_return_sequences: int = 1,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    top_logprobs: int | None = None,
) -> Call:
    """The arguments of `gen.generate`, which says what they are, checked.

    Raises:
        ArgumentError: one of them cannot be used.
        ConstraintError: an output type cannot be held to.
        ModelError: the model can no longer be run as it was taken, or it recommends what no sampler takes.
    """
    prompts, batch = split_prompts(prompt)
    if not batch:
        _refuse_lists(sampler=sampler, max_new_tokens=max_new_tokens, seed=seed)
    samplers = _read_samplers(model, sampler, len(prompts))
    check_flag("details", details)
    if top_logprobs is not None and not details:
        raise ArgumentError("top_logprobs are told with details=True, in each completion; give both.")
    returned = _read_returned(num_return_sequences, samplers)
    constraints = _read_constraints(model, output_type, len(prompts) if batch else None)
    requests = read_requests(
        model,
        prompts,
        samplers=samplers,
        max_new_tokens=max_new_tokens,
        images=read_images(images, len(prompts) if batch else None),
        stop=stop,
        seed=seed,
        eos_token_id=eos_token_id,
        chat=chat,
        template_kwargs=chat_template_kwargs,
        logits_processors=logits_processors,
        top_logprobs=top_logprobs,
    )
    pairs = zip(requests, constraints, strict=True)
    return Call([_constrained(model, *pair) for pair in pairs], batch, returned, details)


def read_one(
    function: str,
    model: Model,
    prompt: Prompt,
    output_type: Any = None,
    *,
    images: Sequence[ImageLike] | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    top_logprobs: int | None = None,
) -> Request:
    """The arguments of a function that continues one prompt with one text, checked.

    Args:
        function: its name, for errors.
    Raises:
        ArgumentError, ModelError: as of `read_call`; or the prompt is a list of prompts, or makes several texts.
    """
    prompts, batch = split_prompts(prompt)
    if batch:
        raise ArgumentError(f"{function} takes one prompt; use generate for a list.")
    _refuse_lists(sampler=sampler, max_new_tokens=max_new_tokens, seed=seed)
    [constraint] = _read_constraints(model, output_type, None)
    [chosen] = _read_samplers(model, sampler, 1)
    if chosen.samples != 1:
        raise ArgumentError(f"{function} makes one text, the sampler makes {chosen.samples} a prompt; use generate.")
    [request] = read_requests(
        model,
        prompts,
        samplers=[chosen],
        max_new_tokens=max_new_tokens,
        images=read_images(images, None),
        stop=stop,
        seed=seed,
        eos_token_id=eos_token_id,
        chat=chat,
        template_kwargs=chat_template_kwargs,
        logits_processors=logits_processors,
        top_logprobs=top_logprobs,
    )
    return _constrained(model, request, constraint)


def read_submitted(
    function: str, model: Model, prompt: Prompt, output_type: Any, arguments: OneArguments
) -> tuple[Request, Callable[[Request], Request] | None]:
    """As `read_one`; an output type that has not been compiled yet is left to be compiled, which may take seconds.

    Returns:
        The request, and what to call in another thread for the one to run in its place; None where this is it.
    """
    check_model(model)
    constraint = None if output_type is None else compiled_before(model, output_type)
    request = read_one(function, model, prompt, constraint, **arguments)
    if output_type is None or constraint is not None:
        return request, None
    plan = read_plan(output_type)
    return request, lambda request: _constrained(model, request, carry_out(model, plan))


@isolated
def _constrained(model: Model, request: Request, constraint: Constraint | None) -> Request:
    """A request with its constraint, whose tables are where they are needed.

    Raises:
        ArgumentError: a token that ends the text may be part of it.
        ConstraintError: there is no room for a whole text.
    """
    if constraint is None:
        return request
    for token_id in request.eos_token_ids:
        if spelt := constraint.vocabulary.tokens[token_id]:
            raise ArgumentError(
                f"eos_token_id {token_id} spells {spelt!r}, which a text of an output type may need; leave it out, or "
                "give the text as stop=."
            )
    least, limit = constraint.least_tokens or 0, request.limit
    if least > limit:
        wanted = f"prompt {request.number}: the shortest text of its output type has {least} tokens"
        if limit == model.context_length - len(request.prompt_ids):
            raise ConstraintError(f"{wanted}, the model's context leaves room for {limit}; shorten the prompt.")
        raise ConstraintError(f"{wanted}, max_new_tokens is {limit}; give at least {least}.")
    if constraint.automaton is not None:
        constraint.automaton.place(model.placement.logits_device)
    return replace(request, constraint=constraint)


def _refuse_lists(**arguments: object) -> None:
    """Raise an ArgumentError for a list, one for each prompt, where the prompt is no list."""
    for name, given in arguments.items():
        if isinstance(as_lists(given), list | tuple):
            raise ArgumentError(
                f"{name} is a list, one for each prompt of a list, and the prompt is a single one; give {name} without "
                f"the list, or the prompt as a list of one. Got {show(given)}"
            )


def _read_samplers(model: Model, sampler: Sampler | Sequence[Sampler] | None, prompts: int) -> list[Sampler]:
    """One sampler a prompt."""
    if sampler is None:
        return [model.recommended_sampler if isinstance(model, RecommendsSampler) else MultinomialSampler()] * prompts
    if not isinstance(sampler, list | tuple):
        return [read_sampler(sampler)] * prompts
    if len(sampler) != prompts:
        raise ArgumentError(f"sampler must be one sampler or one for each of {prompts} prompts, got {len(sampler)}")
    return [read_sampler(one) for one in sampler]


def _read_constraints(model: Model, output_type: Any, prompts: int | None) -> list[Constraint | None]:
    """One constraint or None a prompt; `prompts` is None for one prompt that did not come in a list."""
    if isinstance(output_type, list | tuple) and prompts is not None:
        if len(output_type) != prompts:
            raise ConstraintError(
                f"output_type must be one type or one for each of {prompts} prompts, got {len(output_type)}"
            )
        distinct = {id(one): one for one in output_type}  # a type that stands there often is read once
        made = {key: None if one is None else compile(model, one) for key, one in distinct.items()}
        return [made[id(one)] for one in output_type]
    return [None if output_type is None else compile(model, output_type)] * (prompts or 1)


def _read_returned(num_return_sequences: int, samplers: Sequence[Sampler]) -> int:
    """How many of a beam search's texts are returned."""
    beams = [sampler.beams for sampler in samplers if isinstance(sampler, BeamSearchSampler)]
    most = min(beams) if len(beams) == len(samplers) else LARGEST
    returned = read_whole("num_return_sequences", num_return_sequences, minimum=1, maximum=most)
    if returned != 1 and len(beams) < len(samplers):
        raise ArgumentError("num_return_sequences is for beam search; multinomial(samples=...) draws several texts.")
    return returned
