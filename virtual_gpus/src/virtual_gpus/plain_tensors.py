"""What is no virtual tensor: ordinary CPU tensors, and those that virtual and pinned ones are underneath; torch.func's
wrappers; classes that compute in their own way. And where CPU tensors were made, for errors that name them.

Nothing is kept on CPU tensors themselves, which belong to the user and may be saved: they are identified by their
memory, so views and parameters are known, too. Results that are computed on the CPU are not recorded.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from virtual_gpus import DeviceError
from virtual_gpus.call_sites import CallSite, call_site, describe

on_the_cpu = torch._C._DisableTorchDispatch  # operators in its block see ordinary tensors
directly = torch._C.DisableTorchFunctionSubclass  # functions in its block do not ask the tensors' class


@contextmanager
def as_plain() -> Iterator[None]:
    """In the block, virtual and pinned tensors are ordinary CPU tensors, and so are results computed from them."""
    with directly(), on_the_cpu():
        yield


def plain(tensor: Tensor) -> Tensor:
    """A tensor as an ordinary CPU tensor of the same memory."""
    with directly(), on_the_cpu():
        return tensor.as_subclass(Tensor)


_functorch = torch._C._functorch
_device: Any = torch._C.TensorBase.device


def wrapped(tensor: Any) -> bool:
    """Whether a tensor is one of torch.func's wrappers."""
    return type(tensor) is Tensor and (
        _functorch.is_functorch_wrapped_tensor(tensor) or _functorch.is_legacy_batchedtensor(tensor)
    )


def inside(tensor: Tensor) -> Tensor:
    """The innermost tensor of torch.func's wrappers."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def shown_device(tensor: Tensor) -> torch.device:
    """`Tensor.device` in the block: a wrapper has the device of its inner tensor."""
    if type(tensor) is Tensor and _functorch.is_functorch_wrapped_tensor(tensor):
        return inside(tensor).device
    found: torch.device = _device.__get__(tensor)
    return found


_dispatch = Tensor.__torch_dispatch__


def is_foreign(tensor: Tensor) -> bool:
    """Whether a tensor's class handles operators itself; virtual and pinned tensors do not count."""
    kind = type(tensor)
    return kind.__torch_dispatch__ is not _dispatch and not hasattr(kind, "in_host_memory")


def has_foreign(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is a tensor whose own class must handle the operation.

    Raises:
        DeviceError: it is a fake tensor, which has no values to compute with.
    """
    found = False
    for value in (*args, *kwargs.values()):
        for item in value if type(value) is list or type(value) is tuple else (value,):
            if isinstance(item, Tensor) and is_foreign(item):
                if isinstance(item, FakeTensor):
                    raise DeviceError(
                        f"a fake tensor and a tensor on a virtual GPU cannot be mixed, at {describe(call_site())}: "
                        "make both in the FakeTensorMode, or trace on the CPU before the block."
                    )
                found = True
    return found


_KEPT = 4096
sites: OrderedDict[StorageWeakRef, CallSite | None] = OrderedDict()


def remember(tensor: Tensor) -> None:
    """Record that a CPU tensor is made here. Only the newest few thousand are kept."""
    if wrapped(tensor) or tensor.layout is not torch.strided:
        return
    sites[_memory(tensor)] = call_site()
    if len(sites) > _KEPT:
        sites.popitem(last=False)


def recall(tensor: Tensor) -> CallSite | None:
    """Where a CPU tensor, or its base if it is a view, was made; None if this is not known."""
    if tensor.device.type != "cpu" or wrapped(tensor) or tensor.layout is not torch.strided:
        return None
    return sites.get(_memory(tensor))


def _memory(tensor: Tensor) -> StorageWeakRef:
    """A key for a tensor's memory; while it is kept, no other memory has the same one."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
