"""`gen verify` and `gen diff`: recorded texts, checked with a model or compared with those of another run."""

from pathlib import Path
from typing import Annotated

import typer

import gen
from gen.cli import options
from gen.cli.printing import check_output, keep_stderr_tidy, say

_AsJson = Annotated[bool, typer.Option("--json", help="Print a line with a JSON object for each text.")]
_Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw how long texts stay equal into a picture; needs matplotlib."),
]


def verify_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Receipts, one a line.")],
    *,
    model: options.ModelName = "demo",
    device: options.Device = None,
    dtype: options.DType = None,
    context_length: options.ContextLength = None,
    threads: options.Threads = None,
    as_json: _AsJson = False,
    plot: _Plot = None,
) -> None:
    """Check whether a model still makes recorded texts.

    A table says how many are equal, near ties and different; the exit code is 1 if a text is different.
    """
    receipts = gen.Receipt.load(file)
    check_output()
    keep_stderr_tidy()
    loaded = gen.load(model, device=device, dtype=dtype, context_length=context_length)
    _tell(gen.diff(receipts, loaded), as_json, plot)


def diff_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Receipts, one a line.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Receipts of the same prompts and seeds.")],
    *,
    as_json: _AsJson = False,
    plot: _Plot = None,
) -> None:
    """Compare the recorded texts of two runs; the exit code is 1 if a text is different, missing or added."""
    _tell(gen.diff(gen.Receipt.load(old), gen.Receipt.load(new)), as_json, plot)


def _tell(found: "gen.Diff", as_json: bool, plot: Path | None) -> None:
    if plot is not None:
        found.plot(plot)
    if as_json:
        for one in found.texts:
            say(str(one), end="\n")
    else:
        say(str(found), end="\n")
    if not found.same:
        raise typer.Exit(1)
