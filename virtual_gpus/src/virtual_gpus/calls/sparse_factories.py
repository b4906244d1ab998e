"""torch.sparse_coo_tensor, torch.sparse_csr_tensor and the like, taught to make tensors on virtual GPUs."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.calls.factories import ambient_device
from virtual_gpus.calls.tensor_to import machine_index, to
from virtual_gpus.machine import CPU, DEVICES
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs.reports import report_sync
from virtual_gpus.tensors.virtual_tensor import VirtualTensor, on_gpu

COMPRESSED = tuple(f"sparse_{kind}_tensor" for kind in ("compressed", "csr", "csc", "bsr", "bsc"))


def of_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    """A factory of sparse tensors: it moves indices and values to the device, and makes the tensor there.

    Host sync: copies of numbers and of CPU tensors to a GPU block; without a size, the host reads indices.
    """
    count = 3 if original.__name__ in COMPRESSED else 2

    @wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        device = ambient_device() if device is None else device
        target = None if device is None else machine_index(device)
        parts = [*args[:count], *(value for name, value in kwargs.items() if _is_part(name))]
        if target is None and not any(type(part) is VirtualTensor for part in parts):
            return original(*args, **kwargs)
        kwargs.pop("device", None)
        if len(parts) < count:  # only a size, and no values
            return on_gpu(original(*args, **kwargs), CPU if target is None else target)
        values = args[count - 1] if len(args) >= count else kwargs["values"]
        home = place_of(values) if isinstance(values, Tensor) else CPU
        place = ("cpu" if home == CPU else DEVICES[home]) if device is None else device
        place = place if target is None else DEVICES[target]

        def moved(part: Any) -> Tensor:
            if isinstance(part, Tensor):
                return part if device is None else to(part, place)
            made: Tensor = torch.tensor(part, device=place, dtype=None if part is values else torch.int64)
            return made

        named = {name: moved(value) for name, value in kwargs.items() if _is_part(name)}
        sized = "size" in kwargs or len(args) > count
        if not sized and target != CPU:
            report_sync(f"{original.__name__}: copy of the largest indices to the host")
        return original(
            *map(moved, args[:count]), *args[count:], **(kwargs | named), device="cpu"
        )  # as torch sees them

    return factory


def _is_part(name: str) -> bool:
    return name == "values" or name.endswith("indices")
