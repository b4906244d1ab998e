"""The functions of torch.cuda and torch.accelerator, as virtual GPUs answer them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import torch
from torch import Tensor

from gen.errors import DeviceError
from gen.testing.cuda import comm, memory
from gen.testing.machine import CPU, machine
from gen.testing.rules.same_device import place_of
from gen.testing.streams import races
from gen.testing.streams.cuda_graphs import GraphContext, VirtualGraph, graph_pool_handle, is_capturing
from gen.testing.streams.streams_and_events import (
    ExternalStream,
    StreamContext,
    VirtualEvent,
    VirtualStream,
    current_stream,
    default_stream,
    gpu_index,
    set_stream,
)
from gen.testing.syncs import debug_mode
from gen.testing.syncs.reports import report_sync


@dataclass(frozen=True)
class DeviceProperties:
    """torch.cuda.get_device_properties of a virtual GPU."""

    name: str = "Virtual GPU"
    major: int = 8
    minor: int = 0
    total_memory: int = memory.DEFAULT
    multi_processor_count: int = 108
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 166912
    shared_memory_per_multiprocessor: int = 167936
    L2_cache_size: int = 40 * 2**20
    clock_rate: int = 1410000
    memory_clock_rate: int = 1593000
    memory_bus_width: int = 5120
    gcnArchName: str = "Virtual GPU"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: UUID | None = None


class DeviceGuard:
    """torch.cuda.device: the block's current device; None or -1 changes nothing."""

    def __init__(self, device: Any) -> None:
        keep = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if keep else gpu_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = machine().current
        if self.idx >= 0:
            machine().current = self.idx

    def __exit__(self, *exception: object) -> None:
        machine().current = self.prev_idx


class TensorDeviceGuard(DeviceGuard):
    """torch.cuda.device_of: the block's current device is a tensor's, if that is on a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        place = place_of(tensor)
        super().__init__(None if place == CPU else place)


def set_device(device: Any) -> None:
    machine().current = gpu_index(device)


def exchange_device(device: int) -> int:
    """Change the current device; return which it was. A negative one changes nothing."""
    before = machine().current
    if device >= 0:
        machine().current = gpu_index(device)
    return before


def synchronize(device: Any = None) -> None:
    """Host sync: waits for all that was issued."""
    gpu = gpu_index(device)
    report_sync("torch.cuda.synchronize")
    races.host_waits_for_gpu(gpu)


def get_device_properties(device: Any = None) -> DeviceProperties:
    index = gpu_index(device)
    return DeviceProperties(total_memory=machine().memory, pci_bus_id=index, uuid=UUID(int=index))


def usage(device: Any = None) -> memory.Usage:
    """What a GPU has given out."""
    return memory.usages[gpu_index(device)]


def mem_get_info(device: Any = None) -> tuple[int, int]:
    total = machine().memory
    return max(total - usage(device).reserved, 0), total


def memory_stats(device: Any = None) -> dict[str, int]:
    return memory.stats(usage(device))


def empty_cache() -> None:
    for one in memory.usages:
        one.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    usage(device).fraction = fraction


def manual_seed_all(seed: int) -> None:
    for generator in machine().generators:
        generator.manual_seed(seed)


def get_rng_state(device: Any = "cuda") -> Tensor:
    return machine().generators[gpu_index(device)].get_state()


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    machine().generators[gpu_index(device)].set_state(new_state)


def set_rng_state_all(new_states: list[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def no_graphed_callables(*args: object, **kwargs: object) -> None:
    """Stands for torch.cuda.make_graphed_callables, whose graphs have gradients."""
    raise DeviceError("virtual GPUs capture no gradients: use torch.cuda.CUDAGraph or torch.cuda.graph.")


def nothing(*args: object, **kwargs: object) -> None:
    """Stands for what has no effect here."""


_CUDA: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "init": nothing,
    "_lazy_init": nothing,
    "device_count": lambda: machine().gpus,
    "current_device": lambda: machine().current,
    "set_device": set_device,
    "device": DeviceGuard,
    "device_of": TensorDeviceGuard,
    "synchronize": synchronize,
    "get_device_name": lambda device=None: get_device_properties(device).name,
    "get_device_capability": lambda device=None: (get_device_properties(device).major, 0),
    "get_device_properties": get_device_properties,
    "get_arch_list": lambda: ["sm_80"],
    "can_device_access_peer": lambda device, peer: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
    "is_current_stream_capturing": is_capturing,
    "graph_pool_handle": graph_pool_handle,
    "CUDAGraph": VirtualGraph,
    "graph": GraphContext,
    "make_graphed_callables": no_graphed_callables,
    "ipc_collect": nothing,
    "set_sync_debug_mode": debug_mode.set_sync_debug_mode,
    "get_sync_debug_mode": debug_mode.get_sync_debug_mode,
    "ExternalStream": ExternalStream,
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": exchange_device,
    "current_blas_handle": lambda: 0,
    "_sleep": nothing,
    "Stream": VirtualStream,
    "Event": VirtualEvent,
    "StreamContext": StreamContext,
    "stream": StreamContext,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_stream": set_stream,
    "manual_seed": lambda seed: machine().generators[machine().current].manual_seed(seed),
    "manual_seed_all": manual_seed_all,
    "seed": lambda: machine().generators[machine().current].seed(),
    "seed_all": lambda: [generator.seed() for generator in machine().generators],
    "initial_seed": lambda: machine().generators[machine().current].initial_seed(),
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "get_rng_state_all": lambda: [get_rng_state(index) for index in range(machine().gpus)],
    "set_rng_state_all": set_rng_state_all,
}

_MEMORY: dict[str, Callable[..., Any]] = {
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
    "reset_accumulated_memory_stats": nothing,
}


class Ranges:
    """torch.cuda.nvtx's C++ part: how deep the ranges are, and nothing else."""

    def __init__(self) -> None:
        self.depth = -1

    def rangePushA(self, message: str) -> int:
        self.depth += 1
        return self.depth

    def rangePop(self) -> int:
        self.depth -= 1
        return self.depth + 1

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, range_id: int) -> None:
        """A range has no other effect."""

    def markA(self, message: str) -> None:
        """A mark has no effect."""

    deviceRangeStart, deviceRangeEnd = nothing, nothing


