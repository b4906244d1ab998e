"""The functions of torch.cuda and torch.accelerator for virtual GPUs: devices and their properties, synchronize, the
functions of CUDA's runtime that torch exposes, and marks for a profiler, which have no effect here.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Any
from uuid import UUID

import torch
from torch import Tensor

from virtual_gpus.cuda import generators, memory, races
from virtual_gpus.cuda.cuda_graphs import GraphContext, VirtualGraph, graph_pool_handle, is_capturing
from virtual_gpus.cuda.memory import mem_get_info, usage
from virtual_gpus.cuda.streams_and_events import (
    ExternalStream,
    StreamContext,
    VirtualEvent,
    VirtualStream,
    create_stream,
    current_stream,
    default_stream,
    set_stream,
    set_stream_by_id,
)
from virtual_gpus.machine import CPU, device_type, gpu_index, machine
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs import get_sync_debug_mode, report_sync, set_sync_debug_mode


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
        if self.idx >= 0:
            machine().current = self.prev_idx


class TensorDeviceGuard(DeviceGuard):
    """torch.cuda.device_of: the block's current device is a tensor's, if that is on a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        place = place_of(tensor)
        super().__init__(None if place == CPU else place)


def set_device(device: Any) -> None:
    machine().current = gpu_index(device)


def exchange_device(device: int) -> int:
    """Change the current device; returns the one before. A negative number changes nothing, and gives -1."""
    if device < 0:
        return -1
    before = machine().current
    machine().current = gpu_index(device)
    return before


def synchronize(device: Any = None) -> None:
    """Host sync: waits for all work that was issued."""
    gpu = gpu_index(device)
    report_sync("torch.cuda.synchronize")
    races.host_waits_for_gpu(gpu)


def get_device_properties(device: Any = None) -> DeviceProperties:
    index = gpu_index(device)
    return DeviceProperties(total_memory=machine().memory, pci_bus_id=index, uuid=UUID(int=index))


class CudaError(IntEnum):
    """cudaError_t, as far as torch names it. Source: cuda_runtime_api.h."""

    success = 0
    invalid_value = 1
    memory_allocation = 2


_MESSAGES = {
    CudaError.success: "no error",
    CudaError.invalid_value: "invalid argument",
    CudaError.memory_allocation: "out of memory",
}


class CudaRuntime:
    """Stands for torch._C._cudart. You can start and stop a profiler, but it records nothing."""

    cudaError = CudaError

    def cudaGetErrorString(self, error: CudaError) -> str:
        return _MESSAGES[error]

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return mem_get_info(device)

    def cudaStreamCreate(self, address: int) -> CudaError:
        """Write the handle of a new stream of the current device to an address."""
        ctypes.c_void_p.from_address(address).value = create_stream()
        return CudaError.success

    def cudaStreamDestroy(self, handle: int) -> CudaError:
        return CudaError.success

    def cudaProfilerStart(self) -> CudaError:
        return CudaError.success

    def cudaProfilerStop(self) -> CudaError:
        return CudaError.success


def nothing(*args: object, **kwargs: object) -> None:
    """Stands for a function that has no effect here."""


class Ranges:
    """torch.cuda.nvtx's C++ part: it counts only the depth of ranges."""

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

    rangeEnd = markA = deviceRangeStart = deviceRangeEnd = staticmethod(nothing)


_CUDA: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_initialized": True,  # asked by torch.utils.checkpoint, which else keeps no random states
    "init": lambda: None,
    "_lazy_init": lambda: None,
    "device_count": lambda: machine().gpus,
    "current_device": lambda: machine().current,
    "set_device": set_device,
    "device": DeviceGuard,
    "device_of": TensorDeviceGuard,
    "synchronize": synchronize,
    "get_device_name": lambda device=None: get_device_properties(device).name,
    "get_device_capability": lambda device=None: (get_device_properties(device).major, 0),
    "get_device_properties": get_device_properties,
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": exchange_device,
    **generators.FUNCTIONS,
    "get_arch_list": lambda: ["sm_80"],
    "can_device_access_peer": lambda device, peer: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
    "is_current_stream_capturing": is_capturing,
    "graph_pool_handle": graph_pool_handle,
    "CUDAGraph": VirtualGraph,
    "graph": GraphContext,
    "ipc_collect": nothing,
    "set_sync_debug_mode": set_sync_debug_mode,
    "get_sync_debug_mode": get_sync_debug_mode,
    "ExternalStream": ExternalStream,
    "current_blas_handle": lambda: 0,
    "current_solver_handle": lambda: 0,
    "_sleep": nothing,
    "Stream": VirtualStream,
    "Event": VirtualEvent,
    "StreamContext": StreamContext,
    "stream": StreamContext,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_stream": set_stream,
}

