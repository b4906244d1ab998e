"""The substitutes for torch's own functions and methods while there are virtual GPUs."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from virtual_gpus import children, plain_tensors
from virtual_gpus.calls import (
    device_types,
    factories,
    files,
    function_overrides,
    gradients,
    operators,
    programs,
    storages,
    tensor_to,
)
from virtual_gpus.calls.dispatch import SPECIAL
from virtual_gpus.cuda import between_gpus, cuda_api
from virtual_gpus.cuda.generators import VirtualGenerator
from virtual_gpus.machine import active_machine, device_type

# The substitutes that blocks of a type share, each with what it replaces.
_of_type: dict[str, list[tuple[object, str, object, object]]] = {}


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value).

    They are made for the first block, and made anew if something else has replaced a function of torch since then.
    """
    made = _of_type.get(device_type(), [])
    if not made or any(vars(owner).get(name) is not before for owner, name, _, before in made):
        _device_constructors()  # caches torch's own functions, before they are substituted
        made = [(owner, name, ready(owner, name, value), vars(owner).get(name)) for owner, name, value in _make()]
        _of_type[device_type()] = made
        of_tensors = {name: value for owner, name, value, _ in made if owner is Tensor}
        SPECIAL.update({of_tensors[name]: function_overrides.like for name in factories.NEW})
        methods = tensor_to.METHODS.keys() & of_tensors.keys()
        SPECIAL.update({of_tensors[name]: function_overrides.moving for name in methods})
    shared = [(owner, name, value) for owner, name, value, _ in made]
    copying = {name: value for owner, name, value in shared if owner is torch and name in factories.COPIED}
    imported = [(module, name, copying[name]) for module, name in _importers(copying)]
    return [*shared, *imported, *files.packages(), *cuda_api.of_the_machine()]


def _make() -> list[tuple[object, str, object]]:
    parts = (
        factories, tensor_to, programs, operators, gradients, device_types, children, storages, files, cuda_api,
        between_gpus,
    )  # fmt: skip
    return [
        (Tensor, "device", property(plain_tensors.shown_device)),
        (torch, "Generator", VirtualGenerator),
        (torch.backends.cudnn, "is_acceptable", lambda tensor: False),
        *(substitute for part in parts for substitute in part.substitutes()),
    ]


def _importers(names: Iterable[str]) -> Iterator[tuple[object, str]]:
    """The modules that imported these functions from torch by name: functions that copy call no kernel of ours."""
    originals = {name: getattr(torch, name) for name in names}
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", {})
        if originals.keys().isdisjoint(own.keys()) or module is torch:
            continue
        for name, original in originals.items():
            if own.get(name) is original:
                yield module, name


def put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute; returns a function that restores it, or deletes it if it was inherited."""
    inherited = name not in vars(owner)
    before = vars(owner).get(name)
    if isinstance(value, FunctionType):
        programs.compile_alike(value, before)
    setattr(owner, name, value)

    def undo() -> None:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
        programs.compile_as_itself(value)

    return undo


def ready(owner: Any, name: str, value: Any) -> Any:
    """A substitute that does as before after the block: a module that is imported in the block may keep it for good."""
    if not isinstance(value, FunctionType):
        return value
    original: Any = getattr(owner, name, value)

    @wraps(original)
    def substitute(*args: Any, **kwargs: Any) -> Any:
        return (original if active_machine() is None else value)(*args, **kwargs)

    return substitute
