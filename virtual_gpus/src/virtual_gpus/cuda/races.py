"""Races between streams: work on one stream that touches memory which another stream may still be using.

Every stream has a clock: how much of every stream's work it has seen, its own by launching it, that of others by events
and waits. The host is a stream, too, which changes and reads pinned memory. An access is ordered after another one if
its stream has seen that one; if not, and one of the two writes, CUDA may run them in either order.

A worked example: stream A writes x as its first work, so A's clock is {A: 1}. B reads x; B's clock is {}, which counts
A as 0 < 1: a race. If B had waited for A, its clock would be {A: 1}, and the read would be ordered. The idea is that of
torch's own sanitizer for real devices, torch/cuda/_sanitizer.py; this one knows the extent of views, the host, and
freed memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from virtual_gpus import StreamRaceError
from virtual_gpus.call_sites import CallSite, call_site, describe
from virtual_gpus.machine import CPU, DEVICES, active_machine, issued
from virtual_gpus.plain_tensors import as_plain, plain
from virtual_gpus.rules.op_rule import OpRule
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.syncs import report_sync

Key = tuple[int, int]  # a GPU and the handle of a stream
Clock = dict[Key, int]
HOST: Key = (CPU, 0)


@dataclass
class Access:
    """One piece of work on some bytes of a storage."""

    key: Key
    number: int
    writes: bool
    start: int
    end: int
    what: str
    site: CallSite | None


@dataclass
class History:
    """What was done with one storage.

    Attributes:
        owner: the stream on which the storage was made, and which owns its memory.
        recorded: the streams that record_stream has named.
    """

    owner: Key
    accesses: list[Access] = field(default_factory=list)
    recorded: set[Key] = field(default_factory=set)


class _State:
    """Clocks of the open block, and whether it checks at all."""

    def __init__(self) -> None:
        self.on = False
        self.clocks: dict[Key, Clock] = {}
        self.pending: list[tuple[Access, StreamRaceError]] = []  # memory that was freed while work may still use it


state = _State()


def start(check: bool) -> None:
    state.on, state.clocks, state.pending = check, {}, []


def stop() -> None:
    """End the checks.

    Raises:
        StreamRaceError: memory was given back too early.
    """
    pending = state.pending
    start(False)
    if pending:
        raise pending[0][1]


def clock(key: Key) -> Clock:
    """What a stream has seen now."""
    return dict(state.clocks.get(key, {}))


def stream_waits(key: Key, seen: Clock) -> None:
    """Note that a stream goes on only after all work that `seen` counts."""
    if state.on:
        mine = state.clocks.setdefault(key, {})
        for other, number in seen.items():
            mine[other] = max(mine.get(other, 0), number)


def host_saw(seen: Clock) -> None:
    """Note that the host has waited for the work that `seen` counts."""
    if state.on:
        stream_waits(HOST, seen)
        mine = state.clocks[HOST]
        state.pending = [late for late in state.pending if mine.get(late[0].key, 0) < late[0].number]


def host_waits(key: Key) -> None:
    """Note that the host has waited for a stream."""
    host_saw(clock(key))


def host_waits_for_gpu(gpu: int) -> None:
    """Note that the host has waited for all streams of a GPU."""
    for key in list(state.clocks):
        if key[0] == gpu:
            host_waits(key)


def capture_begins(key: Key) -> tuple[Key, Clock]:
    """Note that a stream captures: the work is not done now, so it races with nothing that was issued before it."""
    for other in list(state.clocks):
        stream_waits(key, clock(other))
    return key, clock(key)


def capture_ends(key: Key, before: Clock) -> None:
    """Note that the work of a capture, since `before`, is not under way either."""
    host_saw({other: number for other, number in clock(key).items() if number != before.get(other)})


def current_key(gpu: int) -> Key:
    """The calling thread's current stream of a GPU."""
    active = active_machine()
    streams = {} if active is None else active.local.__dict__.get("streams", {})
    return streams[gpu].key if gpu in streams else (gpu, 0)


def launch(key: Key) -> int:
    """Count a piece of work on a stream; it comes after all work that the host has waited for.

    Raises:
        StreamRaceError: memory was given back too early before this work.
    """
    if state.pending:
        raise state.pending.pop(0)[1]
    if key != HOST:
        stream_waits(key, state.clocks.get(HOST, {}))
    mine = state.clocks.setdefault(key, {})
    mine[key] = mine.get(key, 0) + 1
    return mine[key]


def touch(
    tensor: Tensor, key: Key, number: int, writes: bool, what: str, rows: tuple[int, int, int] | None = None
) -> None:
    """Note that work on a stream reads or writes a tensor, or `rows` of it: a dimension, and its range there.

    Raises:
        StreamRaceError: the work is not ordered after other work on the same bytes.
    """
    history = history_of(tensor)
    if history is None or not tensor.numel():
        return
    start, end = _extent(tensor, rows)
    access = Access(key, number, writes, start, end, what, call_site())
    seen = state.clocks.get(key, {})
    kept = []
    for other in history.accesses:
        if other.end <= start or end <= other.start:
            kept.append(other)
            continue
        if (writes or other.writes) and other.key != key and seen.get(other.key, 0) < other.number:
            raise _race(access, other, tensor)
        covered = start <= other.start and other.end <= end
        if not (covered and (writes or (other.key == key and not other.writes))):
            kept.append(other)
    history.accesses[:] = [*kept, access]


