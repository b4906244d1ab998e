"""One driver at a time: a file names the owner of a job's folder, which touches the file as long as it is alive."""

import fcntl
import json
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from gen.errors import GenError
from gen.offline.files import write_aside

_NAME = "lock.json"
_BEAT = 10.0  # seconds
_DEAD = 60.0  # seconds without a beat after which a driver on another machine counts as gone


class Lock:
    """Holds a job's folder for this process, in a `with` block.

    Raises:
        GenError: another driver has it.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._mine = {"host": socket.gethostname(), "pid": os.getpid(), "begun": _begun(os.getpid())}
        self._mine["token"] = secrets.token_hex(8)
        self._over = Event()

    def __enter__(self) -> Self:
        with (self._path.parent / f".{_NAME}").open("w") as guard:  # if two drivers come at once
            fcntl.flock(guard, fcntl.LOCK_EX)
            if (owner := held_by(self._path.parent)) is not None:
                raise GenError(
                    f"another gen batch run, process {owner['pid']} on {owner['host']}, works in {self._path.parent}; "
                    "wait for its end, or take another folder."
                )
            self._write()
        Thread(target=self._beat, name="gen batch lock", daemon=True).start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._over.set()
        if self.held:
            with suppress(OSError):
                self._path.unlink()

    @property
    def held(self) -> bool:
        """Whether the folder is still this driver's; a driver that slept long may have lost it."""
        return _read(self._path) == self._mine

    def check(self) -> None:
        """Raise a GenError if the folder is no longer this driver's."""
        if not self.held:
            owner = _read(self._path) or {"pid": "?", "host": "?"}
            raise GenError(
                f"{self._path.parent} is no longer this driver's: process {owner['pid']} on {owner['host']} has taken "
                "it over. Nothing more is written here."
            )

    def _beat(self) -> None:
        while not self._over.wait(_BEAT):
            if not self.held:
                return
            with suppress(OSError):  # a full disk; writing results will raise
                os.utime(self._path)

    def _write(self) -> None:
        write_aside(self._path, json.dumps(self._mine))


def held_by(folder: Path) -> dict[str, Any] | None:
    """The driver that has a job's folder, as its host and pid; None if there is none, or if it is gone."""
    path = folder / _NAME
    owner = _read(path)
    if owner is None:
        return None
    if owner["host"] == socket.gethostname():
        return owner if owner["begun"] == _begun(owner["pid"]) else None
    try:
        now = folder / f".{_NAME}"
        now.touch()  # by the clock of the file system
        return owner if now.stat().st_mtime - path.stat().st_mtime < _DEAD else None
    except OSError:
        return owner


def _read(path: Path) -> dict[str, Any] | None:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return read
    except (OSError, ValueError):
        return None


def _begun(pid: int) -> str | None:
    """When a process of this machine began, in ticks, since a pid may be used again; None if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
