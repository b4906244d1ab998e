"""One call of the user: reads its arguments into requests, and makes its result from the jobs that ran them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Literal

from gen.arguments import LARGEST, as_lists, check_flag, read_whole
from gen.completions import Completion
from gen.constraints.compiling import carry_out, compiled_before, read_type
from gen.constraints.constraint import Constraint
from gen.errors import ArgumentError, BatchError, GenError, show
from gen.loop.jobs import Job
from gen.loop.memory import check_room
from gen.loop.results.values import valued
from gen.loop.searches.by_sampler import kind_of_search
from gen.models.base import Model
from gen.models.checks import check_loaded, check_usable
from gen.requests.images import read_images
from gen.requests.prompts import AnyPrompt, Prompt, Prompts, split_prompts
from gen.requests.reading import constrained, read_constraints, read_requests, split_types
from gen.requests.request import Request
from gen.requests.settings import Settings, is_list_for_each
from gen.samplers import BeamSearchSampler, MultinomialSampler, Sampler
from gen.samplers.base import read_sampler

Submitted = tuple[Request, Callable[[Request], Request] | None]
"""A request, and a function that makes the request to run instead of it, called in another thread.

The function is None if the request runs as it is.
"""

OnErrors = Literal["raise", "return"]

Result = str | Completion | list[str] | list[Completion] | list[str | list[str]] | list[Completion | list[Completion]]


@dataclass(frozen=True)
class Call:
    """A call of `generate`, read and checked.

    Attributes:
        requests: one for each prompt that could be read.
        batch: whether the prompts came as a list.
        returned: how many of a beam search's texts are returned.
        details: whether completions are returned instead of values.
        failed: the errors of the other prompts, by the prompt's number; None if the call raises errors.
        step_rows: see `find_step_rows`.
    """

    requests: list[Request]
    batch: bool
    returned: int
    details: bool
    failed: dict[int, GenError] | None = None
    step_rows: int = 1

    def completions(self, job: Job) -> list[Completion]:
        """A prompt's completions, without the values of its output type."""
        found = job.completions()
        return found[: self.returned] if isinstance(job.request.sampler, BeamSearchSampler) else found

    def result(self, job: Job) -> Any:
        """A prompt's value or completion, or all of them where its sampler makes several."""
        beams = isinstance(job.request.sampler, BeamSearchSampler)
        several = self.returned > 1 if beams else len(job.request.seeds) > 1
        made = [valued(job.request, one) for one in self.completions(job)]
        results: list[Any] = [one if self.details else one.value for one in made]
        return results if several else results[0]

    def so_far(self, jobs: Sequence[Job]) -> list[Any]:
        """What there is of each prompt's result by now; see `gen.Interrupted`."""
        found: dict[int, Any] = dict(self.failed or {})
        for job in jobs:
            try:
                found[job.request.number] = self.result(job) if job.ended else _begun(job)
            except Exception as error:  # as in `results`
                found[job.request.number] = error if self.failed is not None else None
        return [found[number] for number in sorted(found)]

    def results(self, jobs: Sequence[Job]) -> Result:
        """What the call returns.

        Raises:
            BatchError: some prompts have failed. If all have, the error of the first one is raised itself.
        """
        found: dict[int, Any] = {}
        errors: dict[int, Exception] = dict(self.failed or {})
        for job in jobs:
            try:
                found[job.request.number] = self.result(job)
            except Exception as error:  # a model, or a processor of the user, may raise any error
                errors[job.request.number] = error
        results: list[Any] = [(found | errors)[number] for number in range(len(found) + len(errors))]
        if self.failed is not None:
            return results
        if errors and not found:
            raise errors[0]
        if errors:
            raise BatchError(len(jobs), errors, results) from next(iter(errors.values()))
        returned: Result = results if self.batch else results[0]
        return returned


def _begun(job: Job) -> Any:
    """The texts so far of a prompt that still runs: one, or a list of several; None if no token has come."""
    texts = [text.so_far() for one in job.parts or [job] for taker in one.takers for text in taker.texts]
    if not any(text.token_ids for text in texts):
        return None
    return texts if len(job.request.seeds) > 1 else texts[0]


