"""Checks a call's arguments and makes one request for each prompt, with its sampler, limit, seeds and constraint, for
whose whole text there must be room."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gen.arguments import as_lists, check_flag, read_token_ids, read_whole
from gen.constraints.automata.limits import TooLarge
from gen.constraints.composing.thoughts import begins_with, has_channels, thought_automaton
from gen.constraints.constraint import Constraint
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.errors import ArgumentError, ConstraintError, ContextError, GenError, in_python, kept_in, setting
from gen.models.base import Model
from gen.requests.images import Illustrated
from gen.requests.processors import read_processors
from gen.requests.prompts import (
    Prompt,
    begun_message,
    cut_left,
    ends_of,
    messages_of,
    no_room,
    read_one_prompt,
    vocabulary,
    without_old_turns,
)
from gen.requests.request import Bound, Request, Thinking
from gen.requests.settings import Settings, check_truncate, read_stops_of_each
from gen.runtime.isolation import isolated
from gen.samplers import Sampler
from gen.samplers.backends.random import draw_seed, sample_seed
from gen.samplers.kinds import is_beam_search, search_width
from gen.samplers.penalties import Penalties
from gen.tokens.thoughts import ANSWER, CHANNELS, Marks, marks_of_chat, read_shown, read_thinking, switched
from gen.tokens.thoughts import Thinking as Thinks

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

MOST = 128  # new tokens of a text, unless the caller says how many
MOST_TYPED = 2048  # the same for a text with an output type, which should end by itself
_MOST_THOUGHT = 8192  # tokens of a thought, unless the caller says how many, and at most half of the context's rest
_MOST_SAMPLES = 1_000_000  # texts of one prompt; each takes memory before anything runs


@isolated
def read_requests(
    model: Model,
    prompts: Sequence[Prompt],
    settings: Settings,
    samplers: Sequence[Sampler],
    images: Sequence[Sequence["Image"]],
    *,
    typed: Sequence[bool] | None = None,
    max_batch_tokens: int | None = None,
    skipped: Collection[int] = (),
    failed: dict[int, GenError] | None = None,
    attempt: int = 1,
) -> list[Request]:
    """Check every argument, and make the requests.

    Args:
        prompts: those of `as_chats`, if the settings ask for chats.
        samplers, images: from the settings, one sampler and one list of images for each prompt.
        typed: whether each prompt's text has an output type; None: none has.
        max_batch_tokens: how many tokens all rows together may have room for; None if the caller gives no limit.
        skipped: the numbers of prompts that get no request.
        failed: receives the errors of single prompts, which then get no request; None raises the first error.
        attempt: see `Request.attempt`.
    Raises:
        ArgumentError: an argument cannot be used; nothing has run yet.
    """
    check_flag("shorten", settings.shorten)
    check_truncate(settings.truncate)
    check_flag("local_files", settings.local_files)
    check_flag("limits_thoughts", settings.limits_thoughts)
    asked = as_lists(settings.max_new_tokens)
    limits: Sequence[int | None] = [None] * len(prompts)
    if asked is not None:
        limits = of_each("max_new_tokens", "whole number", asked, len(prompts), partial(read_whole, "max_new_tokens"))
    eos_token_ids = ends_of(model)
    if settings.eos_token_id is not None:
        eos_token_ids = tuple(read_token_ids("eos_token_id", settings.eos_token_id, vocabulary(model)))
    stops = read_stops_of_each(settings.stop, len(prompts))
    check_flag("include_stop", settings.include_stop)
    processors = read_processors(settings.logits_processors)
    top_logprobs = _read_top_logprobs(settings.top_logprobs, samplers, vocabulary(model))
    prompt_logprobs = settings.prompt_logprobs
    if prompt_logprobs is not None:
        prompt_logprobs = read_whole("prompt_logprobs", prompt_logprobs, maximum=vocabulary(model))
    bad_words = {id(sampler): _read_bad_words(model, sampler.penalties) for sampler in samplers}
    shown = read_shown(model.tokenizer, settings.skip_special_tokens)

    known: dict[tuple[int, Thinks], tuple[list[int], Illustrated | None]] = {}  # equal prompts are encoded once

    def read_text(
        number: int, prompt: Prompt, pictures: Sequence["Image"], thinks: Thinks
    ) -> tuple[list[int], Illustrated | None]:
        template_kwargs = settings.chat_template_kwargs
        try:
            if messages_of(prompt):
                template_kwargs = switched(model.tokenizer, template_kwargs, thinks)
            return read_one_prompt(
                model,
                number,
                prompt,
                pictures,
                template_kwargs=template_kwargs,
                local_files=settings.local_files,
                most=model.context_length if settings.truncate is None else None,
            )
        except ContextError:
            raise
        except ArgumentError as error:
            raise ArgumentError(f"prompt {number}: {error}" if len(prompts) > 1 else str(error)) from error

    def marked(prompt: Prompt, token_ids: list[int], thinks: Thinks) -> tuple[Marks | None, list[int]]:
        kwargs = settings.chat_template_kwargs
        return marks_of_chat(model.tokenizer, kwargs, token_ids, begun_message(prompt, kwargs), thinks)

    def read(
        number: int,
        prompt: Prompt,
        pictures: Sequence["Image"],
        sampler: Sampler,
        asked: int | None,
        prompt_seed: int,
        has_type: bool,
        thinks: Thinks,
    ) -> Request:
        is_chat = bool(messages_of(prompt))
        thinks = _check_thinks(number, thinks, is_chat, sampler, has_type)
        own = asked is None and has_type  # with the default limit, a prompt may take three quarters of the context
        wanted = model.context_length // 4 if own else MOST if asked is None else asked  # of a prompt that may be cut
        turns = settings.truncate == "turns"
        if turns:
            prompt = _last_turns(
                number,
                prompt,
                is_chat and not pictures,
                lambda one: marked(one, read_text(number, one, (), thinks)[0], thinks)[1],
                model.context_length - wanted,
                attempt,
            )
        key = id(prompt), thinks
        if pictures or key not in known or turns:
            known[key] = read_text(number, prompt, pictures, thinks)
        token_ids, illustrated = known.pop(key) if pictures or turns else known[key]
        thoughts: Marks | None = None
        if is_chat:
            thoughts, token_ids = marked(prompt, token_ids, thinks)
        if thinks is True and thoughts is None:
            raise ArgumentError(
                f"prompt {number} asks for {setting('thinking')}, and its chat template marks no thought that may come "
                f"there; leave {setting('thinking')} out, or load a model that thinks."
            )
        why_whole = "has images" if illustrated else "is a chat" if is_chat else ""
        why_whole = "has its last turn alone left" if turns else why_whole
        if settings.truncate is not None:
            token_ids = cut_left(
                number,
                token_ids,
                model.context_length,
                wanted,
                bos_token_id=model.tokenizer.bos_token_id,
                why=why_whole,
            )
        room = model.context_length - len(token_ids)
        bound: Bound = "max_new_tokens"
        most = asked if asked is not None else MOST_TYPED if has_type else MOST
        if (own or settings.shorten) and max_batch_tokens is not None:
            in_batch = max(1, room_in_batch(max_batch_tokens, sampler, token_ids))
            most, bound = (in_batch, "max_batch_tokens") if in_batch < most else (most, bound)
        if room <= most and (settings.truncate is None or why_whole):  # else a larger limit cuts more of the prompt
            bound = "context"
        if room < min(1, most):
            whole = turns or illustrated is not None
            raise no_room(number, len(token_ids), model.context_length, prompt, whole=whole)
        count = 1 if is_beam_search(sampler) else sampler.samples
        if count > _MOST_SAMPLES:
            raise ArgumentError(
                f"the sampler makes {count} texts of a prompt, and a call at most {_MOST_SAMPLES}; make the others in "
                "further calls, each with a seed of its own."
            )
        marks = () if thoughts is None else thoughts.names  # decoding keeps them, to find the thoughts in the text
        seen = shown | {token_id for token_id, text in model.tokenizer.special_tokens.items() if text in marks}
        stopping = [one if isinstance(one, str) else one.pattern for one in stops[number]]
        hidden = model.tokenizer.hidden_in(stopping).items()
        request = Request(
            prompt_ids=token_ids,
            sampler=sampler,
            seeds=tuple(sample_seed(prompt_seed, sample) for sample in range(count)),
            limit=min(most, room),
            bound=bound,
            stops=stops[number],
            include_stop=settings.include_stop,
            eos_token_ids=eos_token_ids,
            stop_token_ids=frozenset(eos_token_ids).difference(model.eos_token_ids),
            bad_words=bad_words[id(sampler)],
            illustrated=illustrated,
            logits_processors=processors,
            top_logprobs=top_logprobs,
            prompt_logprobs=prompt_logprobs,
            shown=seen,
            hidden={token_id: text for token_id, text in hidden if token_id not in seen},
            thoughts=thoughts,
            thinks=thinks,
            limits_thoughts=settings.limits_thoughts,
            own_limit=own,
            may_be_cut=settings.truncate is not None and own and not (illustrated or is_chat),
            shorten=settings.shorten,
            number=number,
            attempt=attempt,
        )
        if prompt_logprobs is not None:
            _check_prompt_logprobs(request)
        return request

    requests = []
    seeds = [draw_seed() for _ in prompts]
    if settings.seed is not None:
        seeds = of_each("seed", "whole number", as_lists(settings.seed), len(prompts), partial(read_whole, "seed"))
    types = typed or [False] * len(prompts)
    thinking = of_each(setting("thinking"), "value", as_lists(settings.thinking), len(prompts), read_thinking)
    given = zip(prompts, images, samplers, limits, seeds, types, thinking, strict=True)
    for number, one in enumerate(given):
        if number not in skipped:
            with kept_in(failed, number):
                requests.append(read(number, *one))
    return requests


def _last_turns(
    number: int, prompt: Prompt, takes: bool, read: Callable[[Prompt], list[int]], most: int, attempt: int
) -> Prompt:
    """A chat without as many old turns as must go for it to have at most so many tokens."""
    if not takes:
        raise ArgumentError(
            f'truncate="turns" is for chats whose images are in their messages, and prompt {number} is none; "left" '
            "keeps the end of a text."
        )
    return without_old_turns(messages_of(prompt), lambda some: len(read(some)) <= most, attempt)


def _check_thinks(number: int, thinks: Thinks, is_chat: bool, sampler: Sampler, has_type: bool) -> Thinks:
    """Check what was asked of a prompt's thought. A beam search for a value has none.

    Raises:
        ArgumentError: a thought is asked for where there is none.
    """
    if thinks and not is_chat:
        raise ArgumentError(
            f"{setting('thinking')} is for chats, and prompt {number} is none; give "
            f"{in_python('chat=True with a text, or give ')}the prompt as a list of messages."
        )
    if not is_beam_search(sampler):
        return thinks
    if thinks:
        advice = in_python(", or take gen.samplers.greedy or multinomial for a text that comes after a thought")
        raise ArgumentError(
            f"a beam search chooses among whole texts, and none comes after a thought; leave {setting('thinking')} out"
            f"{advice}."
        )
    return False if has_type and is_chat else thinks


def of_each(
    name: str, what: str, given: Any, prompts: int, read: Callable[[Any], T], error: type[GenError] = ArgumentError
) -> list[T]:
    """What each prompt has of an argument: the same, or its own of a list.

    Raises:
        GenError: of the type `error`, if there are not as many as prompts.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        return [read(given)] * prompts
    if len(given) != prompts:
        raise error(f"{name} must be one {what} or one for each of {prompts} prompts, got {len(given)}")
    return [read(one) for one in given]


