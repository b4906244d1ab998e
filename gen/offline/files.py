"""Files that are there whole or not at all: written aside, synced to disk, then renamed; JSON; and a job's lock.

One driver at a time holds a lock of the file system on a file that names it, as long as its process lives. The kernel
frees the lock when the process ends, however it ends, even if nobody has waited for it.
"""

import fcntl
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from gen.errors import GenError

_ASIDE = ".aside"
_LOCK = "driver.lock"
_TRIES = 3  # somebody who asks for the status holds the lock for a moment
_PAUSE = 0.05  # seconds
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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a job's folder for this process.

    Raises:
        GenError: another driver has it, or the file system has no locks.
        OSError: the folder cannot be written to.
    """
    with FileIO(str(folder / _LOCK), "a+") as file:  # errors name it as it is
        try:
            tries = 1
            while not _lock(file, fcntl.LOCK_EX):
                if tries == _TRIES:
                    raise GenError(
                        f"another gen batch run, {_owner(file)}, works in {folder}; wait for its end, or take another "
                        "folder."
                    )
                tries += 1
                time.sleep(_PAUSE)
        except OSError as error:
            raise GenError(
                f"the file system of {folder} has no locks ({error.strerror}), which keep two drivers apart; give a "
                "folder on another one, or mount this one with flock."
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)


def held_by(folder: Path) -> str | None:
    """The driver that has a job's folder, as "process 7 on host"; None if there is none."""
    try:
        with FileIO(folder / _LOCK) as file:
            return None if _lock(file, fcntl.LOCK_SH) else _owner(file)
    except OSError:  # no driver has been here, or none can be: there are no locks
        return None


def _lock(file: FileIO, kind: int) -> bool:
    """Lock a file until it is closed; returns False if another process has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(file: FileIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace") or "a process"
