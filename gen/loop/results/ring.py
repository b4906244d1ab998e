"""Brings each step's small results from the device to the host while the device goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

SLOTS = 8  # more than may be under way: a slot is not written again before it has been read


class StepResults(NamedTuple):
    """What a step gave its rows, as lists, a line for each row.

    Attributes:
        search: those of the search, one list for each of its tensors.
        squeezed: whether the limit has changed a token of the row; None where no row was short of room.
        top: those of `gen.loop.results.top_tokens`; None where nobody asks.
    """

    search: Sequence[Sequence[Any]]
    squeezed: Sequence[bool] | None = None
    top: Sequence[Sequence[Any]] | None = None


@dataclass(frozen=True)
class Ticket:
    """Results that are on their way: in which ring, and in which of its slots."""

    ring: "Ring"
    slot: int

    def read(self, rows: int) -> list[list[Any]]:
        """See `Ring.read`."""
        return self.ring.read(self, rows)


@dataclass(frozen=True)
class Sent:
    """All that a step sends to the host, each on a ring of its own; see `StepResults`."""

    search: Ticket
    squeezed: Ticket | None
    top: Ticket | None

    def read(self, rows: int) -> StepResults:
        """The results of the first rows. Host sync: as of `Ring.read`."""
        [squeezed] = [None] if self.squeezed is None else self.squeezed.read(rows)
        return StepResults(self.search.read(rows), squeezed, None if self.top is None else self.top.read(rows))


class Ring:
    """A few slots, written in turn on the device and read one step later on the host.

    On CUDA a step writes its results to the slot that a counter on the device names; then a stream of its own copies
    the slot to pinned memory, and the host reads it after that copy's event, one step late: it never waits for the
    step that it has just launched, and nothing is allocated from step to step. Elsewhere the host reads the results
    themselves, at once.

    Args:
        results: tensors (rows, ...) on one device, which every step changes in place.
        copies: the stream that copies; None where the host reads the results themselves.

    Attributes:
        lag: how many steps the host is behind when it reads: 1 on CUDA, else 0.
    """

    def __init__(self, results: Sequence[Tensor], copies: torch.cuda.Stream | None) -> None:
        self._results, self._stream = results, copies
        device = results[0].device
        self.lag = 0 if copies is None else 1
        if self.lag:
            shapes = [(SLOTS, *one.shape) for one in results]
            self._slots = [
                torch.zeros(shape, dtype=one.dtype, device=device) for shape, one in zip(shapes, results, strict=True)
            ]
            self._slot = torch.zeros(1, dtype=torch.int64, device=device)
            self._pinned = [torch.zeros_like(slots, device="cpu").pin_memory() for slots in self._slots]
            self._written, self._copied = (
                [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            self._next = 0

    def push(self) -> None:
        """Write the results to the next slot: device work alone, a part of the step. Host sync: none."""
        if self.lag:
            for slots, one in zip(self._slots, self._results, strict=True):
                slots.index_copy_(0, self._slot, one.unsqueeze(0))
            self._slot.add_(1).remainder_(SLOTS)

    def moving(self) -> list[Tensor]:
        """What a push changes so that doing it twice would not be doing it once."""
        return [self._slot] if self.lag else []

    def send(self) -> Ticket:
        """Start to copy what was pushed last; call it once for each push, on its stream. Host sync: none."""
        if self._stream is None:
            return Ticket(self, 0)
        slot = self._next
        self._next = (slot + 1) % SLOTS
        self._written[slot].record(torch.cuda.current_stream(self._slot.device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._written[slot])
            for slots, pinned in zip(self._slots, self._pinned, strict=True):
                pinned[slot].copy_(slots[slot], non_blocking=True)
            self._copied[slot].record(self._stream)
        return Ticket(self, slot)

    def read(self, ticket: Ticket, rows: int) -> list[list[Any]]:
        """The results of the first rows, as lists, one for each tensor. Host sync: a wait for that copy's event."""
        if not self.lag:
            return [one[:rows].tolist() for one in self._results]
        self._copied[ticket.slot].synchronize()
        return [pinned[ticket.slot, :rows].tolist() for pinned in self._pinned]
