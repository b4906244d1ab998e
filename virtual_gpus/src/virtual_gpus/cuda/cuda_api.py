"""The functions of torch.cuda and torch.accelerator for virtual GPUs."""

from collections.abc import Callable
from typing import Any

import torch

from virtual_gpus.errors import DeviceError
from virtual_gpus.cuda import comm, devices, generators, memory_api, nvtx
from virtual_gpus.cuda.cuda_runtime import CudaRuntime
from virtual_gpus.cuda.memory_api import usage
from virtual_gpus.machine import machine
from virtual_gpus.streams.cuda_graphs import GraphContext, VirtualGraph, graph_pool_handle, is_capturing
from virtual_gpus.streams.streams_and_events import (
    ExternalStream,
    StreamContext,
    VirtualEvent,
    VirtualStream,
    current_stream,
    default_stream,
    set_stream,
    set_stream_by_id,
)
from virtual_gpus.syncs import debug_mode


def no_graphed_callables(*args: object, **kwargs: object) -> None:
    """Stands for torch.cuda.make_graphed_callables, whose graphs have gradients."""
    raise DeviceError("virtual GPUs capture no gradients: use torch.cuda.CUDAGraph or torch.cuda.graph.")


def nothing(*args: object, **kwargs: object) -> None:
    """Stands for a function that has no effect here."""


_CUDA: dict[str, Callable[..., Any]] = {
    **devices.FUNCTIONS,
    **generators.FUNCTIONS,
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

_ACCELERATOR: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: machine().gpus,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": lambda: machine().current,
    "current_device_idx": lambda: machine().current,
    "set_device_index": devices.set_device,
    "set_device_idx": devices.set_device,
    "current_stream": current_stream,
    "set_stream": set_stream,
    "synchronize": devices.synchronize,
    "empty_cache": memory_api.empty_cache,
    "memory_allocated": lambda device=None: usage(device).allocated,
    "memory_reserved": lambda device=None: usage(device).reserved,
    "get_memory_info": memory_api.mem_get_info,
    "memory_stats": memory_api.memory_stats,
    "reset_peak_memory_stats": lambda device=None: usage(device).reset_peaks(),
    "max_memory_allocated": lambda device=None: usage(device).peak,
    "max_memory_reserved": lambda device=None: usage(device).peak_reserved,
}


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module, name, value)."""
    cuda: list[tuple[object, str, object]] = [(torch.cuda, name, value) for name, value in _CUDA.items()]
    accelerator = [(torch.accelerator, name, value) for name, value in _ACCELERATOR.items()]
    generic: list[tuple[object, str, object]] = [(torch, "Stream", VirtualStream), (torch, "Event", VirtualEvent)]
    cuda += [
        (module, name, value)
        for module in (torch.cuda, torch.cuda.memory)
        for name, value in memory_api.FUNCTIONS.items()
    ]
    cuda += [
        (torch._C, f"_accelerator_{name}", devices.exchange_device)
        for name in ("exchangeDevice", "maybeExchangeDevice")
    ]
    cuda.append((torch._C, "_cuda_isInBadFork", lambda: False))  # forked children may use these GPUs
    cuda.append((torch._C, "_get_accelerator", lambda check=None: torch.device("cuda")))
    cuda += [(torch._C, "_cuda_setStream", set_stream_by_id), (torch._C, "_cuda_setDevice", devices.set_device)]
    cuda += [(torch._C, name, value) for name, value in comm.FUNCTIONS.items()]
    cuda += [(torch._C, name, nothing) for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache")]
    cuda += [(torch._C, name, value) for name, value in memory_api.ALLOCATOR.items()]
    cuda += [(torch.cuda.streams, name, _CUDA[name]) for name in ("Stream", "Event", "ExternalStream")]
    cuda.append((torch.cuda, "_cudart", CudaRuntime()))
    cuda.append((torch.backends.cuda, "is_built", lambda: True))
    # torch's compiler imports these if torch is built for CUDA
    cuda += [
        (torch._C, "_cuda_CUDAAllocator_AllocatorState", object),
        (torch._C, "_set_cached_tensors_enabled", nothing),
    ]
    cuda.append((torch.cuda.nccl, "is_available", lambda tensors: False))  # so sums use additions and copies
    if torch.version.cuda is None:
        cuda.append((torch.version, "cuda", "12.8"))
    return cuda + accelerator + generic


def of_the_machine() -> list[tuple[object, str, object]]:
    """The substitutes that each block has of its own, as (module, name, value)."""
    return [(torch.cuda, "default_generators", machine().generators), (torch.cuda.nvtx, "_nvtx", nvtx.Ranges())]
