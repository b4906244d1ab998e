"""Writes files so that they are there whole or not at all: written aside, synced to disk, then renamed; and JSON."""

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ASIDE = ".aside"
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # json.dumps makes one for each call


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Where to write a file; it gets its name at the end of the block, and after an error there is no file."""
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


def write_aside(path: Path, data: bytes) -> None:
    """Write bytes as `written_aside` does."""
    with written_aside(path) as aside:
        aside.write_bytes(data)


def as_line(value: Any) -> bytes:
    """A value as a line of JSON, in UTF-8. Numbers that JSON does not have become null, and a lone surrogate, which
    UTF-8 does not have, is written as its escape.
    """
    try:
        text = _JSON.encode(value)
    except ValueError:
        text = _JSON.encode(finite(value))
    return text.encode(errors="backslashreplace") + b"\n"


def finite(value: Any) -> Any:
    """A value for JSON; infinite numbers and NaN, which JSON does not have, become null."""
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
