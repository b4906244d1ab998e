"""`gen generate`, `gen stream`, and the program with all commands. Texts go to stdout, everything else to stderr."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from tqdm import tqdm

import gen
from gen.cli import batch_commands
from gen.cli.checking_commands import convert_command, diff_command, doctor_command, score_command, verify_command
from gen.cli.options import DEVICE, IMAGE, TextOptions, TextsOptions, flag, option, with_options
from gen.cli.serve_command import serve_command
from gen.cli.terminal import Given, read_prompts, say
from gen.cli.values import check_top_logprobs, read_output_type, read_pictures
from gen.offline.described import made_sampler
from gen.offline.files import finite
from gen.receipts import versions

app = typer.Typer(
    help="Generate text with local language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        say(", ".join(f"{name} {version}" for name, version in versions().items()), end="\n")
        raise typer.Exit


@app.callback()
def program(
    _: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the versions and exit."
    ),
) -> None:
    """Generate text with local language models."""


@app.command("generate", short_help="Continue each prompt.")
@with_options
def generate_command(
    prompts: list[str] | None = typer.Argument(
        None, metavar="PROMPT", help="If you give none, gen reads one from stdin."
    ),
    *,
    file: Path | None = option("Prompts", 'Read prompts from FILE, one on each line; "-" is stdin.', "FILE", "--file"),
    image: list[Path] | None = IMAGE,
    device: str | None = DEVICE,
    asked: TextsOptions,
    as_json: bool = flag("Output", "Print a line with a JSON object for each text.", "--json"),
    top_logprobs: int | None = option(
        "Output", "With --json, give the model's N likeliest tokens at each place.", "N", min=0
    ),
    batch_size: int = option("Output", "Run N prompts together.", "N", min=1, default=8),
) -> None:
    """Continue each prompt, and print the texts in the order of the prompts.

    If a prompt fails, stderr names it, the others go on, and the exit code is 1. If you give no option of sampling,
    search or penalties, the checkpoint's own recommendation decides how tokens are chosen.
    """
    check_top_logprobs(top_logprobs, as_json=as_json, beams=asked.beams)
    settings, output_type = _read(asked)
    given = read_prompts(prompts, file)
    pictures = read_pictures(image)
    loaded = asked.load(device)
    results = gen.generate_iter(
        loaded,
        (one.text for one in given),
        output_type,
        images=pictures,
        rows=batch_size,
        details=True,
        top_logprobs=top_logprobs,
        **settings,
    )
    ended: dict[int, Any] = {}
    shown, failed = 0, False
    for number, result in tqdm(results, total=len(given), unit="prompt", file=sys.stderr, disable=len(given) < 2):
        ended[number] = result
        while shown in ended:
            failed = _show(given[shown], ended.pop(shown), as_json, failed)
            shown += 1
    if failed:
        raise typer.Exit(1)


@app.command("stream", short_help="Continue one prompt, and show the text grow.")
@with_options
def stream_command(
    prompt: str | None = typer.Argument(None, metavar="PROMPT", help="If you give none, gen reads it from stdin."),
    *,
    image: list[Path] | None = IMAGE,
    device: str | None = DEVICE,
    asked: TextOptions,
) -> None:
    """Continue one prompt, and print the text while it grows."""
    settings, output_type = _read(asked)
    [given] = read_prompts([prompt] if prompt is not None else None, None)
    pictures = read_pictures(image)
    loaded = asked.load(device)
    for piece in gen.stream(loaded, given.text, output_type, images=pictures, **settings):
        say(piece)
    say("\n")


app.command("verify", short_help="Check whether a model still makes recorded texts.")(verify_command)
app.command("diff", short_help="Compare the recorded texts of two runs.")(diff_command)
app.command("score", short_help="Tell how likely texts are.")(score_command)
app.command("serve", short_help="Serve a model to clients of OpenAI and Anthropic.")(serve_command)
app.add_typer(batch_commands.app, name="batch")
app.command("convert", short_help="Write a GGUF file as a folder in Hugging Face format.")(convert_command)
app.command("doctor", short_help="Tell where a model's parts are, and where the host waits.")(doctor_command)


def _read(asked: TextOptions) -> tuple[dict[str, Any], Any]:
    """The arguments of `gen.generate` that the options ask for, and the output type."""
    settings = asked.settings()
    settings["sampler"] = made_sampler(settings["sampler"])
    from gen.requests.settings import read_stops  # needs torch, which waits for --threads

    read_stops(settings["stop"])
    return settings, read_output_type(asked.schema, asked.regex, asked.choice)


def _show(one: Given, result: Any, as_json: bool, failed: bool) -> bool:
    """Print a prompt's texts, or its error; whether it or one before it failed."""
    if isinstance(result, Exception):
        message = re.sub(r"^prompt \d+\b", "the prompt", str(result))
        tqdm.write(f"gen: {one.where}: {message}", file=sys.stderr)
        return True
    for completion in result if isinstance(result, list) else [result]:
        say(_as_json(one, completion) if as_json else completion.text, end="\n", failed=failed)
    return failed


def _as_json(one: Given, completion: "gen.Completion") -> str:
    """A line of JSON; infinite numbers, which JSON does not have, are null."""
    told = asdict(completion)
    del told["attempts"]  # the command line asks once
    if completion.top_logprobs is None:
        del told["top_logprobs"]
    return json.dumps(finite({"prompt": one.text, **told}))
