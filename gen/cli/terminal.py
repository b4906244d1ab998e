"""What the command line reads and prints: prompts from arguments, files or stdin; texts to stdout, more to stderr."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from gen.errors import ArgumentError, GenError

_LINE_END = r"\r\n|\r|\n"


@dataclass(frozen=True, kw_only=True)
class Given:
    """A prompt.

    Attributes:
        text: the prompt itself.
        where: what messages call it, such as "prompts.txt, line 7".
    """

    text: str
    where: str


def read_prompts(prompts: list[str] | None, file: Path | None) -> list[Given]:
    """The prompts from one place. The file "-" is stdin. Blank lines of a file are left out and named on stderr."""
    if prompts and file:
        raise ArgumentError("give prompts as arguments or with --file, not both.")
    if prompts:
        for number, text in enumerate(prompts, 1):
            _check_unicode(text, f"prompt {number}")
        return [Given(text=text, where=f"prompt {number}") for number, text in enumerate(prompts, 1)]
    source = None if file is None or str(file) == "-" else file
    name = "stdin" if source is None else str(source)
    text = _read(source, name)
    if file is None:
        return [Given(text=re.sub(f"({_LINE_END})\\Z", "", text), where=name)]
    lines = re.split(_LINE_END, text)
    if not lines[-1]:
        lines.pop()  # the empty rest after the last line's end
    given = [Given(text=line, where=f"{name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    blank = [str(number) for number, line in enumerate(lines, 1) if not line.strip()]
    if not given:
        raise ArgumentError(f"{name} has no prompts; write one on each line.")
    if blank:
        shown = ", ".join(blank[:5]) + (f" and {len(blank) - 5} more" if len(blank) > 5 else "")
        print(f"gen: {name}: left out blank lines: {shown}", file=sys.stderr)
    return given


def _read(file: Path | None, name: str) -> str:
    """All of a file, or without one of stdin, without the byte order mark that Windows puts before UTF-8."""
    try:
        if file is None:
            if sys.stdin is None:
                raise ArgumentError("stdin is closed; give a prompt as an argument, or with --file.")
            if sys.stdin.isatty():
                print("gen: reading stdin; end with Ctrl-D", file=sys.stderr)
            data = sys.stdin.buffer.read()
        else:
            data = file.read_bytes()
    except OSError as error:
        raise ArgumentError(f"cannot read the prompts: {error}") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = len(re.split(_LINE_END.encode(), data[: error.start]))
        raise ArgumentError(
            f"{name}, line {line}: byte 0x{data[error.start]:02x} is not valid UTF-8 ({error.reason}); give UTF-8."
        ) from error


def _check_unicode(text: str, name: str) -> None:
    """Raise an ArgumentError if the shell gave bytes that are no UTF-8; Python turns them into lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{name} is not valid UTF-8, from character {error.start + 1} on.") from error


def say(text: str, end: str = "", *, failed: bool = False) -> None:
    """Print at once; if the reader of stdout has gone, such as `head`, exit without a word: as a failure if this call
    of the program has failed already.
    """
    check_output()
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        forget_output()
        raise typer.Exit(failed) from None


def check_output() -> None:
    """Raise a GenError if there is no stdout: texts would be lost without a word."""
    if sys.stdout is None:
        raise GenError("stdout is closed, and texts go there; leave it open.")


def forget_output() -> None:
    """Discard what is still to be flushed at the program's end: writing it would raise another error."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_stderr_tidy() -> None:
    """If stderr is a file or a pipe, leave out the progress bars of loading."""
    if sys.stderr is None or not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
