"""Where CPU tensors were made, for errors that name them.

Nothing is kept on the tensors themselves, which are the user's and may be saved: they are known by their memory, so
that views and parameters are known too. What is computed on the CPU nobody sees.
"""

from collections import OrderedDict

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gen.testing.call_sites import CallSite, call_site
from gen.testing.tensors.functorch_wrappers import wrapped

_KEPT = 4096
_sites: OrderedDict[StorageWeakRef, CallSite | None] = OrderedDict()


def remember(tensor: Tensor) -> None:
    """Keep where a CPU tensor is made: here. Only the newest few thousand are kept."""
    if wrapped(tensor) or tensor.layout is not torch.strided:
        return
    _sites[_memory(tensor)] = call_site()
    if len(_sites) > _KEPT:
        _sites.popitem(last=False)


def recall(tensor: Tensor) -> CallSite | None:
    """Where a CPU tensor, or what it is a view of, was made; None if that is not known."""
    if tensor.device.type != "cpu" or wrapped(tensor) or tensor.layout is not torch.strided:
        return None
    return _sites.get(_memory(tensor))


def forget() -> None:
    """Keep nothing any more."""
    _sites.clear()


def _memory(tensor: Tensor) -> StorageWeakRef:
    """A tensor's memory; while this is kept, no other has the same."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
