"""CUDA streams, each of which is lent to one borrower at a time, and those on which the work of a set of rows runs.

Torch has 32 streams of each priority on a device and hands them out in turn: the 33rd request gets the first stream
again, even if it is in use. Two users of one stream wait for each other, and a CUDA graph that one of them captures
would contain the other's work. So gen keeps the streams that it has seen, and lends each to one borrower at a time.
"""

import ctypes
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import finalize

import torch

from gen.devices import Placement, current, resolve_device
from gen.runtime.forking import new_lock
from gen.runtime.isolation import own_settings

logger = logging.getLogger("gen")

POOL = 32  # streams of each priority that torch has on a device
_HIGH = -1  # streams of this priority run before those of priority 0

_Kind = tuple[object, torch.device, int]
_free: dict[_Kind, deque[torch.cuda.Stream]] = {}  # deques, because finalisers give streams back and may take no lock
_seen: dict[_Kind, set[int]] = {}  # the handles of all streams that were ever lent
_looking = new_lock()  # held while looking for a stream that was never lent


def lend(borrower: object, device: torch.device, *, high_priority: bool = False) -> torch.cuda.Stream:
    """A stream of a CUDA device that nobody else borrows until `borrower` is deleted.

    Earlier work on the stream may still run; the work of one stream is done in order. If all of torch's streams are
    lent, it is a new stream made by CUDA itself, whose priority is the usual one; see `may_capture`.
    """
    kind = torch.cuda.Stream, device, _HIGH if high_priority else 0  # virtual GPUs have their own class of streams
    free = _free.setdefault(kind, deque())
    try:
        stream = free.pop()
    except IndexError:
        stream = _another(kind, device)
    give_back = free.append if may_capture(stream) else free.appendleft  # a stream on the left is lent last
    finalize(borrower, give_back, stream).atexit = False
    return stream


def may_capture(stream: torch.cuda.Stream) -> bool:
    """Whether CUDA graphs may be captured on a lent stream.

    A stream that CUDA itself made and the device's default stream wait for each other, so work that anyone launches on
    the default stream during a capture breaks the capture.
    """
    return not isinstance(stream, torch.cuda.ExternalStream)


def _another(kind: _Kind, device: torch.device) -> torch.cuda.Stream:
    """A stream that was never lent."""
    with _looking:
        seen = _seen.setdefault(kind, set())
        for _ in range(POOL):
            stream = torch.cuda.Stream(device, priority=kind[2])  # type: ignore[no-untyped-call]
            if stream.cuda_stream not in seen:
                seen.add(stream.cuda_stream)
                return stream
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.check_error(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)))  # type: ignore[no-untyped-call]
    return torch.cuda.ExternalStream(handle.value, device)  # type: ignore[no-untyped-call]


class Streams:
    """The streams of a set of rows: one on each GPU of the model, and one that copies results to the host.

    The rows are made, filled and stepped on these streams only. So work is done in the order in which it is launched,
    and memory that the rows free is only used again by work that is launched later. The rows keep the streams until
    they are deleted; then others may borrow them.

    Attributes:
        home: the logits' device.
        copies: the stream for copies from there to the host, which run before other work; None on a CPU.
        captures: whether CUDA graphs may be captured on the streams.
    Raises:
        DeviceError: a device of the model does not exist any more.
    """

    def __init__(self, placement: Placement) -> None:
        self.home = placement.logits_device
        self._inside = False
        # checks the devices: a model may be left over from virtual GPUs
        gpus = [resolve_device(device) for device in placement.devices if device.type == "cuda"]
        self._streams = [lend(self, device) for device in gpus]
        self.copies = lend(self, self.home, high_priority=True) if self.home.type == "cuda" else None
        self.captures = all(map(may_capture, self._streams))
        if not self.captures:
            logger.info("steps on %s are not captured: others use the %d streams that torch has there", self.home, POOL)

    @contextmanager
    def current(self) -> Iterator[None]:
        """In the block, the logits' device and these streams are the thread's current ones.

        The streams wait for earlier work of the caller's own streams. In the block, torch's settings are gen's; see
        `gen.runtime.isolation`. A block within another block of the same streams changes nothing.
        """
        if self._inside:
            yield
            return
        with ExitStack() as contexts:
            self._inside = True
            contexts.callback(setattr, self, "_inside", False)
            contexts.enter_context(own_settings())
            contexts.enter_context(torch.inference_mode())
            for stream in self._streams:
                stream.wait_stream(torch.cuda.current_stream(stream.device))
                contexts.enter_context(torch.cuda.stream(stream))
            contexts.enter_context(current(self.home))
            yield
