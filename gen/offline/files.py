"""Writes files so that they are there whole or not at all: written aside, synced to disk, then renamed."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ASIDE = ".aside"


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Where to write a file; it gets its name at the end of the block, and after an error there is no file.

    Raises:
        OSError: it cannot be written, for example because the disk is full.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_ASIDE}")
    try:
        yield aside
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def write_aside(path: Path, text: str) -> None:
    """Write a text as `written_aside` does."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="")


def remove(path: Path) -> None:
    """Remove a file, if it is there, before anything that is written later."""
    with suppress(FileNotFoundError):
        os.unlink(path)
        _sync(path.parent)


def remove_left_aside(folder: Path) -> None:
    """Remove files that killed programs have left."""
    for left in folder.glob(f".*{_ASIDE}"):
        with suppress(OSError):
            left.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
