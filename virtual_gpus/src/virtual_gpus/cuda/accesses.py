"""What a copy is for the host, and what each operation and copy reads and writes on its stream, for checks of races."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from virtual_gpus.cuda.races import HOST, Key, clock, current_key, host_waits, launch, state, stream_waits, touch
from virtual_gpus.machine import CPU, DEVICES, issued
from virtual_gpus.plain_tensors import as_plain, plain
from virtual_gpus.rules.op_rule import OpRule
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs import report_sync

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


_BY_INDEX = ("index_copy_", "index_add_", "index_fill_", "index_select")


def run_by_gpu(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any], home: int, waits: bool) -> None:
    """Note that an operator runs on the current stream of its GPU; `waits`: whether the host waits for it."""
    key = current_key(home)
    _run(rule, args, kwargs, key)
    if waits:
        host_waits(key)


def run_by_host(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Note that an operator runs on the CPU, on pinned memory."""
    _run(rule, args, kwargs, HOST)


def _run(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any], key: Key) -> None:
    if "empty" in rule.name:
        return
    number = launch(key)
    for name, _, tensor in rule.tensors(args, kwargs):
        by_index = name == "self" and tensor.dim() and rule.name.startswith(_BY_INDEX)
        rows = _rows(rule.named(args, kwargs)) if by_index else None
        touch(tensor, key, number, name in rule.written, rule.name, rows)


def _rows(named: Mapping[str, Any]) -> tuple[int, int, int]:
    """The dimension that an index is for, and its range, since its values are known here."""
    with as_plain():
        rows = plain(named["index"]).flatten().tolist()
    return named["dim"], min(rows, default=0), max(rows, default=-1) + 1


def read_by_host(tensor: Tensor) -> None:
    """Note that the host reads pinned memory."""
    if state.on:
        touch(tensor, HOST, launch(HOST), False, "a read by the host")


def waited_for(tensor: Tensor) -> None:
    """Note that the host reads a tensor on a GPU through the current stream, and waits."""
    if state.on:
        key = current_key(place_of(tensor))
        touch(tensor, key, launch(key), False, "a copy to the host")
        host_waits(key)


def copied(source: Tensor, target: Tensor, non_blocking: bool) -> None:
    """Note a copy, on the stream of its GPU. Between two GPUs, each one's current stream waits for the other's."""
    start, end = place_of(source), place_of(target)
    if start == end == CPU:
        number = launch(HOST)
        touch(source, HOST, number, False, "copy_")
        touch(target, HOST, number, True, "copy_")
        return
    key = current_key(start if start != CPU else end)
    if CPU not in (start, end) and start != end:
        stream_waits(key, clock(current_key(end)))
    number = launch(key)
    what = "a copy that does not block" if non_blocking else "a copy"
    touch(source, key, number, False, what)
    touch(target, key, number, True, what)
    if CPU not in (start, end):
        stream_waits(current_key(end), clock(key))
        return
    staged = start == CPU and not source.is_pinned() and source.nbytes <= ASYNC_BYTES
    host = source if start == CPU else target
    if not (non_blocking and (host.is_pinned() or staged)):
        host_waits(key)
