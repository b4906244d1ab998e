"""What the commands print, and what libraries may print beside it."""

import os
import sys

import typer


def say(text: str, end: str = "") -> None:
    """Print at once; where the reader has gone, as `head` does, stop without a word."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush goes there
        raise typer.Exit from None


def keep_stderr_tidy() -> None:
    """Where stderr is a file or a pipe, leave out the progress bars of loading."""
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
