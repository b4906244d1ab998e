"""Storages that belong to a virtual GPU. They are the CPU's, and say so; the GPU is a note on the Python object."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import TypedStorage, UntypedStorage

from gen.testing.cuda.memory import count
from gen.testing.machine import CPU, active_machine, machine
from gen.testing.syncs.reports import not_reported, report_sync


def storage_place(storage: Any) -> int:
    """The index of a storage's virtual GPU, or CPU. Torch keeps the Python object as long as the memory."""
    place: int = getattr(getattr(storage, "_untyped_storage", storage), "_gpu", CPU)
    return place


def marked(storage: UntypedStorage, gpu: int) -> UntypedStorage:
    """A storage, which belongs to a virtual GPU from now on."""
    storage._gpu = gpu  # type: ignore[attr-defined]
    return storage


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UntypedStorage.__new__`, which takes virtual GPUs."""

    @wraps(original)
    def make(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        active = active_machine()
        gpu = None if active is None or device is None else active.index(device)
        if gpu is None:
            return original(cls, *args, **kwargs, **({} if device is None else {"device": device}))
        storage = marked(original(cls, *args, **kwargs), gpu)
        count(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage), gpu)
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
        return marked(self.clone(), gpu)  # type: ignore[no-untyped-call]

    return cuda


def _cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UntypedStorage.cpu`. Host sync: waits for one on a GPU."""

    @wraps(original)
    def cpu(self: UntypedStorage) -> UntypedStorage:
        if storage_place(self) == CPU:
            return original(self)  # type: ignore[no-any-return]
        report_sync("copy of a storage to the host")
        return self.clone()  # type: ignore[no-any-return, no-untyped-call]

    return cpu


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (class, name, value)."""
    return [
        *((owner, name, _read(getattr(owner, name))) for owner in (UntypedStorage, TypedStorage) for name in _READING),
        (UntypedStorage, "__new__", staticmethod(_made(UntypedStorage.__new__))),
        (UntypedStorage, "cuda", _cuda(UntypedStorage.cuda)),
        (UntypedStorage, "cpu", _cpu(UntypedStorage.cpu)),
    ]


_READING = ("tolist", "__getitem__")
