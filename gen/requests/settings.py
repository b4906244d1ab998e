"""The settings of a call that generates: one object for `generate`, `stream`, the engine and asyncio; the stops, which
end a text; and drafts, texts that were made before, which new texts may follow."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import Any, Literal, TypedDict, TypeVar, get_args

from gen.arguments import as_lists, check_text, is_whole, read_token_ids
from gen.completions import Completion, Receipt
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.automata.searching import Search, search_of
from gen.errors import ArgumentError, GenError, kept_in, setting, show
from gen.hints import refuse_unknown_arguments
from gen.models.base import Model
from gen.requests.images import ImageLike
from gen.requests.processors import LogitsProcessor
from gen.requests.prompts import Prompt, vocabulary
from gen.samplers import Sampler
from gen.tokens.thoughts import Thinking

Stop = str | Search
GivenStop = str | re.Pattern[str]
Stops = GivenStop | Sequence[GivenStop] | None  # for one prompt
Truncate = Literal["left", "turns"] | None
Draft = Completion | Receipt | str | Sequence[int] | None
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings as the user gave them, not yet checked; `gen.generate` says what each of them means.

    Attributes:
        limits_thoughts: whether max_new_tokens is the limit of a thought and its answer together, as in the protocols
            of servers, and not of the answer alone.
    """

    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None = None
    sampler: Sampler | Sequence[Sampler] | None = None
    max_new_tokens: int | Sequence[int] | None = None
    stop: Stops | Sequence[Stops] = None
    include_stop: bool = False
    seed: int | Sequence[int] | None = None
    eos_token_id: int | Sequence[int] | None = None
    chat: bool = False
    chat_template_kwargs: Mapping[str, object] | None = None
    thinking: Thinking | Sequence[Thinking] = None
    describe: bool = False
    skip_special_tokens: bool | Sequence[str] = True
    logits_processors: Sequence[LogitsProcessor] | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    shorten: bool = False
    truncate: Truncate = None
    max_time: float | None = None
    local_files: bool = True
    draft: Draft | Sequence[Draft] = None
    limits_thoughts: bool = False


class OtherSettings(TypedDict, total=False):
    """All settings but the sampler, on which the type of a result depends, as keyword arguments of a function."""

    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None
    max_new_tokens: int | Sequence[int] | None
    stop: Stops | Sequence[Stops]
    include_stop: bool
    seed: int | Sequence[int] | None
    eos_token_id: int | Sequence[int] | None
    chat: bool
    chat_template_kwargs: Mapping[str, object] | None
    thinking: Thinking | Sequence[Thinking]
    describe: bool
    skip_special_tokens: bool | Sequence[str]
    logits_processors: Sequence[LogitsProcessor] | None
    top_logprobs: int | None
    prompt_logprobs: int | None
    shorten: bool
    truncate: Truncate
    max_time: float | None
    local_files: bool
    draft: Draft | Sequence[Draft]


class AllSettings(OtherSettings, total=False):
    """All settings as keyword arguments of a function. One for a single prompt takes no lists with one for each."""

    sampler: Sampler | Sequence[Sampler] | None


class EngineSettings(AllSettings, total=False):
    """The keyword arguments of a request of an engine."""

    cache_salt: str | None
    priority: int
    receipts: bool


class AskedSettings(EngineSettings, total=False):
    """The keyword arguments of a request of an engine that waits for its value."""

    retries: int


_DEFAULTS = {field.name: field.default for field in fields(Settings)}
_DEFAULTS |= {"cache_salt": None, "priority": 0, "receipts": True, "retries": 0}


def read_settings(function: Callable[..., Any], given: Mapping[str, Any]) -> Settings:
    """The settings that a function got as keyword arguments.

    Raises:
        UnknownArgumentError: there is another argument.
    """
    if not given.keys() <= Settings.__annotations__.keys():
        known = [name for name in signature(function).parameters if name != "self"]
        refuse_unknown_arguments(function.__name__, given, known)
    return Settings(**given)


