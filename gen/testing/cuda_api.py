"""The functions of torch.cuda and torch.accelerator, as virtual GPUs answer them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gen.errors import DeviceError
from gen.testing.device_rule import place_of
from gen.testing.graphs import GraphContext, VirtualGraph, graph_pool_handle, is_capturing
from gen.testing.host_syncs import report_sync
from gen.testing.machine import CPU, machine
from gen.testing.streams import (
    StreamContext,
    VirtualEvent,
    VirtualStream,
    current_stream,
    default_stream,
    gpu_index,
    set_stream,
)

MEMORY = 80 * 2**30


@dataclass(frozen=True)
class DeviceProperties:
    """torch.cuda.get_device_properties of a virtual GPU."""

    name: str = "Virtual GPU"
    major: int = 8
    minor: int = 0
    total_memory: int = MEMORY
    multi_processor_count: int = 108
    warp_size: int = 32
    is_integrated: int = 0


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


def synchronize(device: Any = None) -> None:
    """Host sync: waits for all that was issued."""
    gpu_index(device)
    report_sync("torch.cuda.synchronize")


def get_device_properties(device: Any = None) -> DeviceProperties:
    gpu_index(device)
    return DeviceProperties()


def memory_used(device: Any = None) -> int:
    """Memory is not counted: virtual GPUs are always empty."""
    gpu_index(device)
    return 0


def mem_get_info(device: Any = None) -> tuple[int, int]:
    gpu_index(device)
    return MEMORY, MEMORY


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
    "mem_get_info": mem_get_info,
    **dict.fromkeys(
        ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"], memory_used
    ),
    "memory_stats": lambda device=None: {},
    **dict.fromkeys(["empty_cache", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated"], nothing),
    "set_per_process_memory_fraction": nothing,
    "get_per_process_memory_fraction": lambda device=None: 1.0,
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
    "empty_cache": nothing,
    "memory_allocated": memory_used,
    "memory_reserved": memory_used,
    "max_memory_allocated": memory_used,
    "max_memory_reserved": memory_used,
    "get_memory_info": mem_get_info,
}


def substitutes() -> list[tuple[object, str, object]]:
    """What to put in the place of what: (module, name, value)."""
    cuda: list[tuple[object, str, object]] = [(torch.cuda, name, value) for name, value in _CUDA.items()]
    cuda.append((torch.cuda, "default_generators", machine().generators))
    accelerator = [(torch.accelerator, name, value) for name, value in _ACCELERATOR.items()]
    generic: list[tuple[object, str, object]] = [(torch, "Stream", VirtualStream), (torch, "Event", VirtualEvent)]
    return cuda + accelerator + generic
