"""torch.cuda's functions about the memory of each GPU: how much there is, is in use, and was in use at most."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.cuda.memory import Usage, count, usages
from virtual_gpus.machine import gpu_index, machine

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
