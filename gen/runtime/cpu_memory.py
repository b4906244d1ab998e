"""How much memory the machine has, how much of it is free, and how memory is given back.

Control groups bound it where they leave less than the system, as in a container or a service.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

from gen.runtime.control_groups import Group, groups, read

_INFO = Path("/proc/meminfo")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
# files that were read: in use, but given up when memory is needed
_CACHED = {2: ("inactive_file", "active_file"), 1: ("total_inactive_file", "total_active_file")}
_NO_LIMIT = 2**60  # version 1 says it as a number


def total_bytes() -> int | None:
    """How many bytes of memory there are; None if it is not known."""
    return min([*_of_system("MemTotal"), *(most for _, most in _limits())], default=None)


def available_bytes() -> int | None:
    """How many bytes are left for new work without swapping; None if it is not known."""
    return min([*_of_system("MemAvailable"), *_left_in_groups()], default=None)


def give_back() -> None:
    """Give freed memory back to the system, which the C library otherwise keeps for this process; glibc alone can."""
    if _trim is not None:
        _trim(0)


def _of_system(what: str) -> Iterator[int]:
    _, found, rest = read(_INFO).partition(f"{what}:")
    if found:
        yield 1024 * int(rest.split(maxsplit=1)[0])


def _limits() -> Iterator[tuple[Group, int]]:
    """The groups that bound the process's memory, each with the most bytes that it may use."""
    for group in groups("memory"):
        limit = group.read("memory.max" if group.version == 2 else "memory.limit_in_bytes")
        if limit.isdigit() and int(limit) < _NO_LIMIT:
            yield group, int(limit)


def _left_in_groups() -> Iterator[int]:
    for group, most in _limits():
        used = group.read("memory.current" if group.version == 2 else "memory.usage_in_bytes")
        if used.isdigit():
            lines = (line.partition(" ") for line in group.read("memory.stat").splitlines())
            cached = sum(int(value) for name, _, value in lines if name in _CACHED[group.version])
            yield max(0, most - max(0, int(used) - cached))
