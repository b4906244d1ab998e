"""The command line's options: what they are called, how they are grouped in the help, and which commands share them."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, get_type_hints

import typer

from gen.cli.terminal import check_output, keep_stderr_tidy
from gen.cli.values import choose_sampler, read_speculate, unescape
from gen.errors import ArgumentError
from gen.runtime import cpu_threads

_AGAIN = "You can repeat the option."
_OF_SAMPLERS = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "min_new_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
]


def option(group: str, help: str, value: str | None, *names: str, default: Any = None, **settings: Any) -> Any:
    """An option of a group.

    Args:
        value: stands for its value in the help; None for its type.
    """
    return typer.Option(default, *names, help=help, metavar=value, rich_help_panel=group, **settings)


def flag(group: str, help: str, name: str) -> Any:
    """An option without a value, which is True where it is given."""
    return option(group, help, None, name, default=False)


def _choose_threads(threads: int | None) -> int | None:
    """Choose while options are read: once torch is loaded, it is too late."""
    cpu_threads.choose(threads)
    return threads


IMAGE = option("Prompts", f"Give each prompt this picture. {_AGAIN}", "FILE", "--image")
CHAT = flag("Prompts", "Put each prompt into the model's chat template.", "--chat")
DEVICE = option("Model", 'Such as "cuda:1". If you give none: the current CUDA device, or else the CPU.', "DEVICE")
THREADS = option(
    "Model",
    "Compute with N threads on a CPU. If you give none: one for each core, as far as a container's quota allows.",
    "N",
    "--threads",
    min=1,
    max=1024,
    is_eager=True,
    callback=_choose_threads,
)
SPECULATE = option(
    "Output", "Make several tokens in a step if they can be guessed; texts are the same.", None, default="auto"
)


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """Which model is loaded."""

    model: str = option(
        "Model", 'A directory, a GGUF file, a name on the Hub, or "demo".', "NAME", "--model", default="demo"
    )


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """How a model is loaded."""

    dtype: str | None = option("Model", 'Such as "bfloat16". If you give none: the checkpoint\'s.', "DTYPE")
    context_length: int | None = option(
        "Model", "Let a text have N tokens, prompt included. If you give none: the checkpoint's.", "N", min=2
    )
    threads: int | None = THREADS

    def load_model(self, name: str, device: str | None, **more: Any) -> Any:
        """The model, and no word of its loading on stderr where that is a file."""
        import gen

        keep_stderr_tidy()
        return gen.load(name, device=device, dtype=self.dtype, context_length=self.context_length, **more)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadingOptions, ModelName):
    """Which model is loaded, and how."""

    def load(self, device: str | None) -> Any:
        """The model, of which texts are printed."""
        check_output()
        return self.load_model(self.model, device)


@dataclass(frozen=True, kw_only=True)
class TextOptions(ModelOptions):
    """The options for a text; see `with_options`."""

    chat: bool = CHAT
    schema: Path | None = option("Output type", "Write JSON that meets the JSON Schema in FILE.", "FILE")
    regex: str | None = option("Output type", "Write a text that PATTERN matches as a whole.", "PATTERN")
    choice: list[str] | None = option("Output type", f"Write one of these texts. {_AGAIN}", "TEXT")
    max_new_tokens: int | None = option(
        "Length", "Make at most N tokens for each text. If you give none: 128; with an output type 2048.", "N", min=0
    )
    thinking: str | None = option(
        "Length",
        "Let a model think before it answers a chat: on, off, or at most N tokens. If you give none: as it chooses.",
        "N",
    )
    describe: bool = flag("Prompts", "Put a description of the output type into the system message.", "--describe")
    shorten: bool = flag("Length", "Print values of an output type even if their limit has shaped them.", "--shorten")
    min_new_tokens: int | None = option("Length", "Let no text end by itself before it has N tokens.", "N")
    stop: list[str] | None = option(
        "Length", rf"End a text before TEXT. \n, \t, \r, \\\\ and \u2026 are escapes. {_AGAIN}", "TEXT"
    )
    temperature: float | None = option("Sampling", "Divide the logits by T. 0 is greedy.", "T")
    top_k: int | None = option("Sampling", "Draw from the K likeliest tokens.", "K")
    top_p: float | None = option(
        "Sampling", "Draw from the likeliest tokens, until their probabilities add up to P.", "P"
    )
    min_p: float | None = option("Sampling", "Draw from tokens at least P times as likely as the best.", "P")
    seed: int | None = option("Sampling", "Give the same texts for the same SEED.", "SEED", min=0)
    greedy: bool = flag("Search", "Take the likeliest token each time.", "--greedy")
    repetition_penalty: float | None = option(
        "Penalties", "Above 1: make tokens of the prompt and the text less likely.", "X"
    )
    presence_penalty: float | None = option("Penalties", "Subtract X from the logits of the text's tokens.", "X")
    frequency_penalty: float | None = option(
        "Penalties", "Subtract X from a token's logit for each time that the text has it.", "X"
    )
    no_repeat_ngram_size: int | None = option("Penalties", "Let no sequence of N tokens come twice.", "N")
    bad_word: list[str] | None = option("Penalties", f"Never write TEXT. {_AGAIN}", "TEXT")
    speculate: Literal["auto", "on", "off"] = SPECULATE

    @property
    def thinks(self) -> bool | int | None:
        """The option --thinking, as `gen.generate` takes it."""
        given = self.thinking
        if given is None or given in ("on", "off"):
            return None if given is None else given == "on"
        if not given.isascii() or not given.isdigit():
            raise ArgumentError(f"--thinking must be on, off or a number of tokens, got {given}")
        return int(given)

    def settings(self, **more: Any) -> dict[str, Any]:
        """The arguments of `gen.run_batch` that the options ask for, as far as each option is one.

        Args:
            more: options of `choose_sampler`.
        """
        given = {name: getattr(self, name) for name in _OF_SAMPLERS}
        return {
            "sampler": choose_sampler(greedy=self.greedy, bad_words=self.bad_word, **given, **more),
            "stop": [unescape(text) for text in self.stop or ()],
            "speculate": read_speculate(self.speculate),
            "thinking": self.thinks,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "chat": self.chat,
            "describe": self.describe,
            "shorten": self.shorten,
        }


@dataclass(frozen=True, kw_only=True)
class TextsOptions(TextOptions):
    """The same for commands in which a prompt may have several texts."""

    samples: int = option("Sampling", "Write N texts for each prompt; with --beams, the best N.", "N", default=1)
    beams: int | None = option("Search", "Look for the likeliest text with N beams.", "N", min=1)
    length_penalty: float | None = option(
        "Search", "With --beams: above 0 prefers longer texts. If you give none: 1.", "X"
    )

    def settings(self, **more: Any) -> dict[str, Any]:
        settings = super().settings(
            samples=self.samples,
            beams=self.beams,
            length_penalty=self.length_penalty,
            **more,
        )
        return settings | {"num_return_sequences": self.samples if self.beams else 1}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command that Typer can read: parameters whose types are dataclasses become the options in these."""
    own = signature(command, eval_str=True)
    hints = {
        name: get_type_hints(one.annotation, include_extras=True)
        for name, one in own.parameters.items()
        if is_dataclass(one.annotation)
    }

    def run(*arguments: Any, **given: Any) -> None:
        for name, options in hints.items():
            given[name] = own.parameters[name].annotation(**{option: given.pop(option) for option in options})
        command(*arguments, **given)

    parameters: list[Parameter] = []
    for name, one in own.parameters.items():
        if name not in hints:
            parameters.append(one)
            continue
        for field in fields(one.annotation):
            hint = hints[name][field.name]
            parameters.append(Parameter(field.name, one.kind, default=field.default, annotation=hint))
    vars(run).update(__signature__=own.replace(parameters=parameters), __annotations__={})
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run
