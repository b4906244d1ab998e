"""Counts the memory that each virtual GPU has given out, and raises out of memory as CUDA does.

Storages are counted when they are made for a GPU, in blocks of 512 bytes like those of CUDA's allocator, until they are
freed. Reserved memory grows in steps of 2 MiB until empty_cache.
"""

import re
import weakref
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.errors import ArgumentError
from virtual_gpus.call_sites import call_site
from virtual_gpus.machine import DEVICES, MAX_GPUS, active_machine
from virtual_gpus.streams import races

DEFAULT = 80 * 2**30
_BLOCK, _SEGMENT = 512, 2 * 2**20
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Usage:
    """One GPU's memory, in bytes."""

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0
        self.made = self.failed = 0
        self.fraction = 1.0

    def reset_peaks(self) -> None:
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def empty_cache(self) -> None:
        self.reserved = _round(self.allocated, _SEGMENT)


usages = [Usage() for _ in range(MAX_GPUS)]
_live: dict[weakref.ref[Any], tuple[int, int, races.History | None]] = {}


def read_size(memory: int | str) -> int:
    """Bytes of a size such as "80GB", "512MiB" or a number.

    Raises:
        ArgumentError: it is no size.
    """
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        if found and found[2].upper() in _UNITS:
            return int(float(found[1]) * _UNITS[found[2].upper()])
    elif isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    raise ArgumentError(f"memory= takes a size such as '80GB', '512MiB' or a number of bytes, got {memory!r}")


def forget() -> None:
    """Start counting from zero."""
    _live.clear()
    usages[:] = [Usage() for _ in range(MAX_GPUS)]


def count(tensor: Tensor, gpu: int) -> None:
    """Count the memory of an ordinary tensor that goes to a GPU, unless it is a view of memory that was counted.

    Raises:
        OutOfMemoryError: the GPU does not have as much memory.
    """
    if tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    if hasattr(storage, "_counted"):
        return
    size = -(-storage.nbytes() // _BLOCK) * _BLOCK
    check(size, gpu)
    storage._counted = True  # type: ignore[attr-defined]
    usage = usages[gpu]
    usage.made += 1
    usage.allocated += size
    if usage.allocated > usage.peak:
        usage.peak = usage.allocated
    if usage.allocated > usage.reserved:
        usage.reserved = _round(usage.allocated, _SEGMENT)
        usage.peak_reserved = max(usage.peak_reserved, usage.reserved)
    history = None
    if races.state.on:
        key = races.current_key(gpu)
        history = storage._history = races.History(key)  # type: ignore[attr-defined]
        whole = races.Access(key, races.launch(key), True, 0, storage.nbytes(), "what made it", call_site())
        history.accesses.append(whole)
    _live[weakref.ref(storage, _freed)] = gpu, size, history


def check(size: int, gpu: int) -> None:
    """Raise OutOfMemoryError if a GPU does not have `size` bytes more."""
    active = active_machine()
    usage = usages[gpu]
    if size >= 2**60:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
    if active is None or usage.allocated + size <= active.memory * usage.fraction:
        return
    usage.failed += 1
    total = active.memory
    raise torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_show(size)}. GPU {gpu} has a total capacity of {_show(total)} of "
        f"which {_show(max(int(total * usage.fraction) - usage.allocated, 0))} is free. Of the allocated memory "
        f"{_show(usage.allocated)} is allocated by PyTorch, and {_show(usage.reserved - usage.allocated)} is reserved "
        f"by PyTorch but unallocated. ({DEVICES[gpu]} is a virtual GPU: its memory is set by virtual_gpus(memory=))"
    )


def _freed(reference: weakref.ref[Any]) -> None:
    found = _live.pop(reference, None)
    if found is not None:
        usages[found[0]].allocated -= found[1]
        if races.state.on and found[2] is not None:
            races.freed(found[2])


def _round(size: int, step: int) -> int:
    return -(-size // step) * step


def _show(size: int) -> str:
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_:
            return f"{size / bytes_:.2f} {unit}"
    return f"{size} bytes"
