"""Looks for weights that are not on the device where their module runs."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gen.devices import Placement
from gen.models.transformers.placement import execution_device


def misplaced_weights(module: nn.Module, placement: Placement) -> Iterator[str]:
    """Parameters, buffers and attributes that are not on the device where their module runs."""
    for name, part, device in _parts(module, placement.input_device):
        named: list[tuple[str, str, Tensor]] = [
            *(("parameter", key, tensor) for key, tensor in part.named_parameters(recurse=False)),
            *(("buffer", key, tensor) for key, tensor in part.named_buffers(recurse=False)),
        ]
        for kind, key, tensor in named:
            if tensor.device not in (device, torch.device("meta")):  # meta: offloaded, loaded when it is used
                yield f"{kind} {_join(name, key)} {describe(tensor)} is on {tensor.device}, but runs on {device}"
        for key, value in _attributes(part):
            baked = _device(value)
            if baked is not None and baked != device and baked.type != "meta":
                yield (
                    f"attribute {_join(name, key)} holds {baked}, but runs on {device}: .to() leaves it; make a "
                    "tensor a buffer, and a device an argument"
                )


def _parts(module: nn.Module, device: torch.device, name: str = "") -> Iterator[tuple[str, nn.Module, torch.device]]:
    """Every module with its name and the device that it runs on: that of its hook, or of the module around it."""
    device = execution_device(module) or device
    yield name, module, device
    for key, child in module.named_children():
        yield from _parts(child, device, _join(name, key))


def _attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    """What a module keeps beside parameters, buffers and modules, with the items of its lists and dicts."""
    for name, value in vars(module).items():
        if name in _REGISTERED or name.startswith(("_hf_", "_old_")):
            continue
        if isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            yield from ((f"{name}[{position}]", item) for position, item in enumerate(value))
        else:
            yield name, value


_REGISTERED = ("_parameters", "_buffers", "_modules", "hf_device_map")


def _device(value: object) -> torch.device | None:
    """The device that a value names or is on; None if it names none. A bare "cuda" names no fixed device."""
    if isinstance(value, Tensor):
        return value.device
    if isinstance(value, torch.device):
        return value if value.index is not None else None
    if isinstance(value, str) and value.startswith("cuda:") and value[5:].isdecimal():
        return torch.device(value)
    return None


def describe(tensor: Tensor) -> str:
    """Its shape and dtype."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