@isolated
def constrained(
    model: Model, request: Request, constraint: Constraint | None, max_batch_tokens: int | None = None
) -> Request:
    """The request with its constraint, whose tables are on the device of the logits.

    The thought that may come before its text gets room beside the text.

    Args:
        max_batch_tokens: as for `read_requests`.
    Raises:
        ArgumentError: a token that ends the text spells characters that the text may need.
        ConstraintError: there is no room for a whole text.
    """
    if constraint is None:
        return _with_thought(model, request, max_batch_tokens)
    if request.thoughts is None and CHANNELS[1] in constraint.vocabulary.specials and has_channels(constraint):
        head = model.tokenizer.encode_plain(ANSWER)  # the prompt may have it, to close a thought
        if request.prompt_ids[-len(head) :] == head:
            request = replace(request, prompt_ids=request.prompt_ids[: -len(head)])
    for token_id in request.eos_token_ids:
        vocabulary = constraint.vocabulary
        if (spelt := vocabulary.tokens[token_id]) and token_id not in vocabulary.names.keys() - constraint.special_ids:
            raise ArgumentError(
                f"{setting('eos_token_id')} {token_id} spells {spelt!r}, which a text of an output type may need; "
                f"leave it out, or give the text as {setting('stop')}."
            )
    least = constraint.least_tokens or 0
    if request.may_be_cut and model.context_length - len(request.prompt_ids) < least < model.context_length - 1:
        request = _cut(model, request, least, max_batch_tokens)
    limit = request.limit
    if least > limit:
        wanted = f"prompt {request.number}: the shortest text of its output type has {least} tokens"
        if request.bound == "context":
            raise ConstraintError(f"{wanted}, the model's context leaves room for {limit}; shorten the prompt.")
        in_batch = max_batch_tokens and room_in_batch(max_batch_tokens, request.sampler, request.prompt_ids)
        if in_batch is not None and limit == max(1, in_batch):
            raise ConstraintError(f"{wanted}, max_batch_tokens leaves room for {in_batch}; give more.")
        raise ConstraintError(f"{wanted}, {setting('max_new_tokens')} is {limit}; give at least {least}.")
    hidden = {token_id: text for token_id, text in request.hidden.items() if token_id not in constraint.special_ids}
    return _with_thought(model, replace(request, constraint=constraint, hidden=hidden), max_batch_tokens)


