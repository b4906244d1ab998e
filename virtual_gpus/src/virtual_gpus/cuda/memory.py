"""Counts the memory that each virtual GPU has given out, raises out of memory as CUDA does, and answers torch.cuda.

Storages are counted when they are made for a GPU, in blocks of 512 bytes like those of CUDA's allocator, until they are
freed. Reserved memory grows in steps of 2 MiB until empty_cache.
"""

import re
import weakref
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from virtual_gpus import ArgumentError, faults
from virtual_gpus.call_sites import call_site
from virtual_gpus.cuda import races
from virtual_gpus.machine import DEVICES, MAX_GPUS, active_machine, device_type, gpu_index, machine

DEFAULT = 80 * 2**30
_NOT_ON_MPS = (torch.float64, torch.complex128)
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
        TypeError: the device is of a type that has no such numbers.
    """
    if tensor.dtype in _NOT_ON_MPS and device_type() == "mps":
        raise TypeError(
            f"Cannot convert a MPS Tensor to {str(tensor.dtype).removeprefix('torch.')} dtype as the MPS framework "
            "doesn't support float64. Please use float32 instead."
        )
    if tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    if hasattr(storage, "_counted"):
        return
    size = -(-storage.nbytes() // _BLOCK) * _BLOCK
    check(size, gpu)
    if faults.active:
        faults.allocate(gpu)
    storage._counted = True  # type: ignore[attr-defined]
    usage = usages[gpu]
    usage.made += 1
    usage.allocated += size
    if usage.allocated > usage.peak:
        usage.peak = usage.allocated
    if usage.allocated > usage.reserved:
        usage.reserved = _round(usage.allocated, _SEGMENT)
        usage.peak_reserved = max(usage.peak_reserved, usage.reserved)
    history, active = None, active_machine()
    if races.state.on and not (active and active.captured):  # a graph keeps its memory
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


_METRICS = (
    "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split", "inactive_split_bytes",
    "requested_bytes", "reserved_bytes", "segment", "oversize_allocations", "oversize_segments",
)  # fmt: skip
_POOLS = ("all", "large_pool", "small_pool")
_WHAT = ("current", "peak", "allocated", "freed")


_ALONE = ("oversize_allocations", "oversize_segments")  # have no pools


def stats(usage: Usage) -> dict[str, int]:
    """torch.cuda.memory_stats, as far as it is counted."""
    found = {f"{metric}.{pool}.{what}": 0 for metric in _METRICS for pool in _POOLS for what in _WHAT}
    found |= {"num_ooms": usage.failed, "num_alloc_retries": usage.failed, "allocation.all.allocated": usage.made}
    for name, current, peak in (
        ("allocated_bytes", usage.allocated, usage.peak),
        ("active_bytes", usage.allocated, usage.peak),
        ("requested_bytes", usage.allocated, usage.peak),
        ("reserved_bytes", usage.reserved, usage.peak_reserved),
    ):
        found |= {f"{name}.all.current": current, f"{name}.all.peak": peak}
    return found | {f"{name}.{what}": found[f"{name}.all.{what}"] for name in _ALONE for what in _WHAT}


def usage(device: Any = None) -> Usage:
    """The memory that a GPU has given out."""
    return usages[gpu_index(device)]


def mem_get_info(device: Any = None) -> tuple[int, int]:
    total = machine().memory
    return max(total - usage(device).reserved, 0), total


def memory_stats(device: Any = None) -> dict[str, int]:
    return stats(usage(device))


def empty_cache() -> None:
    for one in usages:
        one.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    usage(device).fraction = fraction


def peers(memory: int) -> list[tuple[object, str, object]]:
    """The substitutes for other libraries' functions, each as (module, name, value), on GPUs with this many bytes.

    Before transformers loads a model, it warms torch's allocator up with as much memory as the model needs, but at most
    with 1.2 GiB less than the GPU has. That is a negative size on a smaller GPU.
    """
    if memory >= _LEFT_FREE or find_spec("transformers") is None:
        return []
    return [(import_module("transformers.modeling_utils"), "caching_allocator_warmup", lambda *args, **kwargs: None)]


_LEFT_FREE = 1.2 * 2**30

_given_out: dict[int, Tensor] = {}  # memory given to other libraries, by address


def give_out(size: int, stream: int) -> int:
    """torch._C._cuda_cudaCachingAllocator_raw_alloc: the address of `size` bytes of the current GPU."""
    given = torch.empty(size, dtype=torch.uint8, device="cpu")
    count(given, machine().current)
    _given_out[given.data_ptr()] = given
    return given.data_ptr()


def take_back(address: int) -> None:
    """torch._C._cuda_cudaCachingAllocator_raw_delete."""
    del _given_out[address]


ALLOCATOR: dict[str, Callable[..., Any]] = {
    "_cuda_cudaCachingAllocator_raw_alloc": give_out,
    "_cuda_cudaCachingAllocator_raw_delete": take_back,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mem_get_info": mem_get_info,
    "memory_stats": memory_stats,
    "memory_allocated": lambda device=None: usage(device).allocated,
    "max_memory_allocated": lambda device=None: usage(device).peak,
    "memory_reserved": lambda device=None: usage(device).reserved,
    "max_memory_reserved": lambda device=None: usage(device).peak_reserved,
    "empty_cache": empty_cache,
    "set_per_process_memory_fraction": set_per_process_memory_fraction,
    "get_per_process_memory_fraction": lambda device=None: usage(device).fraction,
    **dict.fromkeys(
        ["reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"],
        lambda device=None: usage(device).reset_peaks(),
    ),
    "reset_accumulated_memory_stats": lambda device=None: None,
    "get_allocator_backend": lambda: "native",
}
