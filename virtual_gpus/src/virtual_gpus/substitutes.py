"""The substitutes for torch's own functions and methods while there are virtual GPUs."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn.attention import flex_attention
from torch.utils._device import _device_constructors

from virtual_gpus import processes
from virtual_gpus.calls import (
    compiling,
    factories,
    foreach,
    lazy_modules,
    module_to,
    ops_with_device,
    sparse_factories,
    tensor_to,
)
from virtual_gpus.calls import operator_overrides as operator_overrides  # the import fills the tables of overrides
from virtual_gpus.calls.dispatch import SPECIAL
from virtual_gpus.calls.function_overrides import like, moving
from virtual_gpus.cuda import cuda_api, nccl, typed_tensors
from virtual_gpus.cuda.generators import VirtualGenerator
from virtual_gpus.cuda.torch_device import Device, index_is_cuda
from virtual_gpus.files import saving, storages
from virtual_gpus.gradients import backward
from virtual_gpus.machine import active_machine
from virtual_gpus.tensors import functorch_wrappers

_data: Any = Tensor.data
_group_tensors = torch._C._group_tensors_by_device_and_dtype


_made: list[tuple[object, str, object, object]] = []  # the substitutes that blocks share, each with what it replaces


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module or class, name, value).

    They are made for the first block, and made anew if something else has replaced a function of torch since then.
    """
    if not _made or any(vars(owner).get(name) is not before for owner, name, _, before in _made):
        _device_constructors()  # caches torch's own functions, before they are substituted
        _made[:] = [(owner, name, ready(owner, name, value), vars(owner).get(name)) for owner, name, value in _make()]
        of_tensors = {name: value for owner, name, value, _ in _made if owner is Tensor}
        SPECIAL.update({of_tensors[name]: like for name in factories.NEW})
        SPECIAL.update({of_tensors[name]: moving for name in tensor_to.METHODS})
    shared = [(owner, name, value) for owner, name, value, _ in _made]
    copying = {name: value for owner, name, value in shared if owner is torch and name in factories.COPIED}
    imported = [(module, name, copying[name]) for module, name in _importers(copying)]
    return [*shared, *imported, *saving.packages(), *cuda_api.of_the_machine()]


def _make() -> list[tuple[object, str, object]]:
    wraps: list[tuple[object, tuple[str, ...], Callable[[Any], Any]]] = [
        (torch, (*factories.PLAIN, *factories.LIKE), factories.factory),
        (torch, factories.COPIED, factories.copied),
        (torch, factories.SHARED, factories.noted),
        (torch, ("sparse_coo_tensor", *sparse_factories.COMPRESSED), sparse_factories.of_parts),
        (Tensor, factories.NEW, factories.factory),
        (torch, ("bernoulli", "multinomial", "poisson"), factories.with_generator_check),
        (Tensor, _DRAWING_METHODS, factories.with_generator_check),
    ]
    wrapped = [
        (owner, name, wrap(getattr(owner, name)))
        for owner, names, wrap in wraps
        for name in names
        if hasattr(owner, name)
    ]
    methods: list[tuple[object, str, object]] = [
        *((Tensor, name, method) for name, method in tensor_to.METHODS.items()),
        (Tensor, "device", property(functorch_wrappers.device)),
        (Tensor, "new_tensor", factories.new_tensor),
        (torch, "from_dlpack", factories.from_dlpack(torch.from_dlpack)),  # type: ignore[attr-defined]
        (torch.utils.dlpack, "from_dlpack", factories.from_dlpack(torch.from_dlpack)),  # type: ignore[attr-defined]
        *((owner, "to_dlpack", factories.to_dlpack(torch._C._to_dlpack)) for owner in (torch, torch.utils.dlpack)),
        (Tensor, "data", property(_data.__get__, tensor_to.set_data, tensor_to.delete_data)),
        (torch, "Generator", VirtualGenerator),
        (torch, "compile", compiling.not_compiled),
        (HigherOrderOperator, "__call__", compiling.eagerly(HigherOrderOperator.__call__)),
        (flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        (torch._C, "_group_tensors_by_device_and_dtype", foreach.group_by_device_and_dtype(_group_tensors)),
        (torch.export, "export", compiling.no_export),
        (OpOverload, "__call__", ops_with_device.of_overloads(OpOverload.__call__)),
        (OpOverloadPacket, "__call__", ops_with_device.of_packets(OpOverloadPacket.__call__)),
        (torch.backends.cudnn, "is_acceptable", lambda tensor: False),
    ]
    if not index_is_cuda():
        methods.append((torch, "device", Device))
    return [
        *wrapped,
        *methods,
        *backward.substitutes(),
        *module_to.substitutes(),
        *lazy_modules.substitutes(),
        *typed_tensors.substitutes(),
        *processes.substitutes(),
        *storages.substitutes(),
        *saving.substitutes(),
        *cuda_api.substitutes(),
        *nccl.substitutes(),
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


_DRAWING_METHODS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
)  # fmt: skip


def put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute; returns a function that restores it, or deletes it if it was inherited."""
    inherited = name not in vars(owner)
    before = vars(owner).get(name)
    if isinstance(value, FunctionType):
        compiling.compile_alike(value, before)
    setattr(owner, name, value)

    def undo() -> None:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
        compiling.compile_as_itself(value)

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
