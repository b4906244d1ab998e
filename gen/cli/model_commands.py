"""The commands about a model that make no text: `gen convert` and `gen doctor`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gen.cli import options
from gen.cli.printing import keep_stderr_tidy, say


def convert_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="The file to read.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    *,
    threads: options.Threads = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", help='Such as "float16". If you give none: the file\'s, or float32 if it is quantised.'
        ),
    ] = None,
) -> None:
    """Write a GGUF file as a folder in Hugging Face format, which loads faster."""
    from gen.models.gguf.reading import convert

    keep_stderr_tidy()
    convert(file, folder, dtype=dtype)


def doctor_command(
    model: Annotated[
        str,
        typer.Argument(metavar="NAME", help='What "generate --model" takes, or a program of torch.export.'),
    ] = "demo",
    *,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help='Such as "cuda:1". If you give none: the last virtual GPU, or without one the same as for "generate".',
        ),
    ] = None,
    device_map: Annotated[
        str | None, typer.Option(metavar="MAP", help='"auto" spreads the model over the devices.')
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Make N virtual GPUs; 0 uses the machine's own devices. If you give none: 2 if there is no GPU.",
        ),
    ] = None,
    threads: options.Threads = None,
    encoder: Annotated[bool, typer.Option("--encoder", help="The model turns texts into vectors.")] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The tokenizer of an exported program: a directory or a Hub id."),
    ] = None,
    exllama: Annotated[
        int | None, typer.Option(metavar="2|3", min=2, max=3, help="Load the model with exllamav2, or exllamav3.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as a JSON object.")] = False,
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
    say(json.dumps({"model": model, **diagnosis.as_dict()}) if as_json else str(diagnosis), end="\n")
    if diagnosis.problems:
        raise typer.Exit(1)
