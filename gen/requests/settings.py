"""The settings of a call that generates: one object for `generate`, `stream`, the engine and asyncio."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from gen.hints import refuse_unknown_arguments
from gen.requests.images import ImageLike
from gen.requests.processors import LogitsProcessor
from gen.requests.stops import Stops
from gen.requests.truncating import Truncate
from gen.samplers import Sampler


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings as the user gave them, not yet checked; `gen.generate` says what each of them means."""

    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None = None
    sampler: Sampler | Sequence[Sampler] | None = None
    max_new_tokens: int | Sequence[int] | None = None
    stop: Stops | Sequence[Stops] = None
    include_stop: bool = False
    seed: int | Sequence[int] | None = None
    eos_token_id: int | Sequence[int] | None = None
    chat: bool = False
    chat_template_kwargs: Mapping[str, object] | None = None
    skip_special_tokens: bool | Sequence[str] = True
    logits_processors: Sequence[LogitsProcessor] | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    shorten: bool = False
    truncate: Truncate = None
    max_time: float | None = None
    local_files: bool = True


def read_settings(function: str, arguments: Mapping[str, Any]) -> Settings:
    """The settings among a function's arguments.

    Raises:
        UnknownArgumentError: the function does not take one of the arguments.
    """
    refuse_unknown_arguments(function, arguments, [*Settings.__annotations__])
    return Settings(**arguments)


class SharedArguments(TypedDict, total=False):
    """The settings that have the same types for one prompt and for several."""

    include_stop: bool
    eos_token_id: int | Sequence[int] | None
    chat: bool
    chat_template_kwargs: Mapping[str, object] | None
    skip_special_tokens: bool | Sequence[str]
    logits_processors: Sequence[LogitsProcessor] | None
    top_logprobs: int | None
    prompt_logprobs: int | None
    shorten: bool
    truncate: Truncate
    max_time: float | None
    local_files: bool


class OneArguments(SharedArguments, total=False):
    """The types of settings for one prompt that makes one text."""

    images: Sequence[ImageLike] | None
    sampler: Sampler | None
    max_new_tokens: int | None
    stop: Stops
    seed: int | None


class EngineArguments(OneArguments, total=False):
    """The types of the settings for a request of an engine."""

    cache_salt: str | None
    priority: int


class PromptArguments(SharedArguments, total=False):
    """The types of settings for any prompts, without the sampler, on which the type of a result depends."""

    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None
    max_new_tokens: int | Sequence[int] | None
    stop: Stops | Sequence[Stops]
    seed: int | Sequence[int] | None