def _with_thought(model: Model, request: Request, max_batch_tokens: int | None) -> Request:
    """The request with the thought that may come before its text, and with room for it."""
    marks, constraint = request.thoughts, request.constraint
    if marks is None or not request.limit or is_beam_search(request.sampler):
        return request
    grammar = None if constraint is None else constraint.grammar
    if constraint is not None and not marks.begun and begins_with(constraint, marks.written[0]):
        return replace(request, thoughts=None)
    must = request.thinks is True and not marks.begun
    try:
        automaton = thought_automaton(vocabulary_of(model), constraint, marks, must=must)
        automaton.place(model.placement.logits_device)
    except (ConstraintError, TooLarge):
        if constraint is None and (request.thinks is None or request.thinks is True):
            return request
        raise
    room = model.context_length - len(request.prompt_ids)
    asked = request.thinks if type(request.thinks) is int else min(_MOST_THOUGHT, room // 2)
    if max_batch_tokens is not None:
        room = min(room, room_in_batch(max_batch_tokens, request.sampler, request.prompt_ids))
    least = 1 if constraint is None else max(1, constraint.least_tokens or 0)
    beside = automaton.opening + automaton.closing + automaton.header
    if (request.limit if request.limits_thoughts else room) < beside + least:
        return _closed(model, request)
    if request.limits_thoughts:
        most = max(0, min(asked, request.limit - beside - least))
        return replace(request, thinking=Thinking(automaton=automaton, most=most, room=None, grammar=grammar))
    kept = least if request.own_limit else request.limit
    most = max(0, min(asked, room - beside - kept))
    left = max(least, min(request.limit, room - beside - most))
    bound = request.bound if left == request.limit else "context"
    thinking = Thinking(automaton=automaton, most=most, room=left + automaton.header, grammar=grammar)
    return replace(request, thinking=thinking, limit=most + beside + left, bound=bound)


def _closed(model: Model, request: Request) -> Request:
    """The request without a thought, since there is no room for one: the prompt closes what it has begun."""
    marks = request.thoughts
    assert marks is not None  # tells mypy
    answers = request.constraint is not None and marks.kind == "channels" and not has_channels(request.constraint)
    more = model.tokenizer.encode_plain(marks.closed) if marks.begun or answers else []
    limit = min(request.limit, model.context_length - len(request.prompt_ids) - len(more))
    if limit < 1:
        return request
    return replace(request, prompt_ids=[*request.prompt_ids, *more], limit=limit, thoughts=None)


def _cut(model: Model, request: Request, least: int, max_batch_tokens: int | None) -> Request:
    """The request with its prompt cut, so that the context has room for `least` new tokens."""
    bos_token_id = model.tokenizer.bos_token_id
    prompt_ids = cut_left(
        request.number, request.prompt_ids, model.context_length, least, bos_token_id=bos_token_id, why=""
    )
    room = least
    if max_batch_tokens is not None:
        room = min(room, max(1, room_in_batch(max_batch_tokens, request.sampler, prompt_ids)))
    return replace(request, prompt_ids=prompt_ids, limit=room)


def room_in_batch(max_batch_tokens: int, sampler: Sampler, prompt_ids: Sequence[int]) -> int:
    """How many new tokens max_batch_tokens leaves room for in a prompt's text, or in each row of its search."""
    return max_batch_tokens // search_width(sampler) - len(prompt_ids)


def _read_top_logprobs(given: int | None, samplers: Sequence[Sampler], known: int) -> int | None:
    """How many of the likeliest tokens to give with each token; None for no log-probabilities."""
    if given is None:
        return None
    if any(is_beam_search(sampler) for sampler in samplers):
        raise ArgumentError(
            f"{setting('top_logprobs')} are of texts that grow token by token, and a beam search chooses among whole "
            f"texts; leave them out{in_python(', or take gen.samplers.greedy or multinomial')}."
        )
    return read_whole("top_logprobs", given, maximum=known)


def _check_prompt_logprobs(request: Request) -> None:
    if request.inputs:
        raise ArgumentError(f"prompt {request.number} has images; {setting('prompt_logprobs')} are of texts alone.")
    if not request.limit:
        raise ArgumentError(
            f"{setting('prompt_logprobs')} come with the first new token, and {setting('max_new_tokens')} is 0; give "
            f"at least 1{in_python(', or call gen.score(model, prompt)')}."
        )


def _read_bad_words(model: Model, penalties: Penalties | None) -> tuple[tuple[int, ...], ...]:
    """The token ids of every bad word; a text has two lists, with and without a space before it. Checks logit_bias."""
    if penalties is None:
        return ()
    # a sampler does not know the vocabulary, so its ids are checked here
    read_token_ids("logit_bias", list(penalties.logit_bias or ()), vocabulary(model))
    sequences: list[list[int]] = []
    for word in penalties.bad_words or ():
        if isinstance(word, str):
            sequences += [model.tokenizer.encode_plain(text) for text in (word, f" {word}")]
        else:
            sequences.append(read_token_ids("bad_words", word, vocabulary(model)))
    return tuple(dict.fromkeys(map(tuple, sequences)))
