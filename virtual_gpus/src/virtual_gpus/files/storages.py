"""Storages that belong to a virtual GPU. Their memory is the host's; an attribute of the object names the GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from virtual_gpus.cuda.memory import count
from virtual_gpus.machine import CPU, DEVICES, active_machine, machine
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs.reports import not_reported, report_sync

_device: Any = torch._C.StorageBase.device  # type: ignore[attr-defined]
set_ = Tensor.set_  # torch's own, which ignores that attribute


def storage_place(storage: Any) -> int:
    """The index of a storage's virtual GPU, or CPU. Torch keeps the Python object as long as the memory."""
    place: int = getattr(getattr(storage, "_untyped_storage", storage), "_gpu", CPU)
    return place


def marked(storage: UntypedStorage, gpu: int) -> UntypedStorage:
    """The same storage, which belongs to a virtual GPU from now on."""
    storage._gpu = gpu  # type: ignore[attr-defined]
    return storage


@contextmanager
def of_the_host(storage: UntypedStorage) -> Iterator[None]:
    """In the block, a storage counts as the host's, so that torch can send it to another process."""
    gpu = storage_place(storage)
    marked(storage, CPU)
    try:
        yield
    finally:
        marked(storage, gpu)


def on_host(storage: UntypedStorage) -> UntypedStorage:
    """A copy that belongs to no GPU; not reported as a host sync."""
    copied = UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    torch._C.StorageBase.copy_(copied, storage)  # type: ignore[attr-defined]
    return copied


def _shown(storage: UntypedStorage) -> torch.device:
    """`UntypedStorage.device`."""
    place = storage_place(storage)
    shown: torch.device = _device.__get__(storage) if place == CPU else DEVICES[place]
    return shown


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.set_`, which takes a storage of the tensor's own device. Source: aten/src/ATen/native/Resize.h."""

    @wraps(original)
    def checked(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        source = kwargs.get("source", args[0] if args else None)
        if isinstance(source, UntypedStorage | TypedStorage) and storage_place(source) != place_of(tensor):
            raise RuntimeError(
                f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage on different '
                f'device "{source.device}".  This is no longer allowed; the devices must match.'
            )
        return original(tensor, *args, **kwargs)

    return checked


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UntypedStorage.copy_`. Host sync: between a GPU and the host, unless the copy is non-blocking."""

    @wraps(original)
    def copy_(self: UntypedStorage, source: Any, non_blocking: Any = None) -> Any:
        if not non_blocking and (storage_place(self) == CPU) != (storage_place(source) == CPU):
            report_sync("copy of a storage between the host and a GPU")
        return original(self, source, non_blocking)

    return copy_


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UntypedStorage.__new__`, which takes virtual GPUs."""

    @wraps(original)
    def make(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        active = active_machine()
        gpu = None if active is None or device is None else active.index(device)
        if gpu is None:
            return original(cls, *args, **kwargs, **({} if device is None else {"device": device}))
        storage = marked(original(cls, *args, **kwargs), gpu)
        count(set_(torch.empty(0, dtype=torch.uint8, device="cpu"), storage), gpu)
        return storage

    return make


def _read(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gives the values of a storage to the host."""

    @wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        if storage_place(self) != CPU:
            report_sync(f"{original.__name__} of a storage")
        with not_reported():
            return original(self, *args, **kwargs)

    return read


def _cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UntypedStorage.cuda`. Host sync: copies from the host."""

    @wraps(original)
    def cuda(self: UntypedStorage, device: Any = None, non_blocking: bool = False) -> UntypedStorage:
        gpu = machine().index("cuda" if device is None else device)
        if gpu is None:
            raise ValueError(f"Invalid device, must be cuda device, got {device!r}")
        if self.device.type == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        if storage_place(self) == gpu:
            return self
        if storage_place(self) == CPU:
            report_sync("copy of a storage from the host")
        return marked(on_host(self), gpu)

    return cuda


def _cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UntypedStorage.cpu`. Host sync: waits for a storage on a GPU."""

    @wraps(original)
    def cpu(self: UntypedStorage) -> UntypedStorage:
        if storage_place(self) == CPU:
            return original(self)  # type: ignore[no-any-return]
        report_sync("copy of a storage to the host")
        return on_host(self)

    return cpu


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (class, name, value)."""
    return [
        *((owner, name, _read(getattr(owner, name))) for owner in (UntypedStorage, TypedStorage) for name in _READING),
        (UntypedStorage, "device", property(_shown)),
        (UntypedStorage, "copy_", _copied(UntypedStorage.copy_)),
        (Tensor, "set_", _checked(Tensor.set_)),
        (UntypedStorage, "__new__", staticmethod(_made(UntypedStorage.__new__))),
        (UntypedStorage, "cuda", _cuda(UntypedStorage.cuda)),
        (UntypedStorage, "cpu", _cpu(UntypedStorage.cpu)),
    ]


_READING = ("tolist", "__getitem__")
