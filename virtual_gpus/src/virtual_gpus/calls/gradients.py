"""Backward passes: each gradient is on the device of its tensor, or an error is raised as autograd does.

torch's formulas may make tensors of their own; code in users' hooks is checked as elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from virtual_gpus import DeviceMismatchError
from virtual_gpus.call_sites import ENGINE, call_site, current_call, describe
from virtual_gpus.calls.tensor_to import to
from virtual_gpus.cuda.streams_and_events import StreamContext, VirtualStream, current_stream
from virtual_gpus.machine import CPU, DEVICES, active_machine
from virtual_gpus.plain_tensors import directly, plain, wrapped
from virtual_gpus.rules.same_device import device_of, place_of
from virtual_gpus.virtual_tensor import VirtualTensor, adopt, on_gpu

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


def run_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.autograd.graph._engine_run_backward, in which tensors that torch's formulas make count as torch's own."""

    @wraps(original)
    def run(outputs: Sequence[Any], gradients: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        given = tuple(
            validated(gradient, place_of(output), f"invalid gradient at index {index}")
            if isinstance(output, Tensor)
            else gradient
            for index, (output, gradient) in enumerate(zip(outputs, gradients, strict=True))
        )
        outer = current_call.given
        current_call.given = ENGINE, ()
        try:
            with torch._C._EnableTorchFunction():
                found = original(outputs, given, *args, **kwargs)
        finally:
            current_call.given = outer
        inputs = args[2] if len(args) > 2 else kwargs.get("inputs", ())
        if not isinstance(found, tuple) or len(found) != len(inputs):
            return found
        return tuple(
            placed(gradient, place_of(source)) if isinstance(source, Tensor) else gradient
            for gradient, source in zip(found, inputs, strict=True)
        )

    return run


def _tensors(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def _stream_of(places: Sequence[int | None]) -> VirtualStream | None:
    """The current stream of the first GPU among the places of a function's outputs."""
    gpu = next((place for place in places if place is not None and place != CPU), None)
    return None if gpu is None else current_stream(DEVICES[gpu])


@contextmanager
def _on_stream(stream: VirtualStream | None) -> Iterator[None]:
    """Run a function's backward on the stream of its forward, in order with the caller's stream, as autograd does."""
    if stream is None or active_machine() is None or stream == (outer := current_stream(stream.device)):
        yield
        return
    stream.wait_stream(outer)
    with StreamContext(stream):
        yield
    outer.wait_stream(stream)


def apply(original: Any) -> Any:
    """`Function.apply`, which notes the devices of its tensors, for a check in the backward pass."""

    @wraps(original)
    def applied(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        made = original.__get__(None, cls)(*args, **kwargs)
        outputs = _tensors(made)
        node = next((value.grad_fn for value in outputs if isinstance(value, Tensor) and value.requires_grad), None)
        if isinstance(node, BackwardCFunction):
            node.places = (
                [place_of(value) if isinstance(value, Tensor) else None for value in args],
                [place_of(value) if isinstance(value, Tensor) else None for value in outputs],
            )
            node.stream = _stream_of(node.places[1])
        return made

    return classmethod(applied)


def backward_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """`BackwardCFunction.apply`: gradients come on the devices of the outputs and must leave on those of the inputs."""

    @wraps(original)
    def applied(self: Any, *gradients: Any) -> Any:
        places = getattr(self, "places", None)
        if places is None:
            return original(self, *gradients)
        sources, outputs = places
        if len(gradients) == len(outputs):
            gradients = tuple(
                gradient if place is None else placed(gradient, place)
                for gradient, place in zip(gradients, outputs, strict=True)
            )
        with _on_stream(self.stream):
            found = original(self, *gradients)
        results = _tensors(found)
        if len(results) < len(sources):
            return found
        name = type(self).__name__
        checked = tuple(
            gradient
            if index >= len(sources) or sources[index] is None
            else validated(gradient, sources[index], f"Function {name} returned an invalid gradient at index {index}")
            for index, gradient in enumerate(results)
        )
        return checked if isinstance(found, tuple) else checked[0]

    return applied


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value)."""
    run = run_backward(torch.autograd.graph._engine_run_backward)
    return [
        (torch.autograd.graph, "_engine_run_backward", run),
        (torch.autograd, "_engine_run_backward", run),
        (Function, "apply", apply(vars(Function)["apply"])),
        (BackwardCFunction, "apply", backward_apply(BackwardCFunction.apply)),
        (Tensor, "grad", property(get_grad, set_grad, delete_grad)),
    ]
