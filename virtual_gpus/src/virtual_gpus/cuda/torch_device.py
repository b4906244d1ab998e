"""torch.device(1): makes a bare index name a CUDA device, as in a torch that was built for CUDA."""

from typing import Any

import torch

from virtual_gpus.machine import DEVICES, gpu_count

_TorchDevice = torch.device


class _AnyDevice(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if len(args) == 1 and isinstance(args[0], int) and not kwargs and 0 <= args[0] < gpu_count():
            return DEVICES[args[0]]
        return _TorchDevice(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchDevice)

    def __eq__(cls, other: object) -> bool:  # torch.fx asks whether a class is torch.device
        return other is _TorchDevice or other is cls

    def __hash__(cls) -> int:
        return hash(_TorchDevice)


class Device(metaclass=_AnyDevice):
    """Stands for torch.device if a bare index is not a CUDA device there; it makes torch's own devices."""


def index_is_cuda() -> bool:
    """Whether torch's own torch.device(0) is cuda:0."""
    try:
        return torch.device(0).type == "cuda"
    except RuntimeError:
        return False
