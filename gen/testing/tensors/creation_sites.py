"""Where CPU tensors were made, for errors that name them.

Nothing is kept on the tensors themselves, which are the user's and may be saved: they are known by identity and memory.
"""

from collections import OrderedDict

from torch import Tensor

from gen.testing.call_sites import CallSite, call_site
from gen.testing.tensors.functorch_wrappers import wrapped

_KEPT = 4096
_sites: OrderedDict[tuple[int, int], CallSite | None] = OrderedDict()


def remember(tensor: Tensor) -> None:
    """Keep where a CPU tensor is made: here. Only the newest few thousand are kept."""
    if wrapped(tensor):
        return
    _sites[id(tensor), tensor.data_ptr()] = call_site()
    if len(_sites) > _KEPT:
        _sites.popitem(last=False)


def recall(tensor: Tensor) -> CallSite | None:
    """Where a CPU tensor was made; None if that is not known."""
    if tensor.device.type != "cpu" or wrapped(tensor):
        return None
    return _sites.get((id(tensor), tensor.data_ptr()))


def forget() -> None:
    """Keep nothing any more."""
    _sites.clear()
