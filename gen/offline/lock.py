"""One driver at a time: it holds a lock of the file system on a file that names it, as long as its process lives.

The kernel frees the lock when the process ends, however it ends, even if nobody has waited for it.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from gen.errors import GenError

_NAME = "driver.lock"
_TRIES = 3  # somebody who asks for the status holds the lock for a moment
_PAUSE = 0.05  # seconds


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a job's folder for this process.

    Raises:
        GenError: another driver has it, or the file system has no locks.
        OSError: the folder cannot be written to.
    """
    with FileIO(folder / _NAME, "a+") as file:
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
        with FileIO(folder / _NAME) as file:
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
