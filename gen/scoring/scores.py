"""`score` and `classify`: how likely given texts are to a model."""

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, get_origin, overload

import torch

from gen.arguments import as_lists, check_flag, is_whole, read_whole
from gen.constraints.compiling import compile
from gen.constraints.output_types import choice, regex
from gen.errors import ArgumentError, GenError, SamplingError, kept_in, show
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.models.base import Model
from gen.models.checks import check_model
from gen.requests.prompts import AnyPrompt, Prompt, Prompts, as_chats, split_prompts, vocabulary
from gen.requests.reading import constrained, of_each, read_requests
from gen.requests.settings import Settings
from gen.runtime.isolation import isolated
from gen.samplers import Sampler
from gen.samplers.base import read_sampler
from gen.scoring.pairs import Pair, read_pairs, refuse_equal
from gen.scoring.scorer import Score, Scorer
from gen.tokens.thoughts import Thinking, read_thinking


class Reading(TypedDict, total=False):
    """How `score` and `classify` read prompts; see there."""

    chat: bool
    chat_template_kwargs: Mapping[str, object] | None
    max_batch_tokens: int | None


class Scoring(Reading, total=False):
    """The keyword arguments of `score`."""

    top_logprobs: int | None


class Classifying(Reading, total=False):
    """The keyword arguments of `classify`."""

    thinking: Thinking | Sequence[Thinking]
    sampler: Sampler | None
    seed: int | Sequence[int] | None
    normalise: Literal["none", "tokens"]
    errors: Literal["raise", "return"]


Option = str | int | float | Enum | None
AnyOption = TypeVar("AnyOption", bound=Option)


@overload
def score(
    model: Model,
    prompts: Prompt,
    continuations: str | list[int] | tuple[int, ...] | None = ...,
    **given: Unpack[Scoring],
) -> Score: ...
@overload
def score(
    model: Model, prompts: Prompt, continuations: list[str] | list[list[int]], **given: Unpack[Scoring]
) -> list[Score]: ...
@overload
def score(
    model: Model,
    prompts: Prompts[AnyPrompt],
    continuations: list[str] | list[list[int]] | None = ...,
    **given: Unpack[Scoring],
) -> list[Score]: ...
@overload
def score(
    model: Model,
    prompts: Prompts[AnyPrompt],
    continuations: list[list[str]] | list[list[list[int]]],
    **given: Unpack[Scoring],
) -> list[list[Score]]: ...
@isolated
def score(
    model: Model,
    prompts: Prompt | Prompts[AnyPrompt],
    continuations: Any = None,
    *,
    top_logprobs: int | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    max_batch_tokens: int | None = None,
) -> Score | list[Score] | list[list[Score]]:
    """Say how likely texts are to a model, token by token. Nothing is drawn, and no sampler takes part.

    Args:
        model: from `gen.load` or another loader.
        prompts: what comes before: a text, a list of token ids or of messages, or a list of prompts.
        continuations: what is scored. For one prompt: a text or a list of token ids, which gives a `Score`; or a list
            of continuations, which gives a list and reads the prompt once. For a list of prompts: a list with an entry
            for each, a continuation or a list of continuations. None scores each prompt's own tokens after its first
            one. A prompt and its continuation are encoded together, and everything after the tokens that the prompt
            alone has too is scored: if " do" and "n't" become the tokens " don" and "'t", it begins with " don", and
            `Score.start` says where. Token ids stay as they are.
        top_logprobs: how many of the likeliest tokens to give for each place.
        chat: apply the chat template to prompts that are texts; a continuation is then the assistant's text, without
            special tokens and without an eos. The same holds for prompts that are messages. Where the template marks
            thoughts, the thought is closed at once, before the continuation, as with thinking=False of `gen.generate`.
        chat_template_kwargs: further arguments of the chat template, as for `gen.generate`.
        max_batch_tokens: how many tokens the rows of a batch may have room for together.
    Returns:
        A `Score`, or lists of scores, see `continuations`. A score does not depend on what else is scored, except for
        rounding: 1e-4 in float32.
    Raises:
        ArgumentError: an argument cannot be used, a prompt has images, a continuation has no tokens or changes all of
            the prompt's and there is no bos token, or a text is longer than the context; nothing has run.
        ModelError: the model cannot be run, or memory has no room for one text.
    Host sync: one at the end, and none for each token.
    """
    given, batch = _read_prompts(model, prompts, chat=chat)
    top = None
    if top_logprobs is not None:
        top = read_whole("top_logprobs", top_logprobs, minimum=1, maximum=vocabulary(model))
    scorer = Scorer(model, top=top, max_batch_tokens=max_batch_tokens)
    wanted = _read_continuations(len(given), continuations) if batch else [as_lists(continuations)]
    lists = [several if _are_several(several) else [several] for several in wanted]
    pairs = [
        read_pairs(
            model,
            number,
            prompt,
            None if len(several) == 1 and several[0] is None else several,
            template_kwargs=chat_template_kwargs,
        )
        for number, (prompt, several) in enumerate(zip(given, lists, strict=True))
    ]
    scores = iter(scorer.run(list(chain.from_iterable(pairs))))
    found: list[Any] = [[next(scores) for _ in own] for own in pairs]
    found = [own if _are_several(several) else own[0] for own, several in zip(found, wanted, strict=True)]
    return found if batch else found[0]


