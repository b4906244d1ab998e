"""Child processes: they have the parent's virtual GPUs, and tensors sent to them keep their devices.

A program that a test starts as a command has them too if the environment says so. Before anything else, Python runs
`sitecustomize.py` of the first folder on its path that has one: that in the folder `commands`.
"""

import atexit
import multiprocessing.spawn
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_storage
from torch.nn import Parameter

from virtual_gpus.calls.storages import of_the_host, set_
from virtual_gpus.machine import active_machine, device_type
from virtual_gpus.plain_tensors import plain
from virtual_gpus.virtual_tensor import VirtualTensor, on_gpu

for_the_process = ExitStack()  # the block that a parent or the environment has asked for


def open_in_child(gpus: int, memory: int, device: str) -> None:
    """Begin a `virtual_gpus` block that lasts as long as the process."""
    from virtual_gpus.emulator import virtual_gpus

    if active_machine() is None:
        for_the_process.enter_context(virtual_gpus(gpus, device=device, memory=memory))
        atexit.register(for_the_process.close)


class _Inherited:
    """Sent to a spawned child: unpickling it opens the block before the child reads anything of its own."""

    def __reduce__(self) -> Any:
        active = active_machine()
        if active is None:
            return dict, ()
        return open_in_child, (active.gpus, active.memory, device_type())


def _prepared(original: Callable[..., Any]) -> Callable[..., Any]:
    """multiprocessing.spawn.get_preparation_data: the data that a spawned process reads first."""

    @wraps(original)
    def prepared(name: str) -> dict[str, Any]:
        return {**original(name), "virtual_gpus": _Inherited()}

    return prepared


def _opened(read: Callable[..., Any], given: Any, dtype: torch.dtype, *shape: Any) -> Tensor:
    """A tensor on memory that another process has sent."""
    return set_(torch.empty(0, dtype=dtype, device="cpu"), read(*given), *shape)


def _rebuild(tensor: Tensor, gpu: int, requires_grad: bool, is_parameter: bool) -> Any:
    made: Any = on_gpu(tensor, gpu)
    return Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _reduce(tensor: VirtualTensor) -> Any:
    """A tensor for another process, in shared memory, like a CUDA tensor in the memory of a GPU that both see."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries. If you just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )
    shown: Any = plain(tensor.detach())
    if shown.layout is torch.strided:
        shown = _Sent(shown)
    return _rebuild, (shown, tensor._gpu, tensor.requires_grad, isinstance(tensor, Parameter))


class _Sent:
    """An ordinary CPU tensor, pickled by its memory, which is the host's even if its storage names a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> Any:
        storage = self._tensor.untyped_storage()
        with of_the_host(storage):
            read, given = reduce_storage(storage)  # type: ignore[no-untyped-call]
        shape = self._tensor.storage_offset(), self._tensor.size(), self._tensor.stride()
        return _opened, (read, given, self._tensor.dtype, *shape)


ForkingPickler.register(VirtualTensor, _reduce)


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module, name, value)."""
    prepare = _prepared(multiprocessing.spawn.get_preparation_data)
    return [(multiprocessing.spawn, "get_preparation_data", prepare)]


@contextmanager
def with_virtual_gpus(gpus: int, memory: int, device: str = "cuda") -> Iterator[None]:
    """In the block, Python programs that are started open a block of their own when they import torch.

    Args:
        gpus: how many devices they have.
        memory: how many bytes each device has; each program counts its own use.
        device: their type.
    """
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "commands"), os.environ.get("PYTHONPATH", "")]))
    with patch.dict(os.environ, {"PYTHONPATH": path, "VIRTUAL_GPUS": f"{gpus} {memory} {device}"}):
        yield
