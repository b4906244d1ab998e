"""Streams and events of virtual GPUs. Work is done as soon as it is issued, so that they order nothing.

What they keep is when the host would wait: for a stream always, for an event unless the device was given other work
after it.
"""

from types import TracebackType
from typing import Any

import torch

from gen.testing.host_syncs import report_sync
from gen.testing.machine import DEVICES, issued, machine


class VirtualStream:
    """torch.cuda.Stream on a virtual GPU.

    Args:
        device: a GPU; None is the current one.
    """

    is_default = False

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: object) -> None:
        self._gpu = gpu_index(device)
        self.priority = priority
        self.cuda_stream = 0

    @property
    def device(self) -> torch.device:
        return DEVICES[self._gpu]

    @property
    def device_index(self) -> int:
        return self._gpu

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return machine().captured is not None and current_stream(self.device) is self

    def synchronize(self) -> None:
        """Host sync: waits for all that was issued."""
        machine().refuse_capture("Stream.synchronize")
        report_sync("Stream.synchronize")

    def wait_event(self, event: "VirtualEvent") -> None:
        """The device waits, not the host; here the event has passed."""

    def wait_stream(self, stream: "VirtualStream") -> None:
        """The device waits, not the host; here the other stream's work is done."""

    def record_event(self, event: "VirtualEvent | None" = None) -> "VirtualEvent":
        event = VirtualEvent() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> "VirtualStream":
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)

    def __repr__(self) -> str:
        return f"<VirtualStream device={self.device}>"


class VirtualEvent:
    """torch.cuda.Event on a virtual GPU."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._gpu: int | None = None
        self._issued = 0

    def record(self, stream: VirtualStream | None = None) -> None:
        self._gpu = machine().current if stream is None else stream.device_index
        self._issued = issued[self._gpu]

    def wait(self, stream: VirtualStream | None = None) -> None:
        """The device waits, not the host."""

    def query(self) -> bool:
        machine().refuse_capture("Event.query")
        return True

    def synchronize(self) -> None:
        """Host sync: if the device was given nothing after this event, the host waits for its newest work."""
        machine().refuse_capture("Event.synchronize")
        if self._gpu is not None and issued[self._gpu] == self._issued:
            report_sync("Event.synchronize: no later work was issued")

    def elapsed_time(self, end_event: "VirtualEvent") -> float:
        """Always 0: virtual GPUs measure nothing."""
        return 0.0


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


def gpu_index(device: Any) -> int:
    """The GPU that an argument `device` means; None is the current one."""
    index = machine().index("cuda" if device is None else device)
    if index is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return index


def default_stream(device: Any = None) -> VirtualStream:
    """torch.cuda.default_stream."""
    stream = VirtualStream(gpu_index(device))
    stream.is_default = True
    return stream


def current_stream(device: Any = None) -> VirtualStream:
    """torch.cuda.current_stream: of the calling thread."""
    index = gpu_index(device)
    streams: dict[int, VirtualStream] = machine().local.__dict__.setdefault("streams", {})
    return streams.setdefault(index, default_stream(index))


def set_stream(stream: VirtualStream) -> None:
    """torch.cuda.set_stream: the stream and its device become the calling thread's current ones."""
    owner = machine()
    owner.local.__dict__.setdefault("streams", {})[stream.device_index] = stream
    owner.current = stream.device_index
