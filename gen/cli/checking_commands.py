"""The commands that make no text: `gen score`, `gen verify` and `gen diff`, of texts that are there already; `gen
convert` and `gen doctor`, of a model.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import gen
from gen.cli.options import CHAT, DEVICE, THREADS, ModelOptions, with_options
from gen.cli.terminal import keep_stderr_tidy, read_prompts, say
from gen.errors import ArgumentError, show, show_path
from gen.offline.files import finite
from gen.offline.folder import NAME as MANIFEST
from gen.offline.status import status

_AsJson = Annotated[bool, typer.Option("--json", help="Print a line with a JSON object for each text.")]
_Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw how long texts stay equal into a picture; needs matplotlib."),
]


@with_options
def score_command(
    prompt: str | None = typer.Argument(None, metavar="PROMPT", help="The text before the continuations."),
    continuations: list[str] | None = typer.Argument(
        None, metavar="CONTINUATION", help="A text to score. If you give none: the prompt itself."
    ),
    *,
    file: Path | None = typer.Option(
        None,
        metavar="FILE",
        help='Read JSON lines with "prompt" and "continuation", a text or a list of texts; "-" is stdin.',
    ),
    chat: bool = CHAT,
    device: str | None = DEVICE,
    asked: ModelOptions,
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object for each text, with its tokens."),
) -> None:
    """Print a line for each text: its natural log-probability, and the text.

    A prompt and its continuation are encoded together. If the end of the prompt and the beginning of the continuation
    are in one token, the whole token is scored; "start" of --json says where the scored text begins.
    """
    if (prompt is None) == (file is None):
        raise ArgumentError("give a prompt with its continuations, or --file, and not both.")
    lines = _read(file) if prompt is None else [(prompt, continuations or [])]
    loaded = asked.load(device)
    wanted: Any = [texts or None for _, texts in lines]
    made = gen.score(loaded, [before for before, _ in lines], wanted, chat=chat)
    for (before, texts), found in zip(lines, made, strict=True):
        scores = found if isinstance(found, list) else [found]
        for text, score in zip(texts or [before], scores, strict=True):
            say(_as_json(before, text, score) if as_json else f"{score.sum:.4f}\t{text}", end="\n")


def _read(file: Path | None) -> list[tuple[str, list[str]]]:
    """The prompts of a file, each with the continuations to score after it; without any, it is scored itself."""
    lines = []
    for given in read_prompts(None, file):
        try:
            found = json.loads(given.text)
        except ValueError as error:
            raise ArgumentError(f"{given.where}: no JSON: {error}") from error
        known = isinstance(found, dict) and isinstance(found.get("prompt"), str)
        continuation = found.get("continuation", []) if known else None
        texts = [continuation] if isinstance(continuation, str) else continuation
        none = known and "continuation" in found and not texts
        if none or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ArgumentError(
                f'{given.where}: give {{"prompt": "...", "continuation": "..."}}, or a list of continuations, got '
                f"{show(given.text)}"
            )
        lines.append((found["prompt"], texts))
    return lines


def _as_json(prompt: str, text: str, score: "gen.Score") -> str:
    told = {"prompt": prompt, "text": text, "sum": score.sum, "perplexity": score.perplexity, **asdict(score)}
    del told["top_logprobs"]
    return json.dumps(finite(told))


@with_options
def verify_command(
    file: Path = typer.Argument(..., metavar="FILE", help="Receipts, one a line, or a job's folder."),
    *,
    device: str | None = DEVICE,
    asked: ModelOptions,
    as_json: _AsJson = False,
    plot: _Plot = None,
) -> None:
    """Check whether a model still makes recorded texts.

    A table says how many are equal, near ties and different; the exit code is 1 if a text is different.
    """
    receipts = _receipts(file)
    _tell(gen.diff(receipts, asked.load(device)), as_json, plot)


def diff_command(
    old: Path = typer.Argument(..., metavar="OLD", help="Receipts, one a line, or a job's folder."),
    new: Path = typer.Argument(..., metavar="NEW", help="Receipts of the same prompts and seeds."),
    *,
    as_json: _AsJson = False,
    plot: _Plot = None,
) -> None:
    """Compare the recorded texts of two runs; the exit code is 1 if a text is different, missing or added."""
    _tell(gen.diff(_receipts(old), _receipts(new)), as_json, plot)


def _receipts(path: Path) -> "list[gen.Receipt]":
    """Receipts; a file that cannot be read is a wrong argument, so that the exit code 1 tells of texts alone."""
    try:
        found = gen.Receipt.load(path)
    except OSError as error:
        raise ArgumentError(f"{show_path(path)} cannot be read: {error}") from error
    if (path / MANIFEST).is_file():
        told = status(path)
        if told["failed"] or len({*told["rows"].split(" of ")}) > 1:
            said = f"{told['rows']} rows are done, {told['failed']} of them failed; the others have no text to compare."
            print(f"gen: {show_path(path)}: {said}", file=sys.stderr)
    if not found:  # an exit code of 0 would say that all texts are the same
        raise ArgumentError(f"{show_path(path)} has no receipts.")
    return found


def _tell(found: "gen.Diff", as_json: bool, plot: Path | None) -> None:
    if plot is not None:
        found.plot(plot)
    for one in found.texts if as_json else [found]:
        say(str(one), end="\n", failed=not found.same)
    if not found.same:
        raise typer.Exit(1)


def convert_command(
    file: Path = typer.Argument(..., metavar="FILE.gguf", help="The file to read."),
    folder: Path = typer.Argument(..., metavar="DIR", help="A new or empty folder."),
    *,
    threads: int | None = THREADS,
    dtype: str | None = typer.Option(
        None, metavar="DTYPE", help='Such as "float16". If you give none: the file\'s, or float32 if it is quantised.'
    ),
) -> None:
    """Write a GGUF file as a folder in Hugging Face format, which loads faster."""
    from gen.models.gguf.reading import convert

    keep_stderr_tidy()
    convert(file, folder, dtype=dtype)


def doctor_command(
    model: str = typer.Argument(
        "demo", metavar="NAME", help='What "generate --model" takes, or a program of torch.export.'
    ),
    *,
    device: str | None = typer.Option(
        None,
        metavar="DEVICE",
        help='Such as "cuda:1". If you give none: the last virtual GPU, or without one the same as for "generate".',
    ),
    device_map: str | None = typer.Option(None, metavar="MAP", help='"auto" spreads the model over the devices.'),
    devices: int | None = typer.Option(
        None,
        metavar="N",
        min=0,
        help="Make N virtual GPUs; 0 uses the machine's own devices. If you give none: 2 if there is no GPU.",
    ),
    threads: int | None = THREADS,
    encoder: bool = typer.Option(False, "--encoder", help="The model turns texts into vectors."),
    tokenizer: str | None = typer.Option(
        None, metavar="NAME", help="The tokenizer of an exported program: a directory or a Hub id."
    ),
    exllama: int | None = typer.Option(
        None, metavar="2|3", min=2, max=3, help="Load the model with exllamav2, or exllamav3."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the diagnosis as a JSON object."),
) -> None:
    """Tell where a model's parts are, and where the host waits for each token.

    The exit code is 1 if the diagnosis found a fault.
    """
    from gen.doctor import diagnose

    keep_stderr_tidy()
    diagnosis = diagnose(
        model,
        device=device,
        device_map=device_map,
        virtual=devices,
        encoder=encoder,
        tokenizer=tokenizer,
        exllama=exllama,
    )
    told = json.dumps({"model": model, **diagnosis.as_dict()}) if as_json else str(diagnosis)
    say(told, end="\n", failed=bool(diagnosis.problems))
    if diagnosis.problems:
        raise typer.Exit(1)
