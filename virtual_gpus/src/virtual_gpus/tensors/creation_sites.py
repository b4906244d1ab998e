"""Where CPU tensors were made, for errors that name them.

Nothing is kept on the tensors themselves, which belong to the user and may be saved: they are identified by their
memory, so views and parameters are known, too. Results that are computed on the CPU are not recorded.
"""

from collections import OrderedDict

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from virtual_gpus.call_sites import CallSite, call_site
from virtual_gpus.tensors.functorch_wrappers import wrapped

_KEPT = 4096
_sites: OrderedDict[StorageWeakRef, CallSite | None] = OrderedDict()


def remember(tensor: Tensor) -> None:
    """Record that a CPU tensor is made here. Only the newest few thousand are kept."""
    if wrapped(tensor) or tensor.layout is not torch.strided:
        return
    _sites[_memory(tensor)] = call_site()
    if len(_sites) > _KEPT:
        _sites.popitem(last=False)


def recall(tensor: Tensor) -> CallSite | None:
    """Where a CPU tensor, or its base if it is a view, was made; None if this is not known."""
    if tensor.device.type != "cpu" or wrapped(tensor) or tensor.layout is not torch.strided:
        return None
    return _sites.get(_memory(tensor))


def forget() -> None:
    """Forget all records."""
    _sites.clear()


def _memory(tensor: Tensor) -> StorageWeakRef:
    """A key for a tensor's memory; while it is kept, no other memory has the same one."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
