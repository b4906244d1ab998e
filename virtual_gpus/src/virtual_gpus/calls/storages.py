"""Memory that belongs to a virtual GPU. It is the host's: an attribute of a storage's object names the GPU, and so does
the device in a DLPack capsule, so that NumPy and others refuse it.

Source of the capsules: DLTensor and DLManagedTensorVersioned in dlpack.h.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from virtual_gpus.calls.tensor_to import to
from virtual_gpus.cuda.memory import count
from virtual_gpus.machine import CPU, DEVICES, active_machine, device_type, machine
from virtual_gpus.plain_tensors import plain
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs import not_reported, report_sync
from virtual_gpus.virtual_tensor import VirtualTensor, on_gpu

_device: Any = torch._C.StorageBase.device  # type: ignore[attr-defined]
set_ = Tensor.set_  # torch's own, which ignores that attribute
_READING = ("tolist", "__getitem__")


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
        gpu = machine().index(device_type() if device is None else device)
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


_ON_CPU, _ON_CUDA = 1, 2
_PLACES = {b"dltensor": 8, b"dltensor_versioned": 40}  # where the device is, behind the numbers' address
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


def check_export(tensor: Tensor) -> None:
    """Refuse what `Tensor.__dlpack__` refuses on CUDA.

    Raises:
        BufferError: the tensor requires a gradient, is conjugated or sparse, or is not on the current GPU.
    """
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.layout is not torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    if tensor.get_device() != torch.cuda.current_device():
        raise BufferError(
            "Can't export tensors on a different CUDA device index. "
            f"Expected: {tensor.get_device()}. Current device: {torch.cuda.current_device()}."
        )


def capsule_of(tensor: Tensor, max_version: tuple[int, int] | None = None) -> Any:
    """A virtual tensor as a capsule; they share memory."""
    capsule = plain(tensor.detach()).__dlpack__(max_version=max_version)
    device = _device_in(capsule)
    assert device is not None  # torch has just made it; tells mypy
    device.kind, device.index = _ON_CUDA, tensor.get_device()
    return capsule


def take_place(capsule: Any) -> int:
    """The GPU that a capsule names. Afterwards the capsule names the CPU, so that torch can read it as host memory."""
    device = _device_in(capsule)
    if device is None or device.kind != _ON_CUDA:
        return CPU
    gpu: int = device.index
    device.kind, device.index = _ON_CPU, 0
    return gpu


def _device_in(capsule: Any) -> _Device | None:
    for name, place in _PLACES.items():
        if _is_valid(capsule, name):
            return _Device.from_address(_address(capsule, name) + place)
    return None


def from_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.from_dlpack, which gives a tensor on the same virtual GPU and of the same memory, also from a capsule.

    Raises:
        BufferError: as `check_export`.
    """

    @wraps(original)
    def factory(ext_tensor: Any, **kwargs: Any) -> Any:
        if type(ext_tensor) is not VirtualTensor:
            gpu = take_place(ext_tensor)
            made = original(ext_tensor, **kwargs)
            return made if gpu == CPU else on_gpu(made, gpu)
        check_export(ext_tensor)
        shared = on_gpu(plain(ext_tensor.detach()), place_of(ext_tensor))
        return to(shared, kwargs.get("device") or shared.device, copy=bool(kwargs.get("copy")))

    return factory


def to_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.utils.dlpack.to_dlpack."""

    @wraps(original)
    def exported(tensor: Any, **kwargs: Any) -> Any:
        return capsule_of(tensor) if type(tensor) is VirtualTensor else original(tensor, **kwargs)

    return exported


def _dlpack_device(tensor: Tensor) -> Any:
    """`Tensor.__dlpack_device__`."""
    return torch.utils.dlpack.DLDeviceType.kDLCUDA, tensor.get_device()


def _dlpack(
    tensor: Any,
    *,
    stream: Any = -1,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """`Tensor.__dlpack__`. Host sync: copies to the CPU if the caller asks for it.

    Raises:
        BufferError: as `check_export`.
    """
    check_export(tensor)
    if dl_device is not None and dl_device[0] == torch.utils.dlpack.DLDeviceType.kDLCPU:
        if copy is False:
            raise ValueError(f"cannot move (i.e. copy=False) tensor from {tensor.device} to cpu without copying.")
        report_sync("__dlpack__: copy to the host")
        return tensor.host_copy().__dlpack__(max_version=max_version)
    return capsule_of(tensor.clone() if copy else tensor, max_version)


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
        *((owner, "from_dlpack", from_dlpack(torch.from_dlpack)) for owner in (torch, torch.utils.dlpack)),  # type: ignore[attr-defined]
        *((owner, "to_dlpack", to_dlpack(torch._C._to_dlpack)) for owner in (torch, torch.utils.dlpack)),
    ]


VirtualTensor.__dlpack__, VirtualTensor.__dlpack_device__ = _dlpack, _dlpack_device  # type: ignore[assignment, method-assign]
