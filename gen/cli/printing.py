"""What the commands print, and what libraries may print besides."""

import os
import sys

import typer

from gen.errors import GenError


def say(text: str, end: str = "") -> None:
    """Print at once; if the reader of stdout has gone, such as `head`, exit without a word."""
    check_output()
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        forget_output()
        raise typer.Exit from None


def check_output() -> None:
    """Raise a GenError if there is no stdout: texts would be lost without a word."""
    if sys.stdout is None:
        raise GenError("stdout is closed, and texts go there; leave it open.")


def forget_output() -> None:
    """Discard what is still to be flushed at the program's end: writing it would raise another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_stderr_tidy() -> None:
    """If stderr is a file or a pipe, leave out the progress bars of loading."""
    if sys.stderr is None or not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
