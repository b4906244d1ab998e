"""Several GPUs: copies of one tensor to several and back, which torch.cuda.comm and nn.DataParallel call, and NCCL.

NCCL's process groups send through gloo, so that programs with a process for each GPU start and communicate. A group
takes tensors on GPUs and refuses CPU tensors, unless it was made with a backend for these, too, as in
"cpu:gloo,cuda:nccl". Gloo sees all memory as the CPU's, so the group's table has the backend for both devices.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from virtual_gpus import DeviceMismatchError
from virtual_gpus.calls.tensor_to import to
from virtual_gpus.machine import DEVICES, device_type, machine
from virtual_gpus.virtual_tensor import VirtualTensor, adopt


def _device(device: Any) -> torch.device:
    if device == -1:
        return torch.device("cpu")
    index = machine().index(device)
    return torch.device("cpu") if index is None else DEVICES[index]


def broadcast(tensor: Tensor, devices: Sequence[Any]) -> list[Tensor]:
    return [to(tensor, _device(device), non_blocking=True) for device in devices]


def broadcast_out(tensor: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    return [output.copy_(tensor, non_blocking=True) for output in outputs]


def broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[Any], buffer_size: int) -> list[list[Tensor]]:
    """The list of copies for each device.

    Raises:
        DeviceMismatchError: a tensor is not on the first device.
    """
    first = _device(devices[0])
    for tensor in tensors:
        if tensor.device != first:
            raise DeviceMismatchError(
                f"All tensors must be on devices[0]: {first.index}, got one on {tensor.device}: move it there."
            )
    return [[to(tensor, _device(device), non_blocking=True) for tensor in tensors] for device in devices]


def scatter(
    tensor: Tensor, devices: Sequence[Any], chunk_sizes: Sequence[int] | None, dim: int, streams: Any = None
) -> list[Tensor]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)  # type: ignore[no-untyped-call]
    return [to(chunk, _device(device), non_blocking=True) for chunk, device in zip(chunks, devices, strict=False)]


def scatter_out(tensor: Tensor, outputs: Sequence[Tensor], dim: int, streams: Any = None) -> list[Tensor]:
    chunks = tensor.split([output.shape[dim] for output in outputs], dim)  # type: ignore[no-untyped-call]
    return [output.copy_(chunk, non_blocking=True) for output, chunk in zip(outputs, chunks, strict=True)]


def gather(tensors: Sequence[Tensor], dim: int, destination: Any = None) -> Tensor:
    place = _device(machine().current if destination is None else destination)
    return torch.cat([to(tensor, place, non_blocking=True) for tensor in tensors], dim)


def gather_out(tensors: Sequence[Tensor], output: Tensor, dim: int) -> Tensor:
    return output.copy_(torch.cat([to(tensor, output.device) for tensor in tensors], dim))


_COPIES = (broadcast, broadcast_out, broadcast_coalesced, scatter, scatter_out, gather, gather_out)
_COLLECTIVES = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "broadcast", "gather", "recv", "recv_anysource", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "scatter", "send",
)  # fmt: skip
_ONE_BUFFER = ("_allgather_base", "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single")


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value); those of NCCL only if torch has gloo."""
    copies: list[tuple[object, str, object]] = [(torch._C, f"_{copy.__name__}", copy) for copy in _COPIES]
    if device_type() != "cuda" or not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return copies
    from torch.distributed import distributed_c10d

    bucket = torch.distributed.GradBucket  # type: ignore[attr-defined]
    nccl, group = _nccl(distributed_c10d.ProcessGroupGloo), distributed_c10d.ProcessGroup
    return [
        *copies,
        (distributed_c10d, "ProcessGroupNCCL", nccl),
        (distributed_c10d, "ProcessGroupNCCL2", nccl),  # torch 2.15 makes these
        (torch.distributed, "ProcessGroupNCCL", nccl),
        (distributed_c10d, "_NCCL_AVAILABLE", True),
        (distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10)),
        (torch.cuda.nccl, "version", lambda: (2, 27, 3)),
        (group, "_register_backend", _for_both_kinds_of_memory(group._register_backend, nccl)),
        (group, "_device_types", property(_device_types(group._device_types.__get__))),
        *((bucket, name, _on_its_gpu(getattr(bucket, name))) for name in ("buffer", "gradients")),
        *((group, name, _collective(name, getattr(group, name))) for name in _COLLECTIVES if hasattr(group, name)),
    ]


def _nccl(gloo: Any) -> Any:
    """The class that stands for torch's ProcessGroupNCCL."""

    class ProcessGroupNCCL(gloo):  # type: ignore[misc]
        class Options:
            def __init__(self, is_high_priority_stream: bool = False) -> None:
                self.is_high_priority_stream = is_high_priority_stream
                self._timeout = timedelta(minutes=10)

        def __init__(self, store: Any, rank: int, size: int, options: Options, device_id: Any = None) -> None:
            super().__init__(store, rank, size, timeout=options._timeout)
            self._within = getattr(options, "global_ranks_in_group", None)

        def split(self, store: Any, ranks: Sequence[int], options: Any) -> Any:
            """A group of some of this one's processes, by their ranks among all, as torch 2.15 makes new groups."""
            own = self._within[self.rank()] if self._within else self.rank()
            return type(self)(store, ranks.index(own), len(ranks), options)

    return ProcessGroupNCCL


def _for_both_kinds_of_memory(original: Callable[..., Any], nccl: type) -> Callable[..., Any]:
    @wraps(original)
    def register(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        original(group, device, kind, backend)
        if isinstance(backend, nccl) and torch.device("cpu") not in group._device_types:
            original(group, torch.device("cpu"), kind, backend)

    return register


def _device_types(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def device_types(group: Any) -> list[torch.device]:
        found: list[torch.device] = original(group)
        return [device for device in found if device.type != "cpu" or not _for_gpus_alone(group)]

    return device_types


def _for_gpus_alone(group: Any) -> bool:
    return "cpu" not in torch.distributed.get_backend_config(group) if group in _groups() else False


def _groups() -> Any:
    return torch.distributed.distributed_c10d._world.pg_backend_config


def _collective(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
        if _for_gpus_alone(group) and any(_on_the_cpu(value) for value in (*args, *kwargs.values())):
            raise RuntimeError("No backend type associated with device type cpu")
        if name in _ONE_BUFFER:  # NCCL compares numbers of elements, gloo compares shapes
            args = tuple(value.view(-1) if isinstance(value, VirtualTensor) else value for value in args)
        return original(group, *args, **kwargs)

    return collective


def _on_its_gpu(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The buffers that hooks of DistributedDataParallel get, on the model's GPU: torch makes them on the CPU here."""

    @wraps(original)
    def of_bucket(bucket: Any) -> Any:
        parameter = bucket.parameters()[0]
        return adopt(original(bucket), parameter._gpu) if isinstance(parameter, VirtualTensor) else original(bucket)

    return of_bucket


def _on_the_cpu(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and not leaf.is_cuda for leaf in tree_leaves(value))
