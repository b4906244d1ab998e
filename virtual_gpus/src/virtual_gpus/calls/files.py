"""Saving, loading and copying virtual tensors. A file says "cuda:1" as one from real hardware does."""

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from virtual_gpus import DeviceError
from virtual_gpus.calls.storages import marked, on_host, set_, storage_place
from virtual_gpus.cuda import races
from virtual_gpus.machine import CPU, DEVICES, active_machine, device_type
from virtual_gpus.plain_tensors import as_plain, directly, plain
from virtual_gpus.syncs import report_sync
from virtual_gpus.virtual_tensor import PinnedTensor, VirtualTensor, on_gpu

_BEFORE_TORCHS_OWN = 5  # torch registers the CPU at 10
_plain_storage = Tensor.untyped_storage


def untyped_storage(tensor: VirtualTensor) -> torch.UntypedStorage:
    """`Tensor.untyped_storage`."""
    with directly():
        return marked(_plain_storage(tensor), tensor._gpu)


def reduce_ex(tensor: VirtualTensor, protocol: Any) -> Any:
    """Pickle a virtual tensor by its storage, like torch's own tensors: files can be read without this package."""
    if isinstance(tensor, Parameter):
        hooks: OrderedDict[int, Any] = OrderedDict()
        kept = (tensor.data, tensor.requires_grad, hooks)
        state = _own_attributes(tensor)
        if state:
            return torch._utils._rebuild_parameter_with_state, (*kept, state)
        return torch._utils._rebuild_parameter, kept
    shown = plain(tensor.detach()).requires_grad_(tensor.requires_grad)
    if shown.layout is torch.strided:
        marked(shown.untyped_storage(), tensor._gpu)
    return shown.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _own_attributes(tensor: VirtualTensor) -> dict[str, Any]:
    """The attributes that the user set on a tensor."""
    return {name: value for name, value in vars(tensor).items() if name not in ("_gpu", "_made_at")}


def deepcopy_of(tensor: VirtualTensor, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy`: views of one storage become views of one copy."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    _check_leaf(tensor)
    if isinstance(tensor, Parameter) or tensor.layout is not torch.strided:
        made: Any = on_gpu(tensor.host_copy(), tensor._gpu).requires_grad_(tensor.requires_grad)
        if isinstance(tensor, Parameter):
            made = Parameter(made, tensor.requires_grad)
    else:
        with torch.no_grad(), as_plain():
            physical = plain(tensor.detach()).resolve_conj().resolve_neg()
            storage = _copy_of(physical.untyped_storage(), memo)
            shape = physical.storage_offset(), physical.size(), physical.stride()
            copied = set_(torch.empty(0, dtype=tensor.dtype), storage, *shape)
        made = on_gpu(copied, tensor._gpu).requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = deepcopy(tensor.grad, memo)
    if not isinstance(tensor, Parameter):  # whose copy has no attributes in torch either
        vars(made).update(deepcopy(_own_attributes(tensor), memo))
    memo[id(tensor)] = made
    return made


def _copy_of(storage: torch.UntypedStorage, memo: dict[int, Any]) -> torch.UntypedStorage:
    """`copy.deepcopy` of a storage, as memory of the host."""
    kept = memo.setdefault("torch", {})  # type: ignore[call-overload]  # where torch keeps its copies
    if storage._cdata not in kept:
        kept[storage._cdata] = on_host(storage)
    copied: torch.UntypedStorage = kept[storage._cdata]
    return copied


def _reduce_pinned(tensor: PinnedTensor, protocol: Any) -> Any:
    """Pickle a pinned tensor as an ordinary CPU tensor, which it is when it is read."""
    races.read_by_host(tensor)
    if isinstance(tensor, Parameter):
        return torch._utils._rebuild_parameter, (tensor.data, tensor.requires_grad, OrderedDict())
    shown = plain(tensor.detach()).requires_grad_(tensor.requires_grad)
    return shown.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _copy_pinned(tensor: PinnedTensor) -> Any:
    """`copy.copy`: another tensor of the same memory, which stays pinned."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _deepcopy_pinned(tensor: PinnedTensor, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy`: an ordinary CPU tensor."""
    races.read_by_host(tensor)
    _check_leaf(tensor)
    made: Any = deepcopy(plain(tensor.detach()), memo).requires_grad_(tensor.requires_grad)
    if isinstance(tensor, Parameter):
        made = Parameter(made.detach(), tensor.requires_grad)
    if tensor.grad is not None:
        made.grad = deepcopy(tensor.grad, memo)
    memo[id(tensor)] = made
    return made


def _check_leaf(tensor: Tensor) -> None:
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )


def _tag(storage: Any) -> str | None:
    """The location that torch.save writes for a storage; torch then copies the storage to the host."""
    place = storage_place(storage)
    return None if place == CPU else str(DEVICES[place])


def _restore(storage: Any, location: str) -> Any:
    """A storage from a file, on the virtual GPU that its location names."""
    active = active_machine()
    if active is None or not location.startswith(device_type()):
        return None
    index = torch.device(location).index
    if index is not None and index >= active.gpus:
        raise DeviceError(
            f"Attempting to deserialize object on CUDA device {index} but torch.cuda.device_count() is {active.gpus}. "
            "Please use torch.load with map_location to map your storages to an existing device."
        )
    report_sync("copy of a file's values from the host")
    return marked(storage, active.current if index is None else index)


def _rebuilt(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch._utils._rebuild_tensor: a tensor is on its storage's device."""

    @wraps(original)
    def rebuild(storage: Any, *args: Any) -> Any:
        place = storage_place(storage)
        if place == CPU:
            return original(storage, *args)
        made = torch.empty(0, dtype=storage.dtype, device="cpu")
        return on_gpu(set_(made, storage._untyped_storage, *args), place)

    return rebuild


def substitutes() -> list[tuple[object, str, object]]:
    """The substitutes, each as (module, name, value)."""
    return [(torch._utils, "_rebuild_tensor", _rebuilt(torch._utils._rebuild_tensor))]


def packages() -> list[tuple[object, str, object]]:
    """The same for torch's list of what saves and restores tensors, to which programs may add."""
    own = [(_BEFORE_TORCHS_OWN, _tag, _restore), *torch.serialization._package_registry]
    return [(torch.serialization, "_package_registry", own)]


VirtualTensor.untyped_storage = untyped_storage  # type: ignore[method-assign, assignment]
VirtualTensor.__reduce_ex__ = reduce_ex  # type: ignore[method-assign, assignment]
VirtualTensor.__deepcopy__ = deepcopy_of  # type: ignore[assignment, method-assign]
PinnedTensor.__reduce_ex__ = _reduce_pinned  # type: ignore[method-assign, assignment]
PinnedTensor.__copy__ = _copy_pinned  # type: ignore[attr-defined]
PinnedTensor.__deepcopy__ = _deepcopy_pinned  # type: ignore[assignment, method-assign]
