"""The command line's options: what they are called, how they are grouped in the help, and what they stand for."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gen.errors import ArgumentError, ConstraintError, show, show_path
from gen.offline.described import describe_type, imported, made_type
from gen.runtime import cpu_threads

if TYPE_CHECKING:
    from PIL import Image as Pictures

    import gen

_AGAIN = "You can repeat the option."


def _option(group: str, help: str, value: str | None, *names: str, **settings: Any) -> Any:
    """An option of a group; `value` stands for its value in the help, None if it is a flag."""
    return typer.Option(*names, help=help, metavar=value, rich_help_panel=group, **settings)


def _choose_threads(threads: int | None) -> int | None:
    """Choose while options are read: once torch is loaded, it is too late."""
    cpu_threads.choose(threads)
    return threads


Prompts = Annotated[
    list[str] | None, typer.Argument(metavar="PROMPT", help="If you give none, gen reads one from stdin.")
]
OnePrompt = Annotated[str | None, typer.Argument(metavar="PROMPT", help="If you give none, gen reads it from stdin.")]
File = Annotated[
    Path | None, _option("Prompts", 'Read prompts from FILE, one on each line; "-" is stdin.', "FILE", "--file")
]
Image = Annotated[list[Path] | None, _option("Prompts", f"Give each prompt this picture. {_AGAIN}", "FILE", "--image")]
Chat = Annotated[bool, _option("Prompts", "Put each prompt into the model's chat template.", None, "--chat")]

ModelName = Annotated[
    str, _option("Model", 'A directory, a GGUF file, a name on the Hub, or "demo".', "NAME", "--model")
]
Device = Annotated[
    str | None,
    _option("Model", 'Such as "cuda:1". If you give none: the current CUDA device, or else the CPU.', "DEVICE"),
]
DType = Annotated[str | None, _option("Model", 'Such as "bfloat16". If you give none: the checkpoint\'s.', "DTYPE")]

Threads = Annotated[
    int | None,
    _option(
        "Model",
        "Compute with N threads on a CPU. If you give none: one for each core, as far as a container's quota allows.",
        "N",
        "--threads",
        min=1,
        max=1024,
        is_eager=True,
        callback=_choose_threads,
    ),
]
ContextLength = Annotated[
    int | None,
    _option(
        "Model",
        "Let a text have N tokens, prompt included. If you give none: what the checkpoint says.",
        "N",
        min=2,
    ),
]

MaxNewTokens = Annotated[
    int | None,
    _option(
        "Length",
        "Make at most N tokens for each text. If you give none: 128; with an output type 2048.",
        "N",
        min=0,
    ),
]
Shorten = Annotated[
    bool, _option("Length", "Print values of an output type even if their limit has shaped them.", None, "--shorten")
]
Thinking = Annotated[
    str | None,
    _option(
        "Length",
        "Let a model think before it answers a chat: on, off, or at most N tokens. If you give none: as it chooses.",
        "N",
    ),
]
MinNewTokens = Annotated[int | None, _option("Length", "Let no text end by itself before it has N tokens.", "N")]
Stop = Annotated[
    list[str] | None,
    _option("Length", rf"End a text before TEXT. \n, \t, \r, \\ and \u2026 are escapes. {_AGAIN}", "TEXT"),
]

Schema = Annotated[Path | None, _option("Output type", "Write JSON that meets the JSON Schema in FILE.", "FILE")]
Regex = Annotated[str | None, _option("Output type", "Write a text that PATTERN matches as a whole.", "PATTERN")]
Choice = Annotated[list[str] | None, _option("Output type", f"Write one of these texts. {_AGAIN}", "TEXT")]

Temperature = Annotated[float | None, _option("Sampling", "Divide the logits by T. 0 is greedy.", "T")]
TopK = Annotated[int | None, _option("Sampling", "Draw from the K likeliest tokens.", "K")]
TopP = Annotated[
    float | None, _option("Sampling", "Draw from the likeliest tokens, until their probabilities add up to P.", "P")
]
MinP = Annotated[float | None, _option("Sampling", "Draw from tokens at least P times as likely as the best.", "P")]
Speculate = Annotated[
    Literal["auto", "on", "off"],
    _option("Output", "Make several tokens in a step if they can be guessed; texts are the same.", None),
]
Seed = Annotated[int | None, _option("Sampling", "Give the same texts for the same SEED.", "SEED", min=0)]
Samples = Annotated[int, _option("Sampling", "Write N texts for each prompt; with --beams, the best N.", "N")]

Greedy = Annotated[bool, _option("Search", "Take the likeliest token each time.", None, "--greedy")]
Beams = Annotated[int | None, _option("Search", "Look for the likeliest text with N beams.", "N", min=1)]
LengthPenalty = Annotated[
    float | None, _option("Search", "With --beams: above 0 prefers longer texts. If you give none: 1.", "X")
]

RepetitionPenalty = Annotated[
    float | None, _option("Penalties", "Above 1: make tokens of the prompt and the text less likely.", "X")
]
PresencePenalty = Annotated[float | None, _option("Penalties", "Subtract X from the logits of the text's tokens.", "X")]
FrequencyPenalty = Annotated[
    float | None, _option("Penalties", "Subtract X from a token's logit for each time that the text has it.", "X")
]
NoRepeatNgramSize = Annotated[int | None, _option("Penalties", "Let no sequence of N tokens come twice.", "N")]
BadWord = Annotated[list[str] | None, _option("Penalties", f"Never write TEXT. {_AGAIN}", "TEXT")]

AsJson = Annotated[bool, _option("Output", "Print a line with a JSON object for each text.", None, "--json")]
TopLogprobs = Annotated[
    int | None, _option("Output", "With --json, give the model's N likeliest tokens at each place.", "N", min=0)
]
BatchSize = Annotated[int, _option("Output", "Run N prompts together.", "N", min=1)]


_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def choose_sampler(
    *,
    samples: int = 1,
    greedy: bool = False,
    beams: int | None = None,
    length_penalty: float | None = None,
    **settings: Any,
) -> list[Any] | None:
    """The name and the settings of the sampler that the options ask for; the values are not checked.

    Raises:
        ArgumentError: options contradict each other.
    """
    settings = {name: value for name, value in settings.items() if value is not None}
    by_chance = [_flag(name) for name in _SAMPLING if name in settings]
    if beams is not None:
        if by_chance or greedy:
            other = [*by_chance, "--greedy"][0]
            raise ArgumentError(f"--beams looks for the likeliest text, {other} asks for another; give one of them.")
        if samples > beams:
            raise ArgumentError(
                f"--samples {samples} of --beams {beams} cannot be written; give as many beams or more."
            )
        if length_penalty is not None:
            settings["length_penalty"] = length_penalty
        return ["beam_search", {"beams": beams, **settings}]
    if length_penalty is not None:
        raise ArgumentError("--length-penalty is for beams; give --beams too.")
    if greedy:
        if by_chance or samples != 1:
            raise ArgumentError(f"--greedy makes one text, without chance; leave {[*by_chance, '--samples'][0]} out.")
        return ["greedy", settings]
    return ["multinomial", {"samples": samples, **settings}] if settings or samples != 1 else None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_top_logprobs(count: int | None, *, as_json: bool, beams: int | None) -> None:
    """Raise an ArgumentError if --top-logprobs cannot be shown, or are not known."""
    if count is not None and not as_json:
        raise ArgumentError("--top-logprobs are shown only in JSON; give --json too.")
    if count is not None and beams is not None:
        raise ArgumentError(
            "--top-logprobs are of texts that grow token by token, and --beams chooses among whole texts; leave one of "
            "them out."
        )


def read_output_type(schema: Path | None, regex: str | None, choice: list[str] | None) -> Any:
    """The output type that the options ask for; None if they ask for none.

    Raises:
        ArgumentError: more than one is asked for, or it cannot be read.
    """
    try:
        return made_type(choose_output_type(schema, regex, choice))
    except ConstraintError as error:
        raise error if schema is None else ArgumentError(f"--schema {show_path(schema)}: {error}") from error


def choose_output_type(
    schema: Path | None, regex: str | None, choice: list[str] | None, type_: str | None = None
) -> dict[str, Any] | None:
    """The output type that the options ask for, in the form of `gen.offline.described`; it is not checked.

    Raises:
        ArgumentError: more than one is asked for, or a file or a class cannot be read.
    """
    given = {"--schema": schema, "--regex": regex, "--choice": choice or None, "--type": type_}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ArgumentError(f"a text has one output type; give {' or '.join(names)}.")
    if schema is not None:
        try:
            text = schema.read_text(encoding="utf-8-sig")  # Windows puts a byte order mark before UTF-8
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"--schema {show_path(schema)} cannot be read: {error}") from error
        return {"json_schema": text}
    if regex is not None:
        return {"regex": regex}
    if type_ is not None:
        sys.path.insert(0, "")  # the folder in which the command runs
        return describe_type(imported(type_))
    return {"choice": choice} if choice else None


def read_speculate(choice: Literal["auto", "on", "off"]) -> "gen.Speculation | Literal['auto', False]":
    """The option --speculate as `gen.generate` takes it."""
    if choice == "on":
        import gen

        return gen.Speculation()
    return "auto" if choice == "auto" else False


def read_pictures(paths: list[Path] | None) -> list["Pictures.Image"] | None:
    """The pictures that the options name, read once for all prompts; None for none.

    Raises:
        ArgumentError: a picture cannot be read.
    """
    from gen.requests.images import read_image

    return [read_image(path, f"--image {path}") for path in paths] if paths else None


def read_stops(stops: list[str] | None) -> list[str]:
    """The stop strings, with their escapes resolved."""
    from gen.requests import settings as reading

    given = [unescape(text) for text in stops or ()]
    reading.read_stops(given)
    return given


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
