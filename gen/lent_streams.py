"""CUDA streams that one user at a time has.

Torch has 32 streams of each priority on a device and hands them out in turn: who asks for the 33rd gets the first one
again, whoever else works on it. Two that launch on one stream wait for each other, and what one of them captures would
hold the other's work. So gen keeps the streams that it has seen, and lends each to one borrower at a time.
"""

import ctypes
from collections import deque
from weakref import finalize

import torch

from gen.forking import new_lock

POOL = 32  # streams of each priority that torch has on a device
_HIGH = -1  # priority: before all that has 0

_Kind = tuple[object, torch.device, int]
_free: dict[_Kind, deque[torch.cuda.Stream]] = {}  # taking and giving back need no lock: finalisers do it
_seen: dict[_Kind, set[int]] = {}  # the handles of all that were ever lent
_looking = new_lock()  # for another one


def lend(borrower: object, device: torch.device, *, high_priority: bool = False) -> torch.cuda.Stream:
    """A stream of a CUDA device that nobody else borrows before `borrower` is gone.

    Work that it was given before may still run; work on one stream is done in order. Where all of
    torch's are lent it is a stream of CUDA's own, see `may_capture`, whose priority is the usual one.
    """
    kind = torch.cuda.Stream, device, _HIGH if high_priority else 0  # the first: virtual GPUs have a class of theirs
    free = _free.setdefault(kind, deque())
    try:
        stream = free.pop()
    except IndexError:
        stream = _another(kind, device)
    give_back = free.append if may_capture(stream) else free.appendleft  # which is lent last
    finalize(borrower, give_back, stream).atexit = False
    return stream


def may_capture(stream: torch.cuda.Stream) -> bool:
    """Whether CUDA graphs may be captured on a lent stream.

    CUDA's own streams wait for the default stream of the device, and it for them: whoever launches there while one of
    them is captured breaks the capture.
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
