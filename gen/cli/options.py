"""The command line's options: what they are called, how they are grouped in the help, and what they stand for."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gen.errors import ArgumentError, show, show_path

if TYPE_CHECKING:
    from gen.samplers import Sampler


def _option(group: str, help: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=group, **settings)


Prompts = Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="None: stdin is one prompt.")]
OnePrompt = Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="None: stdin is the prompt.")]
File = Annotated[Path | None, _option("Prompts", 'Prompts, one a line; "-" is stdin.', "--file")]
Image = Annotated[
    list[Path] | None, _option("Prompts", "A picture that goes with each prompt; may be given again.", "--image")
]
Chat = Annotated[bool, _option("Prompts", "Use the tokenizer's chat template.", "--chat")]

ModelName = Annotated[str, _option("Model", 'A directory, a GGUF file, a Hub id, or "demo".', "--model")]
Device = Annotated[str | None, _option("Model", 'As "cuda:1"; default: the current CUDA device, else cpu.')]
DType = Annotated[str | None, _option("Model", 'As "bfloat16"; default: the checkpoint\'s.')]

MaxNewTokens = Annotated[int, _option("Length", "Most new tokens for each text.", min=0)]
MinNewTokens = Annotated[int | None, _option("Length", "Fewest tokens before a text may end by itself.")]
Stop = Annotated[
    list[str] | None,
    _option("Length", r"A string that ends a text; \n, \t, \r, \\ and \u2026 are escapes. May be given again."),
]

Schema = Annotated[Path | None, _option("Output type", "JSON that meets the JSON Schema in this file.")]
Regex = Annotated[str | None, _option("Output type", "A text that this regular expression matches as a whole.")]
Choice = Annotated[list[str] | None, _option("Output type", "One of these texts; may be given again.")]

Temperature = Annotated[float | None, _option("Sampling", "Divides the logits; 0 is greedy.")]
TopK = Annotated[int | None, _option("Sampling", "Keep the k most likely tokens.")]
TopP = Annotated[float | None, _option("Sampling", "Keep the most likely tokens up to this mass.")]
MinP = Annotated[float | None, _option("Sampling", "Keep tokens at least this likely against the best.")]
Seed = Annotated[int | None, _option("Sampling", "Gives the same texts again.", min=0, max=2**63 - 1)]
Samples = Annotated[int, _option("Sampling", "Texts for each prompt; with --beams the best ones.")]

Greedy = Annotated[bool, _option("Search", "Take the most likely token.", "--greedy")]
Beams = Annotated[int | None, _option("Search", "Look for the likeliest text with this many beams.", min=1)]
LengthPenalty = Annotated[float | None, _option("Search", "Of beams: above 0 prefers long texts; default 1.")]

RepetitionPenalty = Annotated[float | None, _option("Penalties", "Above 1: tokens of prompt and text are less likely.")]
PresencePenalty = Annotated[float | None, _option("Penalties", "Taken from the logits of the text's tokens.")]
FrequencyPenalty = Annotated[float | None, _option("Penalties", "The same, for each time that a token has come.")]
NoRepeatNgramSize = Annotated[int | None, _option("Penalties", "No sequence of this many tokens comes twice.")]
BadWord = Annotated[list[str] | None, _option("Penalties", "A text that must not come; may be given again.")]

AsJson = Annotated[bool, _option("Output", "A JSON object a line for each text.", "--json")]
BatchSize = Annotated[int, _option("Output", "How many prompts run together.", min=1)]


class Grouped(TyperCommand):
    """A command whose help shows its options in their groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Other options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def read_sampler(
    *,
    samples: int = 1,
    greedy: bool = False,
    beams: int | None = None,
    length_penalty: float | None = None,
    **settings: Any,
) -> "Sampler | None":
    """The sampler that the options ask for; None, the checkpoint's own recommendation, if they ask for nothing.

    Args:
        settings: of the samplers, by their names; None where one was not given.
    Raises:
        ArgumentError: options at odds with each other, or a value out of range.
    """
    from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler

    settings = {name: value for name, value in settings.items() if value is not None}
    by_chance = [_flag(name) for name in _SAMPLING if name in settings]
    if beams is not None:
        if by_chance or greedy:
            other = [*by_chance, "--greedy"][0]
            raise ArgumentError(f"--beams looks for the likeliest text, {other} asks for another; give one of them.")
        if length_penalty is not None:
            settings["length_penalty"] = length_penalty
        return BeamSearchSampler(beams, **settings)
    if length_penalty is not None:
        raise ArgumentError("--length-penalty is for beams; give --beams too.")
    if greedy:
        if by_chance or samples != 1:
            raise ArgumentError(f"--greedy makes one text, without chance; leave {[*by_chance, '--samples'][0]} out.")
        return GreedySampler(**settings)
    return MultinomialSampler(samples, **settings) if settings or samples != 1 else None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_output_type(schema: Path | None, regex: str | None, choice: list[str] | None) -> Any:
    """The output type that the options ask for; None if they ask for none.

    Raises:
        ArgumentError: more than one is asked for, or it cannot be read.
    """
    given = {"--schema": schema, "--regex": regex, "--choice": choice or None}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ArgumentError(f"a text has one output type; give {' or '.join(names)}.")
    import gen

    if schema is not None:
        try:
            return gen.json_schema(schema.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"--schema {show_path(schema)} cannot be read: {error}") from error
    if regex is not None:
        return gen.regex(regex)
    return gen.choice(choice) if choice else None


def read_stops(stops: list[str] | None) -> list[str]:
    """The stop strings, their escapes resolved."""
    from gen.loop.results import stop_strings

    return list(stop_strings.read_stops([unescape(text) for text in stops or ()]))


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def unescape(text: str) -> str:
    r"""The text with \n, \t, \r, \\ and \uXXXX replaced by what they stand for.

    Raises:
        ArgumentError: a backslash before anything else, or half of a pair of surrogates.
    """

    def replace(match: re.Match[str]) -> str:
        found = match.group(1)
        if len(found) == 5:
            return chr(int(found[1:], 16))
        if found not in _ESCAPES:
            raise ArgumentError(
                rf"--stop {show(text)} has a backslash before {found!r}; "
                r"write \n, \t, \r, \uXXXX, or \\ for a backslash."
            )
        return _ESCAPES[found]

    plain = re.sub(r"\\(u[0-9a-fA-F]{4}|.?)", replace, text, flags=re.DOTALL)
    try:
        return plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"--stop {show(text)} has half of a pair of surrogates; write both halves.") from error
