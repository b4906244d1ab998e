"""Functions of torch that need more than to be run on the CPU, where they are given a virtual tensor."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gen.testing.device_rule import place_of
from gen.testing.device_syncs import sync_test
from gen.testing.host_syncs import not_reported, report_sync
from gen.testing.transfers import to
from gen.testing.virtual_tensor import SPECIAL, Special, call_plainly


def unchecked(name: str) -> Special:
    """A function whose checks would read values on the CPU, and do not on CUDA."""

    def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        waits = sync_test(name)
        if waits is not None and waits({**dict(zip(("self", "num_classes"), args, strict=False)), **kwargs}):
            report_sync(name)
        with not_reported():
            return call_plainly(func, args, kwargs)

    return call


def copy_(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`Tensor.copy_` from another device, whose gradient goes back there."""
    target, source, *rest = args
    if _needs_way_back(target, source):
        non_blocking = bool(rest[0] if rest else kwargs.get("non_blocking", False))
        return call_plainly(func, (target, to(source, target.device, non_blocking=non_blocking), *rest), kwargs)
    return call_plainly(func, args, kwargs)


def setitem(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`Tensor.__setitem__` with a value of another device, whose gradient goes back there."""
    target, index, value = args
    if _needs_way_back(target, value) and not _advanced(index):
        return call_plainly(func, (target, index, to(value, target.device)), kwargs)
    return call_plainly(func, args, kwargs)


def _needs_way_back(target: Any, source: Any) -> bool:
    return (
        isinstance(target, Tensor)
        and isinstance(source, Tensor)
        and source.requires_grad
        and torch.is_grad_enabled()
        and place_of(target) != place_of(source)
    )


def _advanced(index: Any) -> bool:
    """Whether an index is more than slices and numbers, so that the value must be on the right device already."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor | list | bool) for part in parts)


SPECIAL.update(
    {
        functional.one_hot: unchecked("one_hot"),
        torch.quantile: unchecked("quantile"),
        torch.nanquantile: unchecked("nanquantile"),
        Tensor.quantile: unchecked("quantile"),
        Tensor.nanquantile: unchecked("nanquantile"),
        Tensor.copy_: copy_,
        Tensor.__setitem__: setitem,
    }
)
