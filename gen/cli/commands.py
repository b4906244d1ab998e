"""`gen generate`, `gen stream`, and the program with all commands. Texts go to stdout, everything else to stderr."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tqdm import tqdm

import gen
from gen.cli import batch_commands, options
from gen.cli.inputs import Given, read_prompts
from gen.cli.model_commands import convert_command, doctor_command
from gen.cli.options import Grouped, check_top_logprobs, read_output_type, read_pictures, read_speculate, read_stops
from gen.cli.printing import check_output, keep_stderr_tidy, say
from gen.cli.score_command import score_command
from gen.cli.serve_command import serve_command
from gen.cli.text_options import TextOptions, TextsOptions, with_options
from gen.errors import ArgumentError, GenError
from gen.offline.described import made_sampler
from gen.offline.files import finite

if TYPE_CHECKING:
    from PIL.Image import Image

app = typer.Typer(
    help="Generate text with local language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"gen {gen.__version__}, torch {version('torch')}, transformers {version('transformers')}", end="\n")
        raise typer.Exit


@app.callback()
def program(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Generate text with local language models."""


@app.command("generate", cls=Grouped, short_help="Continue each prompt.")
@with_options
def generate_command(
    prompts: options.Prompts = None,
    *,
    file: options.File = None,
    image: options.Image = None,
    device: options.Device = None,
    asked: TextsOptions,
    as_json: options.AsJson = False,
    top_logprobs: options.TopLogprobs = None,
    batch_size: options.BatchSize = 8,
) -> None:
    """Continue each prompt, and print the texts in the order of the prompts.

    If a prompt fails, stderr names it, the others go on, and the exit code is 1. If you give no option of sampling,
    search or penalties, the checkpoint's own recommendation decides how tokens are chosen.
    """
    check_top_logprobs(top_logprobs, as_json=as_json, beams=asked.beams)
    settings, output_type = _read(asked)
    given = read_prompts(prompts, file)
    pictures = read_pictures(image)
    loaded = _load(asked, device)
    returned = asked.num_return_sequences
    run = partial(
        gen.generate, loaded, details=True, top_logprobs=top_logprobs, num_return_sequences=returned, **settings
    )
    # check the options with one prompt, without making a token: unusable options fail here, before the first prompt;
    # a chat has a place for each image, the plain prompt "x" has none
    run("x", images=pictures if asked.chat else None, max_new_tokens=0)
    if output_type is not None:
        constraint = gen.compile(loaded, output_type)
        least, most = constraint.least_tokens or 0, asked.max_new_tokens
        if most is not None and least > most:
            raise ArgumentError(f"the shortest text has {least} tokens, and --max-new-tokens is {most}.")
        run = partial(run, output_type=constraint)
    failed = False
    with tqdm(total=len(given), unit="prompt", file=sys.stderr, disable=len(given) < 2) as progress:
        for first in range(0, len(given), batch_size):
            batch = given[first : first + batch_size]
            for one, result in _attempt(partial(run, max_new_tokens=asked.max_new_tokens), batch, pictures):
                if isinstance(result, Exception):
                    failed = True
                    message = re.sub(r"^prompt \d+\b", "the prompt", str(result))
                    tqdm.write(f"gen: {one.where}: {message}", file=sys.stderr)
                    continue
                for completion in result if isinstance(result, list) else [result]:
                    say(_as_json(one, completion) if as_json else completion.text, end="\n")
            progress.update(len(batch))
    if failed:
        raise typer.Exit(1)


@app.command("stream", cls=Grouped, short_help="Continue one prompt, and show the text grow.")
@with_options
def stream_command(
    prompt: options.OnePrompt = None,
    *,
    image: options.Image = None,
    device: options.Device = None,
    asked: TextOptions,
) -> None:
    """Continue one prompt, and print the text while it grows."""
    settings, output_type = _read(asked)
    [given] = read_prompts([prompt] if prompt is not None else None, None)
    pictures = read_pictures(image)
    loaded = _load(asked, device)
    most = asked.max_new_tokens
    for piece in gen.stream(loaded, given.text, output_type, images=pictures, max_new_tokens=most, **settings):
        say(piece)
    say("\n")


app.command("score", cls=Grouped, short_help="Tell how likely texts are.")(score_command)
app.command("serve", cls=Grouped, short_help="Serve a model to clients of OpenAI and Anthropic.")(serve_command)
app.add_typer(batch_commands.app, name="batch")
app.command("convert", cls=Grouped, short_help="Write a GGUF file as a folder in Hugging Face format.")(convert_command)
app.command("doctor", cls=Grouped, short_help="Tell where a model's parts are, and where the host waits.")(
    doctor_command
)


def _read(asked: TextOptions) -> tuple[dict[str, Any], Any]:
    """The arguments of `gen.generate` that the options ask for, and the output type.

    Raises:
        ArgumentError: a value cannot be used.
    """
    sampler = made_sampler(asked.choose_sampler())
    settings = {"stop": read_stops(asked.stop), "seed": asked.seed, "chat": asked.chat, "shorten": asked.shorten}
    speculate = read_speculate(asked.speculate)
    output_type = read_output_type(asked.schema, asked.regex, asked.choice)
    return {"sampler": sampler, "speculate": speculate, "thinking": asked.thinks, **settings}, output_type


def _load(asked: TextOptions, device: str | None) -> Any:
    check_output()
    keep_stderr_tidy()
    return gen.load(asked.model, device=device, dtype=asked.dtype, context_length=asked.context_length)


def _attempt(
    run: Callable[..., Any], batch: Sequence[Given], images: Sequence["Image"] | None
) -> list[tuple[Given, Any | Exception]]:
    """Each prompt with its result, or with its error; a batch that fails as a whole is halved."""
    from torch import OutOfMemoryError

    try:
        pictures = None if images is None else [images] * len(batch)
        return list(zip(batch, run([one.text for one in batch], images=pictures, errors="return"), strict=True))
    except (GenError, OutOfMemoryError) as error:
        if len(batch) == 1:
            return [(batch[0], error)]
    half = len(batch) // 2
    return _attempt(run, batch[:half], images) + _attempt(run, batch[half:], images)


def _as_json(one: Given, completion: "gen.Completion") -> str:
    """A line of JSON; infinite numbers, which JSON does not have, are null."""
    told = asdict(completion)
    if completion.top_logprobs is None:
        del told["top_logprobs"]
    return json.dumps(finite({"prompt": one.text, **told}))
