"""Reads the arguments of a call into requests."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Literal

from gen.arguments import LARGEST, as_lists, check_flag, read_whole
from gen.calls.call import Call
from gen.calls.retrying import next_turn
from gen.constraints.constraint import Constraint
from gen.errors import ArgumentError, ConstraintError, GenError, ValueRefusedError, check_number, kept_in, show
from gen.loop.memory import check_room
from gen.models.base import Model
from gen.models.checks import check_usable
from gen.receipts.digests import weights_version
from gen.receipts.writing import ReceiptWriter
from gen.requests.images import read_images
from gen.requests.prompts import (
    AnyPrompt,
    Prompt,
    Prompts,
    as_chats,
    begun_message,
    continues_message,
    messages_of,
    split_prompts,
)
from gen.requests.reading import constrained, of_each, read_requests
from gen.requests.request import Request
from gen.requests.settings import Settings, is_list_for_each, read_drafts
from gen.samplers import Sampler
from gen.samplers.base import read_sampler
from gen.samplers.kinds import draws, has_tensors, is_beam_search, refuse_tensors
from gen.tokens.thoughts import without_begun_thought
from gen.tools.describing import with_system_text

OnErrors = Literal["raise", "return"]
Late = Callable[[], Constraint]


def read_call(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    output_type: Any,
    settings: Settings,
    *,
    one: str = "",
    late: bool = False,
    details: bool = False,
    num_return_sequences: int = 1,
    max_batch_tokens: int | None = None,
    errors: OnErrors = "raise",
    exact: bool = False,
    receipts: bool = True,
    retries: int = 0,
    attempt: int = 1,
    check: Callable[[Model], object] = check_usable,
) -> Call:
    """Read and check the arguments of `gen.generate`, which describes them.

    Args:
        one: the name of a function that continues one prompt with one text, and refuses others; "" for functions that
            take lists.
        late: whether types that were not compiled before are left to another thread, since that may take seconds; see
            `Request.late`.
        attempt: see `Request.attempt`.
        check: checks the model; give `check_loaded` if the model is checked again when the requests join a batch.
    Raises:
        ArgumentError: an argument cannot be used.
        ConstraintError: an output type cannot be used.
        ModelError: the model was changed so that gen can no longer run it, or it recommends sampling parameters that no
            sampler takes; or as `find_step_rows`.
    """
    begun = monotonic()  # compiling takes time of max_time, too
    check(model)
    step_rows = find_step_rows(model, exact)
    prompts, batch = split_prompts(prompt)
    if one and batch:
        raise ArgumentError(f"{one} takes one prompt; use gen.generate for a list.")
    if not batch:
        _refuse_lists(settings)
    if not isinstance(errors, str) or errors not in (("raise", "return") if batch else ("raise",)):
        raise ArgumentError(f'errors must be "raise", or "return" for a list of prompts, got {show(errors)}')
    failed: dict[int, GenError] | None = {} if errors == "return" else None
    sampler = model.recommended_sampler if settings.sampler is None else settings.sampler
    samplers = of_each("sampler", "sampler", sampler, len(prompts), read_sampler)
    if len(prompts) > 1:
        refuse_tensors(samplers)
    if one and samplers[0].samples != 1:
        made = samplers[0].samples
        raise ArgumentError(f"{one} makes one text, the sampler makes {made} a prompt; use gen.generate.")
    deadline = None if settings.max_time is None else begun + _read_max_time(settings.max_time, samplers)
    check_flag("details", details)
    for name in ("top_logprobs", "prompt_logprobs"):
        if getattr(settings, name) is not None and not details:
            raise ArgumentError(f"{name} are told with details=True, in each completion; give both.")
    returned = _read_returned(num_return_sequences, samplers)
    count = len(prompts) if batch else None
    types = [output_type]
    if batch:
        types = of_each("output_type", "type", output_type, len(prompts), lambda each: each, ConstraintError)
    distinct = {id(each): each for each in types}  # a type that several prompts share is compiled once
    compiled = {key: _compiled(model, each, late) for key, each in distinct.items()}
    own_tokens = None if max_batch_tokens is None else max_batch_tokens // step_rows  # a step has rows beside a text's
    images = read_images(settings.images, count, local_files=settings.local_files, failed=failed)
    for name in ("chat", "describe"):
        check_flag(name, getattr(settings, name))
    if settings.chat:
        prompts = as_chats(model, prompts, images, failed)
    if settings.describe:
        for number, each in enumerate(zip(prompts, types, strict=True)):
            with kept_in(failed, number):
                prompts[number] = _described(number, *each)
    retries = _read_retries(retries, prompts, types, samplers, failed)
    drafts = read_drafts(model, settings.draft, len(prompts), batch=batch, failed=failed)
    requests = read_requests(
        model,
        prompts,
        settings,
        samplers,
        images,
        typed=[each is not None for each in types],
        max_batch_tokens=own_tokens,
        skipped=tuple(failed or ()),
        failed=failed,
        attempt=attempt,
    )
    for request in requests if exact else ():
        if request.inputs:  # they are not always read in the same pieces
            raise ArgumentError(f"prompt {request.number} has images; exact=True is not possible with these.")
        if has_tensors(request.sampler):  # a step has rows beside theirs
            raise ArgumentError(
                "the sampler's parameters are tensors, with a value for each row; exact=True is not possible with "
                "these: give numbers."
            )
    read: list[Request] = []
    write_receipt = score_fields = None
    if details:
        from gen.scoring.fields import FieldScorer  # other calls do without it

        version = weights_version(model) if receipts or any(each is not None for each in types) else None
        write_receipt = ReceiptWriter(model, version).receipt if receipts else None
        score_fields = FieldScorer(model, version).scores
    for request in requests:
        number = request.number
        request = replace(request, draft=drafts[number], deadline=deadline)
        request = replace(request, write_receipt=write_receipt, score_fields=score_fields)
        if retries:
            own = _of_prompt(settings, number, batch=batch)
            messages = messages_of(prompts[number])
            again = partial(_next_turn, model, messages, types[number], own, own_tokens, details, receipts, retries - 1)
            request = replace(request, retry=again)
        constraint, compile_late = compiled[id(types[request.number])]
        with kept_in(failed, number):
            if compile_late is not None:
                request = replace(request, late=partial(_constrained_late, model, compile_late, own_tokens))
            else:
                request = constrained(model, request, constraint, own_tokens)
            if failed is not None:  # otherwise `run_all` checks all of them before anything runs
                check_room([request], step_rows, max_batch_tokens)
            read.append(request)
    return Call(read, batch, returned, details, failed, step_rows)


def _described(number: int, prompt: Prompt, output_type: Any) -> Prompt:
    """A chat whose system message describes the output type."""
    from gen.constraints.describing import describe  # what compiles types, which other calls do not need

    if not (messages := messages_of(prompt)):
        raise ArgumentError(
            f"describe=True is for chats, and prompt {number} is none; give chat=True with a text, or put "
            "gen.describe(output_type) into the prompt."
        )
    if output_type is None:
        raise ArgumentError(f"describe=True describes an output type, and prompt {number} has none.")
    return with_system_text(messages, describe(output_type))


def _read_retries(
    retries: int,
    prompts: Sequence[Prompt],
    types: Sequence[Any],
    samplers: Sequence[Sampler],
    failed: dict[int, GenError] | None,
) -> int:
    """How often a refused value is asked for again."""
    retries = read_whole("retries", retries)
    if not retries:
        return 0
    for number, one in enumerate(prompts):
        with kept_in(failed, number):
            if not messages_of(one):
                raise ArgumentError(
                    f"retries are further turns of a chat, and prompt {number} is none; give chat=True with a text, or "
                    "give the prompt as a list of messages."
                )
    if prompts and all(one is None for one in types):
        raise ArgumentError(
            "retries ask again for values that an output type's validators refuse, and there is no output type; give "
            "one, or leave retries out."
        )
    if any(is_beam_search(one) or one.samples != 1 for one in samplers):
        raise ArgumentError("retries are for one text a prompt; take gen.samplers.greedy or multinomial(samples=1).")
    return retries


def _read_max_time(max_time: float, samplers: Sequence[Sampler]) -> float:
    """How many seconds the texts may take."""
    check_number("max_time", max_time, above=0)
    if not all(map(draws, samplers)):
        raise ArgumentError(
            "max_time is for texts that grow token by token, of gen.samplers.greedy and multinomial; a search has no "
            "text before its end."
        )
    return float(max_time)


def _of_prompt(settings: Settings, number: int, *, batch: bool) -> Settings:
    """The settings of one prompt of a list, for a call with this prompt alone."""
    if not batch:
        return settings

    def own(given: Any) -> Any:
        return given[number] if isinstance(given := as_lists(given), list | tuple | range) else given

    names = ("sampler", "max_new_tokens", "seed", "thinking", *(["stop"] if is_list_for_each(settings.stop) else []))
    mine = {name: own(getattr(settings, name)) for name in names}
    images: Any = settings.images
    return replace(settings, **mine, images=None if images is None else images[number])


def _next_turn(
    model: Model,
    messages: Sequence[Any],
    output_type: Any,
    settings: Settings,
    max_batch_tokens: int | None,
    details: bool,
    receipts: bool,
    retries: int,
    request: Request,
    error: ValueRefusedError,
) -> Request | None:
    """The request for the turn after a refused one; None if there is no room for it."""
    kwargs = settings.chat_template_kwargs
    begun = without_begun_thought(model.tokenizer, kwargs, begun_message(messages, kwargs))
    messages = messages[:-1] if continues_message(messages, kwargs) else messages
    settings = replace(settings, seed=request.seeds[0], describe=False, draft=None, max_time=None)
    try:
        call = read_call(
            model,
            next_turn(messages, begun, error),
            output_type,
            settings,
            details=details,
            max_batch_tokens=max_batch_tokens,
            receipts=receipts,
            retries=retries,
            attempt=request.attempt + 1,
        )
        [made] = call.requests
        check_room([made], 1, max_batch_tokens)
    except GenError:
        return None
    return replace(made, number=request.number, deadline=request.deadline, cache_salt=request.cache_salt)


def find_step_rows(model: Model, exact: bool) -> int:
    """How many rows steps must have; 1 unless texts must have the same bits in any batch.

    Raises:
        ModelError: as `gen.models.base.Model.find_step_rows`.
    """
    check_flag("exact", exact)
    return max(2, model.find_step_rows()) if exact else 1


def _compiled(model: Model, output_type: Any, late: bool) -> tuple[Constraint | None, Late | None]:
    """A type's constraint, or where it comes late a function that compiles it, once for all callers; a type that was
    compiled before has its constraint at once. Without a type both are None.
    """
    if output_type is None:
        return None, None
    # imported here: 30 modules, which calls without a type do not need
    from gen.constraints.compiling import carry_out, compile, compiled_before, read_type

    if not late:
        return compile(model, output_type), None
    if (constraint := compiled_before(model, output_type)) is not None:
        return constraint, None
    plan, lock, made = read_type(model, output_type), Lock(), list[Constraint]()

    def compile_once() -> Constraint:
        with lock:
            if not made:
                made.append(carry_out(model, plan))
            return made[0]

    return None, compile_once


def _constrained_late(model: Model, late: Late, max_batch_tokens: int | None, request: Request) -> Request:
    return constrained(model, replace(request, late=None), late(), max_batch_tokens)


def _refuse_lists(settings: Settings) -> None:
    """Raise an ArgumentError if an argument is a list with one value for each prompt, but the prompt is no list."""
    for name in ("sampler", "max_new_tokens", "seed", "thinking"):
        given = getattr(settings, name)
        if isinstance(as_lists(given), list | tuple | range):
            raise ArgumentError(
                f"{name} is a list, one for each prompt of a list, and the prompt is a single one; give {name} without "
                f"the list. Got {show(given)}"
            )
    if is_list_for_each(settings.stop):
        raise ArgumentError(
            "stop has lists or None in it, one for each prompt of a list, and the prompt is a single one; give stop as "
            f"a list of strings. Got {show(settings.stop)}"
        )


def _read_returned(num_return_sequences: int, samplers: Sequence[Sampler]) -> int:
    """How many of a beam search's texts are returned."""
    beams = [sampler.beams for sampler in samplers if is_beam_search(sampler)]
    most = min(beams, default=LARGEST) if len(beams) == len(samplers) else LARGEST
    returned = read_whole("num_return_sequences", num_return_sequences, minimum=1, maximum=most)
    if returned != 1 and len(beams) < len(samplers):
        raise ArgumentError("num_return_sequences is for beam search; multinomial(samples=...) draws several texts.")
    return returned
