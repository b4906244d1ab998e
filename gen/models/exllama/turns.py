"""Turns: one thread at a time, on streams of their own, for a library whose calls share memory on the device.

Such a library keeps buffers that every forward writes: two threads that launch on streams of their own would overwrite
each other's data, since streams do not wait for each other. Here threads take turns on the host, and on each device all
turns use one stream. This stream waits for what the caller has launched before, and the caller's stream waits for it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from gen.runtime.lent_streams import lend

Streams = Callable[[Iterable[torch.device]], Iterable[torch.cuda.Stream]]


class Turns:
    """Turns of a library.

    Args:
        streams: gives the streams that the library runs on, one for each device, at least for the given devices;
            called in each turn.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = RLock()

    @contextmanager
    def __call__(self, home: torch.device, devices: Iterable[torch.device]) -> Iterator[None]:
        """A turn; afterwards the current device and the current streams are the caller's again, whatever happened.

        Args:
            home: the device that is current in the turn.
            devices: all CUDA devices that are used in it.
        Host sync: none; it waits for other threads' turns.
        """
        with self._lock:
            current = torch.cuda.current_device()
            devices = tuple(devices)
            own = tuple(self._streams(devices))
            used = dict.fromkeys((*devices, *(stream.device for stream in own)))
            callers = {device: torch.cuda.current_stream(device) for device in used}
            try:
                for stream in own:
                    stream.wait_stream(callers[stream.device])
                    torch.cuda.set_stream(stream)
                torch.cuda.set_device(home)
                yield
            finally:
                for stream in self._streams(devices):
                    if stream.device in callers:
                        callers[stream.device].wait_stream(stream)
                for stream in callers.values():
                    torch.cuda.set_stream(stream)
                torch.cuda.set_device(current)


def own_streams() -> Streams:
    """A stream for each device, made when it is first asked for and kept."""
    made: dict[torch.device, torch.cuda.Stream] = {}

    def streams(devices: Iterable[torch.device]) -> Iterable[torch.cuda.Stream]:
        for device in devices:
            if device not in made:
                made[device] = lend(streams, device)
        return [made[device] for device in devices]

    return streams


EXLLAMAV3 = Turns(own_streams())  # of all models that run on exllamav3's kernels: they share buffers on a device
