"""Brings each step's small results from the device to the host while the device goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNED = 16  # bytes
SLOTS = 8  # more than the steps that may be under way, so no slot is written again before it has been read


class StepResults(NamedTuple):
    """The results of a step as lists, with an entry for each row.

    Attributes:
        search: the results of the search, one list for each of its tensors.
        squeezed: whether the limit has changed a token of the row; None if no row was short of room.
        top: the results of `gen.loop.results.top_tokens`; None if no request asks for them.
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
        return self.ring.read(self, rows)


class Received(NamedTuple):
    """The results of a step on the host.

    Attributes:
        places: the results at each of its places; a plain step has one place.
        made: how many of these places count in each row.
        drafts: how many drafts there were in each row, of which kinds, and how many were right; see
            `gen.loop.speculation.drafts`. None if nothing is drafted, and on a CPU, where the host itself drafts.
    """

    places: Sequence[StepResults]
    made: Sequence[int]
    drafts: Sequence[Sequence[Any]] | None


@dataclass(frozen=True)
class Sent:
    """All that a step sends to the host, each on a ring of its own; see `StepResults` and `Received`.

    Attributes:
        width: how many places it had.
        drafted: whether drafts were looked for.
        search: for a plain step, the results of the search; otherwise tokens, their log-probabilities, and whether the
            limit has changed them, each (rows, places), and how many of them count.
    """

    search: Ticket
    squeezed: Ticket | None
    top: Ticket | None
    drafts: Ticket | None = None
    width: int = 1
    drafted: bool = False

    def read(self, rows: int) -> Received:
        """The results of the first rows. Host sync: as for `Ring.read`."""
        drafts = None if self.drafts is None else self.drafts.read(rows)
        if self.width == 1:
            [squeezed] = [None] if self.squeezed is None else self.squeezed.read(rows)
            results = StepResults(self.search.read(rows), squeezed, None if self.top is None else self.top.read(rows))
            return Received([results], [1] * rows, drafts)
        *chosen, made = self.search.read(rows)
        top = None if self.top is None else self.top.read(rows)
        places = []
        for place in range(self.width):
            tokens, logprobs, squeezed = _at(chosen, place)
            of_search = [[token_id] for token_id in tokens], logprobs
            places.append(StepResults(of_search, squeezed, None if top is None else _at(top, place)))
        return Received(places, made, drafts)


def _at(tables: Sequence[Sequence[Any]], place: int) -> list[list[Any]]:
    """The numbers of tables (rows, places) at one place."""
    return [[line[place] for line in table] for table in tables]


class Packed(tuple[Tensor, ...]):
    """Tensors that lie side by side in memory, so that one copy takes them all.

    Attributes:
        memory: all of it, (bytes,), uint8.
    """

    memory: Tensor


def packed(tensors: Sequence[Tensor]) -> Packed:
    """Copies of tensors, with the same shapes, dtypes and numbers, that lie side by side."""
    starts = [0, *accumulate(-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors)]
    memory = torch.zeros(starts[-1], dtype=torch.uint8, device=tensors[0].device)
    made = _unpack(memory, tensors)
    for new, old in zip(made, tensors, strict=True):
        new.copy_(old)
    return made


def _unpack(memory: Tensor, likes: Sequence[Tensor]) -> Packed:
    """View memory as tensors with the shapes and dtypes of others."""
    made, start = list[Tensor](), 0
    for like in likes:
        made.append(memory[start : start + like.nbytes].view(like.dtype).view(like.shape))
        start += -(-like.nbytes // _ALIGNED) * _ALIGNED
    found = Packed(made)
    found.memory = memory
    return found


class Ring:
    """A few slots, written in turn on the device and read one step later on the host.

    On CUDA a step's results are copied into a slot on the step's stream, and from there to pinned memory on another
    stream. The host reads them after the event of that copy, one step late: it never waits for the step that it has
    just launched, and nothing is allocated from step to step. On a CPU the host reads the results themselves, at once.

    Args:
        results: tensors (rows, ...) on one device, which every step changes in place.
        copies: the stream that copies to the host; None if the host reads the results themselves.

    Attributes:
        lag: how many steps the host is behind when it reads: 1 on CUDA, else 0.
    """

    def __init__(self, results: Packed, copies: torch.cuda.Stream | None) -> None:
        self._results, self._stream = results, copies
        self.lag = 0 if copies is None else 1
        if self.lag:
            self._slots = [torch.zeros_like(results.memory) for _ in range(SLOTS)]
            self._pinned = [
                _unpack(torch.zeros_like(results.memory, device="cpu").pin_memory(), results) for _ in range(SLOTS)
            ]
            self._written, self._copied = (
                [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            self._next = 0

    def send(self) -> Ticket:
        """Start to copy what a step has written; call it once after each step, on its stream. Host sync: none."""
        if self._stream is None:
            return Ticket(self, 0)
        slot = self._next
        self._next = (slot + 1) % SLOTS
        self._slots[slot].copy_(self._results.memory)  # the next step overwrites the results
        self._written[slot].record(torch.cuda.current_stream(self._results.memory.device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._written[slot])
            self._pinned[slot].memory.copy_(self._slots[slot], non_blocking=True)
            self._copied[slot].record(self._stream)
        return Ticket(self, slot)

    def read(self, ticket: Ticket, rows: int) -> list[list[Any]]:
        """The results of the first rows, as lists, one for each tensor. Host sync: a wait for the event of the copy."""
        if not self.lag:
            return [one[:rows].tolist() for one in self._results]
        self._copied[ticket.slot].synchronize()
        return [one[:rows].tolist() for one in self._pinned[ticket.slot]]
