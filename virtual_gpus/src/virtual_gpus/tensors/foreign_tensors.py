"""Tensor classes that compute in their own way, such as torch.export's fake tensors or quantised weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses import FakeTensor

from virtual_gpus.errors import DeviceError
from virtual_gpus.call_sites import call_site, describe

_dispatch = Tensor.__torch_dispatch__


def is_foreign(tensor: Tensor) -> bool:
    """Whether a tensor's class handles operators itself; virtual and pinned tensors do not count."""
    kind = type(tensor)
    return kind.__torch_dispatch__ is not _dispatch and not hasattr(kind, "in_host_memory")


def has_foreign(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is a tensor whose own class must handle the operation.

    Raises:
        DeviceError: it is a fake tensor, which has no values to compute with.
    """
    found = False
    for value in (*args, *kwargs.values()):
        for item in value if type(value) is list or type(value) is tuple else (value,):
            if isinstance(item, Tensor) and is_foreign(item):
                if isinstance(item, FakeTensor):
                    raise DeviceError(
                        f"a fake tensor and a tensor on a virtual GPU cannot be mixed, at {describe(call_site())}: "
                        "make both in the FakeTensorMode, or trace on the CPU before the block."
                    )
                found = True
    return found
