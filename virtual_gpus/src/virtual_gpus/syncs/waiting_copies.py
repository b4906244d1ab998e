"""Copies between devices: for which of them the host waits."""

from torch import Tensor

from virtual_gpus.machine import CPU, DEVICES, issued
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs.reports import report_sync

ASYNC_BYTES = 64 * 1024  # CUDA stages a pageable source of at most this size at once, and does not wait


def report_transfer(source: Tensor, target: int, non_blocking: bool, into_pinned: bool) -> None:
    """Report a copy of `source` to a device if the host would wait for it.

    The host never waits for copies between GPUs and for empty copies, and always for blocking ones between host and
    device. A non-blocking copy is free with pinned memory. Without it, the host waits for a copy to the host, and for
    one to the device above 64 KiB.
    """
    place = place_of(source)
    if not source.numel():
        return
    issued[place] += 1
    issued[target] += 1
    if (place == CPU) == (target == CPU):
        return
    if place != CPU:
        if not (non_blocking and into_pinned):
            how = "into pageable memory " if non_blocking else ""
            report_sync(f"copy {how}from {DEVICES[place]} to the host")
    elif not (non_blocking and (source.is_pinned() or source.nbytes <= ASYNC_BYTES)):
        how = "of pageable memory " if non_blocking else ""
        report_sync(f"copy {how}from the host to {DEVICES[target]}")
