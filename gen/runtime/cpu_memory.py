"""How much memory the machine has, how much of it is free (the system's, or the container's if that is less), and how
memory is given back."""

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

_INFO = Path("/proc/meminfo")
_CONTAINERS = (  # limit, use and kinds of the container's memory, as cgroups of version 2 and 1 report them
    tuple(Path("/sys/fs/cgroup", f"memory.{name}") for name in ("max", "current", "stat")),
    tuple(Path("/sys/fs/cgroup/memory", f"memory.{name}") for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
)
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
_CACHED = ("inactive_file", "active_file")  # files that were read: in use, but given up when memory is needed


def total_bytes() -> int | None:
    """How many bytes of memory there are; None if it is not known."""
    limits = [int(limit) for limit in (_read(path).strip() for path, *_ in _CONTAINERS) if limit.isdigit()]
    system = _of_system("MemTotal")
    return min(limits if system is None else [system, *limits], default=None)


def available_bytes() -> int | None:
    """How many bytes are left for new work without swapping; None if it is not known."""
    available = [bytes_ for bytes_ in (_of_system("MemAvailable"), *_left_in_containers()) if bytes_ is not None]
    return min(available, default=None)


def give_back() -> None:
    """Give freed memory back to the system, which the C library otherwise keeps for this process; glibc alone can."""
    if _trim is not None:
        _trim(0)


def _of_system(what: str) -> int | None:
    for line in _read(_INFO).splitlines():
        name, _, value = line.partition(":")
        if name == what:
            return 1024 * int(value.split()[0])
    return None


def _left_in_containers() -> Iterable[int]:
    for limit, used, kinds in _CONTAINERS:
        most, now = _read(limit).strip(), _read(used).strip()
        if most.isdigit() and now.isdigit():  # "max" is no limit
            lines = (line.partition(" ") for line in _read(kinds).splitlines())
            cached = sum(int(value) for name, _, value in lines if name in _CACHED)
            yield max(0, int(most) - max(0, int(now) - cached))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # no Linux, or another version
        return ""
