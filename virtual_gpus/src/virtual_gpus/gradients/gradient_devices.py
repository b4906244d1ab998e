"""Puts each gradient on the device of its tensor, or raises as autograd does if it is on another one."""

from typing import Any

import torch
from torch import Tensor

from virtual_gpus.call_sites import call_site, describe
from virtual_gpus.calls.current_call import ENGINE, current_call
from virtual_gpus.calls.tensor_to import to
from virtual_gpus.errors import DeviceMismatchError
from virtual_gpus.machine import CPU, DEVICES
from virtual_gpus.rules.same_device import device_of, place_of
from virtual_gpus.tensors.functorch_wrappers import wrapped
from virtual_gpus.tensors.plain_tensors import directly, plain
from virtual_gpus.tensors.virtual_tensor import VirtualTensor, adopt, on_gpu

_is_batch: Any = torch._C._functorch.is_legacy_batchedtensor
_grad: Any = torch._C.TensorBase.grad
_register_hook: Any = Tensor.register_hook


def placed(gradient: Any, place: int) -> Any:
    """A gradient from torch's formulas, put on its tensor's device: zeros that the formulas make are on the CPU."""
    if wrapped(gradient):
        return gradient if place == CPU or not _is_batch(gradient) else _batch_placed(gradient, place)
    if type(gradient) is Tensor and place != CPU:
        return adopt(gradient, place)
    if type(gradient) is VirtualTensor and place == CPU:
        return plain(gradient)
    return gradient


def _batch_placed(gradients: Tensor, place: int) -> Tensor:
    """Gradients of `is_grads_batched=True`, on a GPU. Their wrapper cannot be opened, but a product with 1 is there."""
    outer = current_call.given
    current_call.given = ENGINE, ()
    try:
        with directly():
            return gradients * on_gpu(torch.ones((), dtype=gradients.dtype), place)
    finally:
        current_call.given = outer


def validated(gradient: Any, place: int, prefix: str) -> Any:
    """A gradient that the user gave for a tensor on GPU `place`, or the CPU. As in torch, single numbers are moved.

    Raises:
        DeviceMismatchError: the gradient is on another device.
    """
    if not isinstance(gradient, Tensor) or wrapped(gradient) or place_of(gradient) == place:
        return gradient
    expected = torch.device("cpu") if place == CPU else DEVICES[place]
    if gradient.dim() == 0:
        return to(gradient, expected)
    raise DeviceMismatchError(
        f"{prefix} - expected device {expected} but got {device_of(gradient)} (at {describe(call_site())})"
    )


def get_grad(tensor: Tensor) -> Tensor | None:
    """`Tensor.grad`."""
    with directly():
        found: Tensor | None = _grad.__get__(tensor)
    if found is None:
        return None
    kept = placed(found, place_of(tensor))
    if kept is not found:
        with directly():
            _grad.__set__(tensor, kept)
    result: Tensor = kept
    return result


def set_grad(tensor: Tensor, gradient: Tensor | None) -> None:
    """`Tensor.grad = gradient`.

    Raises:
        DeviceMismatchError: the gradient is on another device than the tensor.
    """
    if isinstance(gradient, Tensor):
        mine, other = device_of(tensor), device_of(gradient)
        if mine.type != other.type:
            raise DeviceMismatchError(
                f"attempting to assign a gradient with device type '{other.type}' to a tensor with device type "
                f"'{mine.type}'. Please ensure that the gradient and the tensor are on the same device"
            )
        if mine != other:
            raise DeviceMismatchError(
                f"attempting to assign a gradient located on device with index '{other.index}' to a tensor located on "
                f"device with index '{mine.index}'. Please ensure that the gradient and the tensor are on the same "
                "device"
            )
    with directly():
        _grad.__set__(tensor, gradient)


def delete_grad(tensor: Tensor) -> None:
    """`del Tensor.grad`, which sets it to None."""
    with directly():
        _grad.__set__(tensor, None)


def register_hook(tensor: Tensor, hook: Any) -> Any:
    """`Tensor.register_hook` of a virtual tensor."""
    place = place_of(tensor)

    def on_its_device(gradient: Any) -> Any:
        given = placed(gradient, place)
        result = hook(given)
        if isinstance(result, Tensor) and (place_of(result) == CPU) != (place == CPU):
            name = getattr(hook, "__name__", repr(hook))
            raise DeviceMismatchError(
                f"hook '{name}' has changed the type of value (was {given.type()} got {result.type()})"
            )
        return result if result is not None or given is gradient else given

    with directly():
        return _register_hook(tensor, on_its_device)


VirtualTensor.grad = property(get_grad, set_grad, delete_grad)  # type: ignore[assignment]
VirtualTensor.register_hook = register_hook  # type: ignore[method-assign]
