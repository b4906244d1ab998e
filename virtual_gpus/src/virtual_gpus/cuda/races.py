"""Races between streams: work on one stream that touches memory which another stream may still be using.

Every stream has a clock: how much of every stream's work it has seen, its own by launching it, that of others by events
and waits. The host is a stream, too, which changes and reads pinned memory. An access is ordered after another one if
its stream has seen that one; if not, and one of the two writes, CUDA may run them in either order.

A worked example: stream A writes x as its first work, so A's clock is {A: 1}. B reads x; B's clock is {}, which counts
A as 0 < 1: a race. If B had waited for A, its clock would be {A: 1}, and the read would be ordered. The idea is that of
torch's own sanitizer for real devices, torch/cuda/_sanitizer.py; this one knows the extent of views, the host, and
freed memory.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from virtual_gpus.call_sites import CallSite, call_site, describe
from virtual_gpus.errors import StreamRaceError
from virtual_gpus.machine import CPU, active_machine

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
    return f"cuda:{key[0]}'s default stream" if key[1] == 0 else f"cuda:{key[0]}'s stream {key[1]:#x}"