def history_of(tensor: Any) -> History | None:
    """The history of a tensor's storage; None for pageable memory, which no stream uses after a call."""
    if not hasattr(type(tensor), "in_host_memory"):
        return None
    storage = tensor.untyped_storage()
    history: History | None = getattr(storage, "_history", None)
    if history is None:
        gpu = getattr(tensor, "_gpu", CPU)
        history = storage._history = History(HOST if gpu == CPU else current_key(gpu))
    return history


def freed(history: History) -> None:
    """Note that a storage is given back: the stream that owns its memory may use it again."""
    seen, host = state.clocks.get(history.owner, {}), state.clocks.get(HOST, {})
    for access in history.accesses:
        if access.key in (HOST, history.owner) or access.key in history.recorded:
            continue
        if max(seen.get(access.key, 0), host.get(access.key, 0)) < access.number:
            error = StreamRaceError(
                f"memory of {_name(history.owner)} was given back at {describe(call_site())}, while {access.what} "
                f"at {describe(access.site)} may still use it on {_name(access.key)}. Call "
                "tensor.record_stream(stream) there, or wait for that stream before the tensor is dropped."
            )
            state.pending.append((access, error))
            return


def _extent(tensor: Tensor, rows: tuple[int, int, int] | None) -> tuple[int, int]:
    """The bytes of its storage that a tensor, or `rows` of it, covers."""
    first, lengths, strides = tensor.storage_offset(), list(tensor.shape), tensor.stride()
    if rows is not None:
        dimension, start, end = rows
        first += start * strides[dimension]
        lengths[dimension] = end - start
    last = first + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()  # type: ignore[return-value]


def _race(access: Access, other: Access, tensor: Tensor) -> StreamRaceError:
    verb, did = ("writes" if access.writes else "reads"), ("wrote" if other.writes else "read")
    shape = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    mend = (
        "Wait for the copy's event (event.synchronize()) before the host touches the pinned memory."
        if HOST in (access.key, other.key)
        else "Let the stream wait: stream.wait_stream(other) or stream.wait_event(event)."
    )
    return StreamRaceError(
        f"{access.what} at {describe(access.site)} {verb} a tensor, {shape}, on {_name(access.key)}, which "
        f"{other.what} at {describe(other.site)} {did} on {_name(other.key)}, and nothing orders the two. {mend}"
    )


def _name(key: Key) -> str:
    if key == HOST:
        return "the host"
    return f"{DEVICES[key[0]]}'s default stream" if key[1] == 0 else f"{DEVICES[key[0]]}'s stream {key[1]:#x}"


ASYNC_BYTES = 64 * 1024  # CUDA stages a pageable source of at most this size at once, and does not wait


def pinned(source: Tensor, target: Tensor) -> bool:
    """Whether the host's side of a copy is pinned and goes over as it is: what is stretched, cut out, or in another
    order goes over by pageable memory. Source: aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries)."""
    host = source if place_of(source) == CPU else target
    if not host.is_pinned() or source.shape != target.shape or host.is_contiguous():
        return host.is_pinned() and source.shape == target.shape
    last = sum((length - 1) * stride for length, stride in zip(host.shape, host.stride(), strict=True))
    return source.dtype == target.dtype and source.stride() == target.stride() and last + 1 == host.numel()


def report_transfer(source: Tensor, target: int, non_blocking: bool, is_pinned: bool) -> None:
    """Report a copy of `source` to a device if the host would wait for it.

    The host never waits for copies between GPUs and for empty copies, and always for blocking ones between host and
    device. A non-blocking copy is free with pinned memory (`is_pinned`, see `pinned`). Without it, the host waits for a
    copy to the host, and for one to the device above 64 KiB.
    """
    place = place_of(source)
    if not source.numel():
        return
    issued[place] += 1
    issued[target] += 1
    if (place == CPU) == (target == CPU):
        return
    if place != CPU:
        if not (non_blocking and is_pinned):
            how = "into pageable memory " if non_blocking else ""
            report_sync(f"copy {how}from {DEVICES[place]} to the host")
    elif not (non_blocking and (is_pinned or source.nbytes <= ASYNC_BYTES)):
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
    read_at_once = start == CPU and not pinned(source, target)  # from there it goes over by pageable memory
    touch(source, HOST if read_at_once else key, launch(HOST) if read_at_once else number, False, what)
    touch(target, key, number, True, what)
    if CPU not in (start, end):
        stream_waits(current_key(end), clock(key))
        return
    staged = start == CPU and source.nbytes <= ASYNC_BYTES
    if not (non_blocking and (staged or pinned(source, target))):
        host_waits(key)
