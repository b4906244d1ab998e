"""The options that are common to all commands which write texts."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import Any, get_type_hints

from gen.cli import options
from gen.cli.options import choose_sampler
from gen.errors import ArgumentError

_OF_SAMPLERS = (
    *("temperature", "top_k", "top_p", "min_p", "min_new_tokens", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "no_repeat_ngram_size"),
)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options for a text; see `with_options`."""

    chat: options.Chat = False
    model: options.ModelName = "demo"
    dtype: options.DType = None
    context_length: options.ContextLength = None
    threads: options.Threads = None
    schema: options.Schema = None
    regex: options.Regex = None
    choice: options.Choice = None
    max_new_tokens: options.MaxNewTokens = None
    thinking: options.Thinking = None
    shorten: options.Shorten = False
    min_new_tokens: options.MinNewTokens = None
    stop: options.Stop = None
    temperature: options.Temperature = None
    top_k: options.TopK = None
    top_p: options.TopP = None
    min_p: options.MinP = None
    seed: options.Seed = None
    greedy: options.Greedy = False
    repetition_penalty: options.RepetitionPenalty = None
    presence_penalty: options.PresencePenalty = None
    frequency_penalty: options.FrequencyPenalty = None
    no_repeat_ngram_size: options.NoRepeatNgramSize = None
    bad_word: options.BadWord = None
    speculate: options.Speculate = "auto"

    @property
    def thinks(self) -> bool | int | None:
        """The option --thinking, as `gen.generate` takes it."""
        given = self.thinking
        if given is None or given in ("on", "off"):
            return None if given is None else given == "on"
        if not given.isascii() or not given.isdigit():
            raise ArgumentError(f"--thinking must be on, off or a number of tokens, got {given}")
        return int(given)

    def choose_sampler(self, **more: Any) -> list[Any] | None:
        """See `gen.cli.options.choose_sampler`."""
        settings = {name: getattr(self, name) for name in _OF_SAMPLERS}
        return choose_sampler(greedy=self.greedy, bad_words=self.bad_word, **settings, **more)


@dataclass(frozen=True, kw_only=True)
class TextsOptions(TextOptions):
    """The same for commands in which a prompt may have several texts."""

    samples: options.Samples = 1
    beams: options.Beams = None
    length_penalty: options.LengthPenalty = None

    def choose_sampler(self, **more: Any) -> list[Any] | None:
        """See `gen.cli.options.choose_sampler`."""
        several = {name: getattr(self, name) for name in ("samples", "beams", "length_penalty")}
        return super().choose_sampler(**several, **more)

    @property
    def num_return_sequences(self) -> int:
        """As `gen.generate` takes it."""
        return self.samples if self.beams else 1


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command that Typer can read: the options in the class of its parameter `asked` replace that parameter."""
    own = signature(command, eval_str=True)
    kind = own.parameters["asked"].annotation
    hints = get_type_hints(kind, include_extras=True)

    def run(*arguments: Any, **given: Any) -> None:
        command(*arguments, asked=kind(**{name: given.pop(name) for name in hints}), **given)

    parameters: list[Parameter] = []
    for one in own.parameters.values():
        asked = [Parameter(f.name, one.kind, default=f.default, annotation=hints[f.name]) for f in fields(kind)]
        parameters += asked if one.name == "asked" else [one]
    vars(run).update(__signature__=own.replace(parameters=parameters), __annotations__={})
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run