@overload
def classify(
    model: Model, prompt: Prompt, options: Sequence[AnyOption] | type[AnyOption], **given: Unpack[Classifying]
) -> dict[AnyOption, float]: ...
@overload
def classify(
    model: Model,
    prompt: Prompts[AnyPrompt],
    options: Sequence[AnyOption] | type[AnyOption],
    **given: Unpack[Classifying],
) -> list[dict[AnyOption, float]]: ...
@overload
def classify(model: Model, prompt: Prompt | Prompts[AnyPrompt], options: Any, **given: Unpack[Classifying]) -> Any: ...
@isolated
def classify(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    options: Any,
    *,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    thinking: Thinking | Sequence[Thinking] = None,
    sampler: Sampler | None = None,
    seed: int | Sequence[int] | None = None,
    normalise: Literal["none", "tokens"] = "none",
    errors: Literal["raise", "return"] = "raise",
    max_batch_tokens: int | None = None,
) -> Any:
    """Say how likely each option is after a prompt, if one of them follows: the probabilities sum to 1.

    Each option is scored as a whole, and the prompt is read once. If the prompt's last characters and the first ones of
    an option are in one token, all options are scored from this token on. `gen.choice` instead restricts a text to the
    options token by token: there, an option that begins with a likely token wins, however unlikely its other tokens
    are. No end is counted behind an option: one with which another begins, as "no" and "not", is at least as likely.

    Args:
        model: from `gen.load` or another loader.
        prompt: as in `gen.score`; a list of prompts gives a list.
        options: texts, numbers, bools, None or members of an Enum, at least one, no two with the same tokens; or a
            Literal, an Enum or bool, for all of its values. Values are written as `gen.choice` writes them: texts as
            they are, others as JSON. A text that goes on after a word begins with a space.
        chat: as in `gen.score`.
        chat_template_kwargs: as in `gen.score`.
        thinking: how much the model thinks about a chat before its options are compared, where the template marks
            thoughts. None and False close the thought at once; with True or a number the model writes one, as for
            `gen.generate`, and the options come after it.
        sampler: chooses the thought's tokens, as for `gen.generate`; nothing else is drawn.
        seed: of the thoughts, as for `gen.generate`.
        normalise: "none" compares the options' probabilities; "tokens" compares the means of their tokens'
            log-probabilities, so that a long option is not unlikely because it is long.
        errors: with "return", if a prompt of a list cannot be read or has no room, its thought fails, or the model
            rules out all of its options, its error takes the place of its result.
        max_batch_tokens: as in `gen.score`.
    Returns:
        Each option and its probability, in the order of the options.
    Raises:
        ArgumentError, ModelError: as for `gen.score`; or two options are equal.
        SamplingError: the model gives each option the probability 0.
    Host sync: one at the end.
    """
    if not isinstance(normalise, str) or normalise not in ("none", "tokens"):
        raise ArgumentError(f'normalise must be "none" or "tokens", got {show(normalise)}')
    values, texts = _read_options(options)
    failed: dict[int, GenError] = {}
    kept = failed if isinstance(errors, str) and errors == "return" else None
    given, batch = _read_prompts(model, prompt, chat=chat, failed=kept)
    scorer = Scorer(model, max_batch_tokens=max_batch_tokens)
    if not isinstance(errors, str) or errors not in (("raise", "return") if batch else ("raise",)):
        raise ArgumentError(f'errors must be "raise", or "return" for a list of prompts, got {show(errors)}')
    thinks = of_each("thinking", "value", as_lists(thinking), len(given), read_thinking)
    if sampler is not None:
        sampler = read_sampler(sampler)
    if seed is not None:
        of_each("seed", "whole number", as_lists(seed), len(given), partial(read_whole, "seed"))
    if thinking is None and (sampler is not None or seed is not None):
        raise ArgumentError(
            "sampler and seed are those of a thought, and none is asked for: the options' probabilities are the "
            "model's own, and nothing is drawn. Leave them out, or give thinking=True or the most tokens of a thought."
        )
    thoughts: dict[int, list[int]] = {}
    if any(thinks):
        settings = Settings(
            sampler=sampler,
            seed=seed,
            chat_template_kwargs=chat_template_kwargs,
            thinking=thinks,
            max_new_tokens=8,  # the first character of an answer, behind line breaks
        )
        others = [number for number, one in enumerate(thinks) if not one]
        thoughts = _thought_about(model, given, settings, others, scorer.max_batch_tokens, kept)
    pairs: dict[int, list[Pair]] = {}
    for number, one in enumerate(given):
        if number not in failed:
            with kept_in(kept, number):
                pairs[number] = read_pairs(
                    model,
                    number,
                    thoughts.get(number, one),
                    texts,
                    template_kwargs=None if number in thoughts else chat_template_kwargs,
                    name="option",
                    one_cut=True,
                )
                refuse_equal(pairs[number])
                scorer.check(pairs[number])
    asked = {number: own for number, own in pairs.items() if number not in failed}
    scores = iter(scorer.run(list(chain.from_iterable(asked.values()))))
    found: dict[int, Any] = {**failed}
    for number in asked:
        each = [next(scores) for _ in values]
        logits = [score.sum / (len(score.token_ids) if normalise == "tokens" else 1) for score in each]
        if max(logits) == -math.inf:
            found[number] = SamplingError(f"prompt {number}: to the model, each of the options has probability 0.")
            if errors == "raise":
                raise found[number]
            continue
        shares = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
        found[number] = dict(zip(values, shares, strict=True))
    return [found[number] for number in sorted(found)] if batch else found[0]


