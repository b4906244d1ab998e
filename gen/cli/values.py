"""What the options of the command line stand for: samplers, output types, stops, pictures."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gen.errors import ArgumentError, ConstraintError, show, show_path
from gen.offline.described import describe_type, described_call, imported, made_type

if TYPE_CHECKING:
    from PIL import Image as Pictures

    import gen

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def choose_sampler(
    *,
    samples: int = 1,
    greedy: bool = False,
    beams: int | None = None,
    length_penalty: float | None = None,
    **settings: Any,
) -> list[Any] | None:
    """The name and the settings of the sampler that the options ask for; the values are not checked."""
    settings = {name: value for name, value in settings.items() if value is not None}
    by_chance = [f"--{name.replace('_', '-')}" for name in _SAMPLING if name in settings]
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
    """The output type that the options ask for; None if they ask for none."""
    try:
        return made_type(choose_output_type(schema, regex, choice))
    except ConstraintError as error:
        raise error if schema is None else ArgumentError(f"--schema {show_path(schema)}: {error}") from error


def choose_output_type(
    schema: Path | None, regex: str | None, choice: list[str] | None, type_: str | None = None
) -> dict[str, Any] | None:
    """The output type that the options ask for, in the form of `gen.offline.described`; it is not checked."""
    given = {"--schema": schema, "--regex": regex, "--choice": choice or None, "--type": type_}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ArgumentError(f"a text has one output type; give {' or '.join(names)}.")
    if schema is not None:
        try:
            text = schema.read_text(encoding="utf-8-sig")  # Windows puts a byte order mark before UTF-8
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"--schema {show_path(schema)} cannot be read: {error}") from error
        return described_call("json_schema", schema=text)
    if regex is not None:
        return described_call("regex", pattern=regex)
    if type_ is not None:
        sys.path.insert(0, "")  # the folder in which the command runs
        return describe_type(imported(type_))
    return described_call("choice", options=choice) if choice else None


def read_speculate(choice: Literal["auto", "on", "off"]) -> "gen.Speculation | Literal['auto', False]":
    """The option --speculate as `gen.generate` takes it."""
    if choice == "on":
        import gen

        return gen.Speculation()
    return "auto" if choice == "auto" else False


def read_pictures(paths: list[Path] | None) -> list["Pictures.Image"] | None:
    """The pictures that the options name, read once for all prompts; None for none."""
    from gen.requests.images import read_image

    return [read_image(path, f"--image {path}") for path in paths] if paths else None


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def unescape(text: str) -> str:
    r"""The text with \n, \t, \r, \\ and \uXXXX replaced by what they stand for."""

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
