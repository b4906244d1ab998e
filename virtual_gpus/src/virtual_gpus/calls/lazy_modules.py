"""Parameters and buffers of lazy modules: until they have a shape, only their later device is kept."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin  # type: ignore[attr-defined]

from virtual_gpus.machine import DEVICES, machine

LAZY = (UninitializedParameter, UninitializedBuffer)


def placed(lazy: Any, device: Any) -> Any:
    """The lazy parameter or buffer itself, with the virtual GPU that it will be on; torch handles other devices."""
    lazy._later = machine().index(device)
    return lazy


def materialize(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UninitializedParameter.materialize`."""

    @wraps(original)
    def make(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        gpu = getattr(self, "_later", None) if device is None else machine().index(device)
        if gpu is None:
            return original(self, shape, device, dtype)  # type: ignore[no-any-return]
        vars(self).pop("_later", None)
        values = torch.empty(shape, device=DEVICES[gpu], dtype=self.data.dtype if dtype is None else dtype)
        self.__class__ = self.cls_to_become
        self.data = values
        return None

    return make


def new(original: Callable[..., Any]) -> Callable[..., Any]:
    """`UninitializedParameter.__new__` and the buffer's, for a device that may be a virtual GPU."""

    @wraps(original)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        later = None if device is None else machine().index(device)
        if later is None:
            return original(cls, *args, **kwargs)
        given = dict(zip(("requires_grad", "device", "dtype"), args, strict=False))
        return placed(original(cls, **{**given, **kwargs, "device": "cpu"}), device)

    return make


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (class, name, value)."""
    return [
        (UninitializedTensorMixin, "materialize", materialize(UninitializedTensorMixin.materialize)),
        *((kind, "__new__", staticmethod(new(kind.__new__))) for kind in LAZY),
    ]
