"""Streams and events of virtual GPUs. Work is done as soon as it is issued, so they order nothing.

They record when the host would wait: always for a stream, and for an event unless the device was given other work after
it. `virtual_gpus.cuda.races` checks the order that they demand.
"""

import itertools
import time
from types import TracebackType
from typing import Any

import torch

from virtual_gpus import faults
from virtual_gpus.cuda import races
from virtual_gpus.machine import DEVICES, gpu_index, issued, machine
from virtual_gpus.syncs import report_sync

_handles = itertools.count(0x1000, 0x10)
_POOL = 32  # how many streams of each priority torch has on a device; it hands them out in turn


class VirtualStream:
    """torch.cuda.Stream on a virtual GPU. A GPU's default stream has the handle 0.

    As on CUDA, the 33rd stream of a GPU and a priority is the first one again.

    Args:
        device: a GPU; None is the current one.
        stream_id: the handle of an existing stream.
    """

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        **kwargs: object,
    ) -> None:
        self._gpu = gpu_index(device if device_index is None else device_index)
        self.priority = max(-5, min(priority, 0))
        self.cuda_stream = _next_of_pool(self._gpu, self.priority) if stream_id is None else stream_id

    @property
    def device(self) -> torch.device:
        return DEVICES[self._gpu]

    @property
    def device_index(self) -> int:
        return self._gpu

    @property
    def device_type(self) -> int:
        return 1

    @property
    def stream_id(self) -> int:
        return self.cuda_stream

    @property
    def is_default(self) -> bool:
        return self.cuda_stream == 0

    @property
    def key(self) -> tuple[int, int]:
        """Its GPU and its handle, which identify it."""
        return self._gpu, self.cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return machine().captured is not None and current_stream(self.device) is self

    def synchronize(self) -> None:
        """Host sync: waits for all that was issued."""
        machine().refuse_capture("Stream.synchronize")
        report_sync("Stream.synchronize")
        if not faults.misses_wait():
            races.host_waits(self.key)

    def wait_event(self, event: "VirtualEvent") -> None:
        """The device waits, not the host; here the event has passed."""
        if not faults.misses_wait():
            races.stream_waits(self.key, event.seen)

    def wait_stream(self, stream: "VirtualStream") -> None:
        """The device waits, not the host; here the other stream's work is done."""
        if not faults.misses_wait():
            races.stream_waits(self.key, races.clock(stream.key))

    def record_event(self, event: "VirtualEvent | None" = None) -> "VirtualEvent":
        event = VirtualEvent() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VirtualStream) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __enter__(self) -> "VirtualStream":
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)

    def __repr__(self) -> str:
        return f"<torch.{self.device.type}.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


def _next_of_pool(gpu: int, priority: int) -> int:
    """The handle of the stream that torch hands out next."""
    pools = machine().streams
    if (gpu, priority) not in pools:
        pools.setdefault((gpu, priority), itertools.cycle([next(_handles) for _ in range(_POOL)]))
    return next(pools[gpu, priority])


def create_stream() -> int:
    """The handle of a stream that belongs to nobody else, as cudaStreamCreate makes it."""
    return next(_handles)


class ExternalStream(VirtualStream):
    """torch.cuda.ExternalStream: a stream that another library made, by its handle."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: object) -> None:
        super().__init__(device, stream_id=stream_ptr)


class VirtualEvent:
    """torch.cuda.Event on a virtual GPU. Its time is the host's time when it was recorded."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **kwargs: object) -> None:
        self._gpu: int | None = None
        self._issued = 0
        self._timed = enable_timing or device is True
        self._at: float | None = None
        self.cuda_event = self.event_id = 0  # none until it is recorded
        self.seen: races.Clock = {}

    @property
    def device(self) -> torch.device | None:
        return None if self._gpu is None else DEVICES[self._gpu]

    def record(self, stream: VirtualStream | None = None) -> None:
        stream = current_stream() if stream is None else stream
        if self._gpu not in (None, stream.device_index):
            raise RuntimeError(
                f"Event device {self._gpu} does not match recording stream's device {stream.device_index}."
            )
        self._gpu = stream.device_index
        self.cuda_event = self.event_id = self.event_id or next(_handles)
        self._issued = issued[self._gpu]
        self._at = time.perf_counter()
        self.seen = races.clock(stream.key)

    def wait(self, stream: VirtualStream | None = None) -> None:
        """The device waits, not the host."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        machine().refuse_capture("Event.query")
        return True

    def synchronize(self) -> None:
        """Host sync: if the device was given nothing after this event, the host waits for its newest work."""
        machine().refuse_capture("Event.synchronize")
        if self._gpu is not None and issued[self._gpu] == self._issued:
            report_sync("Event.synchronize: no later work was issued")
        if not faults.misses_wait():
            races.host_saw(self.seen)

    def elapsed_time(self, end_event: "VirtualEvent") -> float:
        """The milliseconds between the recordings, on the host.

        Raises:
            RuntimeError: an event keeps no time, or was not recorded.
        """
        if not (self._timed and end_event._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {f'{self.cuda_event:#x}' if self.cuda_event else 'uninitialized'}>"


class StreamContext:
    """torch.cuda.stream(s): the block's current stream and device; None changes nothing."""

    def __init__(self, stream: VirtualStream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            owner = machine()
            self._device = owner.current
            self._outer = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            set_stream(self._outer)
            machine().current = self._device


def default_stream(device: Any = None) -> VirtualStream:
    """torch.cuda.default_stream."""
    return VirtualStream(gpu_index(device), stream_id=0)


def current_stream(device: Any = None) -> VirtualStream:
    """torch.cuda.current_stream: the calling thread's."""
    index = gpu_index(device)
    streams: dict[int, VirtualStream] = machine().local.__dict__.setdefault("streams", {})
    return streams.get(index) or streams.setdefault(index, default_stream(index))


def set_stream(stream: VirtualStream) -> None:
    """torch.cuda.set_stream: the stream and its device become the calling thread's current ones."""
    owner = machine()
    owner.local.__dict__.setdefault("streams", {})[stream.device_index] = stream
    owner.current = stream.device_index


def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """torch._C._cuda_setStream, which torch's own test suite calls."""
    set_stream(VirtualStream(device_index, stream_id=stream_id))