def _read_options(options: Any) -> tuple[list[Option], list[str]]:
    """The options, and their texts.

    Raises:
        ArgumentError: one of them has no text, or is the key of another one.
    """
    options = getattr(options, "__value__", options)  # of a `type` statement
    if isinstance(options, type) and issubclass(options, Enum):
        options = list(options)
    elif options is bool:
        options = [True, False]
    elif get_origin(options) is Literal:
        options = list(get_args(options))
    if isinstance(options, str) or not isinstance(options, Sequence) or not options:
        raise ArgumentError(
            f"options must be a list of texts or other values, at least one, a Literal, an Enum or bool, got "
            f"{show(options)}"
        )
    for option in options:
        if not isinstance(option, Option) or option == "":
            raise ArgumentError(
                f"an option must be a text that is not empty, a number, a bool, None or a member of an Enum, got "
                f"{show(option)}"
            )
    texts = [text for option in options for text in choice([option]).options]
    seen: dict[Option, int] = {}
    for number, option in enumerate(options):
        other = seen.setdefault(option, number)
        if other != number and texts[other] != texts[number]:
            raise ArgumentError(
                f"options {other} and {number}, {show(options[other])} and {show(option)}, are equal in Python, and "
                "would be one key of the result; give them as texts."
            )
    return list(options), texts


def _thought_about(
    model: Model,
    prompts: Sequence[Prompt],
    settings: Settings,
    skipped: Collection[int],
    max_batch_tokens: int | None,
    failed: dict[int, GenError] | None,
) -> dict[int, list[int]]:
    """Chats with a thought of the model, as token ids, by their numbers; without those for which it writes none.

    Args:
        skipped: the numbers of prompts that are to have none.
        failed: see `read_requests`; it receives the errors of thoughts, too.
    """
    sampler = read_sampler(model.recommended_sampler if settings.sampler is None else settings.sampler)
    if sampler.samples != 1:
        raise ArgumentError(f"classify takes one thought of each prompt, the sampler makes {sampler.samples}.")
    requests = read_requests(
        model,
        prompts,
        settings,
        [sampler] * len(prompts),
        [()] * len(prompts),
        typed=[True] * len(prompts),
        skipped=skipped,
        failed=failed,
    )
    any_answer = compile(model, regex(r"[\s\S]"))  # so that no text ends within its thought
    jobs: list[Job] = []
    for request in requests:
        with kept_in(failed, request.number):
            request = constrained(model, request, any_answer, max_batch_tokens)
            if request.thinking is not None:  # else its template marks none, or there is no room for one
                jobs.append(new_job(model, request))
    run_all(model, jobs, Options(max_batch_tokens=max_batch_tokens))
    found: dict[int, list[int]] = {}
    for job in jobs:
        with kept_in(failed, (request := job.request).number):
            [made] = job.completions()
            assert request.thinking is not None  # tells mypy
            before = made.reasoning_tokens + request.thinking.automaton.header
            found[request.number] = [*request.prompt_ids, *made.token_ids[:before]]
    return found


def _read_prompts(
    model: Model, prompts: Prompt | Prompts[AnyPrompt], *, chat: bool, failed: dict[int, GenError] | None = None
) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a list; checks the model too. `failed` is as for `as_chats`."""
    check_model(model)
    check_flag("chat", chat)
    given, batch = split_prompts(prompts)
    return as_chats(model, given, failed=failed) if chat else given, batch


def _read_continuations(prompts: int, given: Any) -> list[Any]:
    """What to score after each prompt of a list."""
    if given is None:
        return [None] * prompts
    given = as_lists(given)
    if not isinstance(given, list | tuple) or len(given) != prompts:
        came = f"{len(given)}" if isinstance(given, list | tuple) else show(given)
        raise ArgumentError(
            f"continuations must be a list with one entry for each of {prompts} prompts, a continuation or a list of "
            f"them, got {came}"
        )
    return [as_lists(one) for one in given]


def _are_several(given: Any) -> bool:
    """Whether this is a list of continuations, and not a single one: a text, token ids, or None."""
    if given is None or isinstance(given, str) or not isinstance(given, list | tuple):
        return False
    return not given or not is_whole(given[0])