_NOT_IN_CUDA: dict[str, Callable[..., Any]] = {
    "_is_in_bad_fork": lambda: False,
    "current_allocated_memory": lambda: usage().allocated,
    "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
}

_SHARED = (  # by torch.cuda and torch.accelerator
    "is_available", "device_count", "current_stream", "set_stream", "synchronize", "empty_cache", "memory_allocated",
    "memory_reserved", "memory_stats", "max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
)  # fmt: skip
_ACCELERATOR: dict[str, Callable[..., Any]] = {
    **{name: (_CUDA | memory.FUNCTIONS)[name] for name in _SHARED},
    "current_accelerator": lambda check_available=False: torch.device(device_type()),
    **dict.fromkeys(("current_device_index", "current_device_idx"), _CUDA["current_device"]),
    "set_device_index": set_device,
    "set_device_idx": set_device,
    "get_memory_info": mem_get_info,
}


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module, name, value)."""
    accelerator = [(torch.accelerator, name, value) for name, value in _ACCELERATOR.items()]
    generic: list[tuple[object, str, object]] = [
        (torch, "Stream", VirtualStream),
        (torch, "Event", VirtualEvent),
        (torch._C, "_get_accelerator", lambda check=None: torch.device(device_type())),
        *((torch._C, f"_accelerator_{name}", exchange_device) for name in ("exchangeDevice", "maybeExchangeDevice")),
    ]
    return [*(_of_cuda() if device_type() == "cuda" else _of_others(device_type())), *accelerator, *generic]


def _of_others(kind: str) -> list[tuple[object, str, object]]:
    """torch.xpu or the like: the functions of torch.cuda that it has, too; torch.hpu and torch.npu come from others."""
    known = _CUDA | memory.FUNCTIONS | _NOT_IN_CUDA
    module = getattr(torch, kind, None)
    if module is None:
        module = sys.modules[f"torch.{kind}"] = ModuleType(f"torch.{kind}")
        vars(module).update(known)
        return [(torch, kind, module)]
    backend = [(torch.backends.mps, name, lambda: True) for name in ("is_available", "is_built") if kind == "mps"]
    return [*((module, name, value) for name, value in known.items() if hasattr(module, name)), *backend]


def _of_cuda() -> list[tuple[object, str, object]]:
    cuda: list[tuple[object, str, object]] = [(torch.cuda, name, value) for name, value in _CUDA.items()]
    cuda += [(torch.cuda.random, name, value) for name, value in generators.FUNCTIONS.items()]
    cuda += [
        (module, name, value) for module in (torch.cuda, torch.cuda.memory) for name, value in memory.FUNCTIONS.items()
    ]
    cuda.append((torch._C, "_cuda_isInBadFork", lambda: False))  # forked children may use these GPUs
    cuda += [(torch._C, "_cuda_setStream", set_stream_by_id), (torch._C, "_cuda_setDevice", set_device)]
    cuda += [(torch._C, name, nothing) for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache")]
    cuda += [(torch._C, name, value) for name, value in memory.ALLOCATOR.items()]
    cuda += [(torch.cuda.streams, name, _CUDA[name]) for name in ("Stream", "Event", "ExternalStream")]
    graphs = ("CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing")
    cuda += [(torch.cuda.graphs, name, _CUDA[name]) for name in graphs]
    cuda.append((torch.cuda, "_cudart", CudaRuntime()))
    cuda.append((torch.backends.cuda, "is_built", lambda: True))
    # torch's compiler imports it if torch is built for CUDA
    cuda.append((torch._C, "_cuda_CUDAAllocator_AllocatorState", object))
    cuda.append((torch.cuda.nccl, "is_available", lambda tensors: False))  # so sums use additions and copies
    if torch.version.cuda is None:
        cuda.append((torch.version, "cuda", "12.8"))
    return cuda


def of_the_machine() -> list[tuple[object, str, object]]:
    """The substitutes that each block has of its own, as (module, name, value)."""
    module = getattr(torch, device_type(), torch.cuda)
    return [(module, "default_generators", machine().generators), (torch.cuda.nvtx, "_nvtx", Ranges())]