def read_call(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any,
    settings: Settings,
    *,
    details: bool = False,
    num_return_sequences: int = 1,
    max_batch_tokens: int | None = None,
    errors: OnErrors = "raise",
    exact: bool = False,
    check: Callable[[Model], object] = check_usable,
) -> Call:
    """Read and check the arguments of `gen.generate`, which describes them.

    Args:
        check: checks the model; give `check_loaded` if the model is checked again when the requests join a batch.
    Raises:
        ArgumentError: an argument cannot be used.
        ConstraintError: an output type cannot be used.
        ModelError: the model was changed so that gen can no longer run it, or it recommends sampling parameters that no
            sampler takes; or as `find_step_rows`.
    """
    check(model)
    step_rows = find_step_rows(model, exact)
    prompts, batch = split_prompts(prompt)
    if not batch:
        _refuse_lists(settings)
    if not isinstance(errors, str) or errors not in (("raise", "return") if batch else ("raise",)):
        raise ArgumentError(f'errors must be "raise", or "return" for a list of prompts, got {show(errors)}')
    failed: dict[int, GenError] | None = {} if errors == "return" else None
    samplers = _read_samplers(model, settings.sampler, len(prompts))
    check_flag("details", details)
    for name in ("top_logprobs", "prompt_logprobs"):
        if getattr(settings, name) is not None and not details:
            raise ArgumentError(f"{name} are told with details=True, in each completion; give both.")
    returned = _read_returned(num_return_sequences, samplers)
    count = len(prompts) if batch else None
    constraints = read_constraints(model, output_type, count)
    own_tokens = tokens_of_a_step_row(max_batch_tokens, step_rows)
    requests = read_requests(
        model,
        prompts,
        settings,
        samplers,
        read_images(settings.images, count, local_files=settings.local_files),
        typed=[constraint is not None for constraint in constraints],
        max_batch_tokens=own_tokens,
        failed=failed,
    )
    find_step_rows(model, exact, requests)
    made = []
    for request in requests:
        try:
            one = constrained(model, request, constraints[request.number], own_tokens)
            if failed is not None:  # otherwise `run_all` checks all of them before anything runs
                rows, tokens = kind_of_search(one.sampler).width * step_rows, len(one.prompt_ids) + one.limit
                check_room([(one.number, rows, tokens)], max_batch_tokens)
            made.append(one)
        except GenError as error:
            if failed is None:
                raise
            failed[request.number] = error
    return Call(made, batch, returned, details, failed, step_rows)


def read_one(
    function: str,
    model: Model,
    prompt: Prompt,
    output_type: Any,
    settings: Settings,
    *,
    typed: bool = False,
    max_batch_tokens: int | None = None,
    check: Callable[[Model], object] = check_usable,
) -> Request:
    """Read and check the arguments of a function that continues one prompt with one text.

    Args:
        function: its name, for errors.
        typed: whether the request will get an output type later, though none is given here.
        check: as for `read_call`.
    Raises:
        ArgumentError, ModelError: as `read_call`; or the prompt is a list of prompts, or the sampler makes several
            texts.
    """
    check(model)
    prompts, batch = split_prompts(prompt)
    if batch:
        raise ArgumentError(f"{function} takes one prompt; use generate for a list.")
    _refuse_lists(settings)
    [constraint] = read_constraints(model, output_type, None)
    [sampler] = _read_samplers(model, settings.sampler, 1)
    if sampler.samples != 1:
        raise ArgumentError(f"{function} makes one text, the sampler makes {sampler.samples} a prompt; use generate.")
    [request] = read_requests(
        model,
        prompts,
        settings,
        [sampler],
        read_images(settings.images, None, local_files=settings.local_files),
        typed=[typed or constraint is not None],
        max_batch_tokens=max_batch_tokens,
    )
    return constrained(model, request, constraint, max_batch_tokens)


def find_step_rows(model: Model, exact: bool, requests: Sequence[Request] = ()) -> int:
    """How many rows steps must have; 1 unless texts must have the same bits in any batch.

    Raises:
        ArgumentError: a prompt has images; such prompts are not always read in the same pieces.
        ModelError: as `gen.models.base.Model.find_step_rows`.
    """
    check_flag("exact", exact)
    if not exact:
        return 1
    for request in requests:
        if request.inputs:
            raise ArgumentError(f"prompt {request.number} has images; exact=True is not possible with these.")
    return max(2, model.find_step_rows())


def tokens_of_a_step_row(max_batch_tokens: int | None, step_rows: int) -> int | None:
    """How many tokens a text's own rows may have room for, where a step has others beside them."""
    return None if max_batch_tokens is None else max_batch_tokens // step_rows


def read_submitted(
    function: str,
    model: Model,
    prompt: Prompt,
    output_type: Any,
    settings: Settings,
    max_batch_tokens: int | None = None,
) -> Submitted:
    """As `read_one`, but an output type that is not compiled yet is left to another thread: it may take seconds."""
    check_loaded(model)
    constraint, late = _compiling(model, output_type)
    request = read_one(
        function,
        model,
        prompt,
        constraint,
        settings,
        typed=output_type is not None,
        max_batch_tokens=max_batch_tokens,
        check=check_loaded,
    )
    if late is None:
        return request, None
    return request, partial(_constrained_late, model, late, max_batch_tokens)


