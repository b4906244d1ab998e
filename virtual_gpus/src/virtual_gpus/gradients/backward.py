"""The backward pass: torch's formulas may make tensors of their own; code in users' hooks is checked as elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from virtual_gpus.calls.current_call import ENGINE, current_call
from virtual_gpus.gradients.gradient_devices import delete_grad, get_grad, placed, set_grad, validated
from virtual_gpus.machine import CPU, DEVICES, active_machine
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.streams.streams_and_events import StreamContext, VirtualStream, current_stream


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

    @wraps(original.__func__)
    def applied(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        made = original.__func__(cls, *args, **kwargs)
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