_ACCELERATOR: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: machine().gpus,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": lambda: machine().current,
    "current_device_idx": lambda: machine().current,
    "set_device_index": set_device,
    "set_device_idx": set_device,
    "current_stream": current_stream,
    "set_stream": set_stream,
    "synchronize": synchronize,
    "empty_cache": empty_cache,
    "memory_allocated": lambda device=None: usage(device).allocated,
    "memory_reserved": lambda device=None: usage(device).reserved,
    "get_memory_info": mem_get_info,
    "memory_stats": memory_stats,
    "reset_peak_memory_stats": lambda device=None: usage(device).reset_peaks(),
    "max_memory_allocated": lambda device=None: usage(device).peak,
    "max_memory_reserved": lambda device=None: usage(device).peak_reserved,
}


def substitutes() -> list[tuple[object, str, object]]:
    """What to put in the place of what: (module, name, value)."""
    cuda: list[tuple[object, str, object]] = [(torch.cuda, name, value) for name, value in _CUDA.items()]
    cuda.append((torch.cuda, "default_generators", machine().generators))
    accelerator = [(torch.accelerator, name, value) for name, value in _ACCELERATOR.items()]
    generic: list[tuple[object, str, object]] = [(torch, "Stream", VirtualStream), (torch, "Event", VirtualEvent)]
    cuda += [(module, name, value) for module in (torch.cuda, torch.cuda.memory) for name, value in _MEMORY.items()]
    cuda += [(torch._C, f"_accelerator_{name}", exchange_device) for name in ("exchangeDevice", "maybeExchangeDevice")]
    cuda += [(torch._C, name, value) for name, value in comm.FUNCTIONS.items()]
    cuda.append((torch.cuda.nvtx, "_nvtx", Ranges()))
    cuda.append((torch.cuda.nccl, "is_available", lambda tensors: False))  # sums are made of additions and copies
    if torch.version.cuda is None:
        cuda.append((torch.version, "cuda", "12.8"))
    return cuda + accelerator + generic