def read_all_submitted(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any,
    settings: Settings,
    max_batch_tokens: int | None = None,
) -> list[Submitted]:
    """As `read_submitted`, for each text that each prompt's sampler makes, in order."""
    check_loaded(model)
    prompts, batch = split_prompts(prompt)
    if not batch:
        _refuse_lists(settings)
    samplers = _read_samplers(model, settings.sampler, len(prompts))
    count = len(prompts) if batch else None
    types = split_types(output_type, count)
    found = {id(one): _compiling(model, one) for one in types}  # a type that several prompts have is read once
    requests = read_requests(
        model,
        prompts,
        settings,
        samplers,
        read_images(settings.images, count, local_files=settings.local_files),
        typed=[one is not None for one in types],
        max_batch_tokens=max_batch_tokens,
    )
    submitted: list[Submitted] = []
    for request, one in zip(requests, types, strict=True):
        constraint, late = found[id(one)]
        if late is None:
            constrain = None
            request = constrained(model, request, constraint, max_batch_tokens)
        else:
            constrain = partial(_constrained_late, model, late, max_batch_tokens)
        submitted += [(text, constrain) for text in _texts(request)]
    return submitted


def _compiling(model: Model, output_type: Any) -> tuple[Constraint | None, Callable[[], Constraint] | None]:
    """A type's constraint if it was compiled before, or else a function that compiles it, once for all callers.

    Without a type both are None.
    """
    constraint = None if output_type is None else compiled_before(model, output_type)
    if output_type is None or constraint is not None:
        return constraint, None
    plan, lock, made = read_type(model, output_type), Lock(), list[Constraint]()

    def compile_once() -> Constraint:
        with lock:
            if not made:
                made.append(carry_out(model, plan))
            return made[0]

    return None, compile_once


def _constrained_late(
    model: Model, late: Callable[[], Constraint], max_batch_tokens: int | None, request: Request
) -> Request:
    return constrained(model, request, late(), max_batch_tokens)


def _texts(request: Request) -> list[Request]:
    """A request for each of a prompt's samples, with its seed."""
    sampler = request.sampler
    if len(request.seeds) == 1 or not isinstance(sampler, MultinomialSampler):
        return [request]
    one = replace(sampler, samples=1)
    return [
        replace(request, sampler=one, seeds=(seed,), sample=request.sample + number)
        for number, seed in enumerate(request.seeds)
    ]


def _refuse_lists(settings: Settings) -> None:
    """Raise an ArgumentError if an argument is a list with one value for each prompt, but the prompt is no list."""
    for name in ("sampler", "max_new_tokens", "seed"):
        given = getattr(settings, name)
        if isinstance(as_lists(given), list | tuple | range):
            raise ArgumentError(
                f"{name} is a list, one for each prompt of a list, and the prompt is a single one; give {name} without "
                f"the list, or the prompt as a list of one. Got {show(given)}"
            )
    if is_list_for_each(settings.stop):
        raise ArgumentError(
            "stop has lists or None in it, one for each prompt of a list, and the prompt is a single one; give stop as "
            f"a list of strings, or the prompt as a list of one. Got {show(settings.stop)}"
        )


def _read_samplers(model: Model, sampler: Sampler | Sequence[Sampler] | None, prompts: int) -> list[Sampler]:
    """One sampler a prompt."""
    if sampler is None:
        return [model.recommended_sampler] * prompts
    if not isinstance(sampler, list | tuple):
        return [read_sampler(sampler)] * prompts
    if len(sampler) != prompts:
        raise ArgumentError(f"sampler must be one sampler or one for each of {prompts} prompts, got {len(sampler)}")
    return [read_sampler(one) for one in sampler]


def _read_returned(num_return_sequences: int, samplers: Sequence[Sampler]) -> int:
    """How many of a beam search's texts are returned."""
    beams = [sampler.beams for sampler in samplers if isinstance(sampler, BeamSearchSampler)]
    most = min(beams, default=LARGEST) if len(beams) == len(samplers) else LARGEST
    returned = read_whole("num_return_sequences", num_return_sequences, minimum=1, maximum=most)
    if returned != 1 and len(beams) < len(samplers):
        raise ArgumentError("num_return_sequences is for beam search; multinomial(samples=...) draws several texts.")
    return returned
