"""DLPack capsules from virtual GPUs: they name CUDA as the device of their memory, so NumPy and others refuse it.

Source: DLTensor and DLManagedTensorVersioned in dlpack.h.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.machine import CPU
from virtual_gpus.tensors.plain_tensors import plain

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
    device = _device(capsule)
    assert device is not None  # torch has just made it; tells mypy
    device.kind, device.index = _ON_CUDA, tensor.get_device()
    return capsule


def take_place(capsule: Any) -> int:
    """The GPU that a capsule names. Afterwards the capsule names the CPU, so that torch can read it as host memory."""
    device = _device(capsule)
    if device is None or device.kind != _ON_CUDA:
        return CPU
    gpu: int = device.index
    device.kind, device.index = _ON_CPU, 0
    return gpu


def _device(capsule: Any) -> _Device | None:
    for name, place in _PLACES.items():
        if _is_valid(capsule, name):
            return _Device.from_address(_address(capsule, name) + place)
    return None