def shows_settings(function: F) -> F:
    """Let `help` show each setting with its default in the place of `**settings`."""
    *own, last = signature(function).parameters.values()
    [named] = get_args(last.annotation)  # of Unpack[...]
    settings = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=named.__annotations__[name])
        for name, default in _DEFAULTS.items()
        if name in named.__annotations__
    ]
    positional = [one for one in own if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    shown = [*positional, *settings, *own[len(positional) :]]
    vars(function)["__signature__"] = signature(function).replace(parameters=shown)
    return function


def trial_prompt(settings: Mapping[str, Any]) -> Prompt:
    """A short prompt with which settings are checked before the first prompt comes; a chat where they are for chats.

    Args:
        settings: those of a call by their names, `retries` too.
    """
    names = ("chat_template_kwargs", "describe", "retries", "thinking", "truncate")
    asked = [as_lists(settings[name]) for name in names]
    for_chats = any(one == "turns" if isinstance(one, str) else isinstance(one, Mapping | int) and one for one in asked)
    return [{"role": "user", "content": "x"}] if for_chats and settings["chat"] is False else "x"


def check_truncate(truncate: object) -> None:
    """Raise an ArgumentError unless it is "left", "turns" or None."""
    if truncate is not None and not (isinstance(truncate, str) and truncate in ("left", "turns")):
        raise ArgumentError(f'truncate must be "left", "turns" or None, got {show(truncate)}')


def is_list_for_each(stop: object) -> bool:
    """Whether `stop` has stops for each prompt of a list: it is a list with lists or None in it."""
    return isinstance(stop, list | tuple) and any(one is None or _is_list(one) for one in stop)


def read_stops_of_each(stop: Stops | Sequence[Stops], prompts: int) -> list[tuple[Stop, ...]]:
    """The stops of each prompt.

    Raises:
        ArgumentError: as for `read_stops`, or there are not as many lists as prompts.
    """
    if not is_list_for_each(stop):
        return [read_stops(stop)] * prompts
    lists: Any = stop
    for number, one in enumerate(lists):
        if one is not None and not _is_list(one):
            raise ArgumentError(
                f"stop has a list for each prompt, but {show(one)} for prompt {number}; write [{show(one)}] there."
            )
    if len(lists) != prompts:
        raise ArgumentError(f"stop must have one list or None for each of {prompts} prompts, got {len(lists)}")
    return [read_stops(one) for one in lists]


def read_stops(stop: Any) -> tuple[Stop, ...]:
    """The stops of one prompt as a tuple.

    Raises:
        ArgumentError: a stop is neither a string nor a compiled regex, or would end an empty text, or is a regex that
            no automaton can say, or that takes too large a one.
    """
    given = (stop,) if isinstance(stop, str | re.Pattern) else () if stop is None else stop
    if not _is_list(given):
        raise ArgumentError(
            f"{setting('stop')} must be a string, a compiled regex or a list of those, got {show(stop)}"
        )
    return tuple(_read_stop(number, one) for number, one in enumerate(given))


def _read_stop(number: int, stop: Any) -> Stop:
    """One stop."""
    if isinstance(stop, re.Pattern) and isinstance(stop.pattern, str):
        try:
            search = search_of(stop)
        except (Unsupported, TooLarge) as error:
            raise ArgumentError(
                f"{setting('stop')} {show(stop)}: {error}. A stop runs as an automaton, which takes no longer for one "
                "text than for another: write it without references to groups, look-around, atomic groups and "
                "possessive repeats, and with small counts."
            ) from None
        if search.empty:
            raise ArgumentError(
                f"{setting('stop')} {show(stop)} matches a text of no characters, and would end every text at once; "
                "write a regex that matches at least one character."
            )
        return search
    if not isinstance(stop, str) or not stop:
        raise ArgumentError(
            f"{setting('stop')} takes strings of at least one character and compiled regexes, got {show(stop)}"
        )
    check_text(f"stop string {number}", stop)
    return stop


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes | bytearray | memoryview)


def read_drafts(
    model: Model,
    draft: Draft | Sequence[Draft],
    prompts: int,
    *,
    batch: bool,
    failed: dict[int, GenError] | None = None,
) -> list[list[int]]:
    """The token ids of each prompt's draft; empty if it has none.

    Args:
        batch: whether the prompts came as a list; then there is a draft or None for each.
        failed: receives the errors of single prompts' drafts; None raises the first error.
    Raises:
        ArgumentError: a draft is something else, or has an id outside the vocabulary, or there are not as many drafts
            as prompts.
    """
    if draft is None:
        return [[]] * prompts
    given = as_lists(draft)
    if not batch:
        return [_read_draft(model, given)]
    several = isinstance(given, list | tuple) and not any(map(is_whole, given))
    if not several or len(given) != prompts:
        raise ArgumentError(
            f"draft must be a list with one draft or None for each of {prompts} prompts, got {show(draft)}"
        )
    read: list[list[int]] = [[] for _ in given]
    for number, one in enumerate(given):
        with kept_in(failed, number):
            read[number] = _read_draft(model, one)
    return read


def _read_draft(model: Model, draft: Draft) -> list[int]:
    """The token ids of one draft."""
    if draft is None:
        return []
    if isinstance(draft, str):
        check_text("the draft", draft)
        return model.tokenizer.encode_plain(draft)
    if isinstance(draft, Completion | Receipt):
        draft = draft.token_ids
    draft = as_lists(draft)
    if not _is_list(draft):
        raise ArgumentError(f"draft must be a Completion, a receipt, a text or a list of token ids, got {show(draft)}")
    return read_token_ids("draft", draft, vocabulary(model))
