"""The control groups that bound this process: its own and those around it, as Linux's versions 2 and 1 tell them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")
_MINE = Path("/proc/self/cgroup")


class Group(NamedTuple):
    """A control group's folder, and the version of its files, 2 or 1."""

    folder: str
    version: int

    def read(self, name: str) -> str:
        """One of its files, without the end of its last line; empty if there is none."""
        return read(f"{self.folder}/{name}").strip()


def groups(controller: str) -> Iterator[Group]:
    """The groups in which "cpu" or "memory" may be bounded, the process's own first."""
    for line in read(_MINE).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, version = (f"{_ROOT}/{controller}", 1) if controllers else (f"{_ROOT}", 2)
        while path.strip("/"):
            yield Group(root + path, version)
            path = path.rpartition("/")[0]
        yield Group(root, version)


def read(path: Path | str) -> str:
    """A file's text; empty if there is none, as on other systems."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
