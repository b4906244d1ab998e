"""Brings each step's small results from the device to the host while the device goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy.typing as npt
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


@dataclass(eq=False)
class Sent:
    """All that a step sends to the host, on its way there.

    Attributes:
        ring, slot: where it is.
        results: by name, as in `StepResults` and `Received`, what the step has. `search` of a wide step has tokens,
            their log-probabilities, and whether the limit has changed them, each (rows, places), and how many of them
            count.
        width: how many places it had.
        drafted: whether drafts were looked for.
    """

    ring: "Ring"
    slot: int
    results: Mapping[str, "Packed"]
    width: int
    drafted: bool

    def read(self, rows: int) -> Received:
        """The results of the first rows. Host sync: as for `Ring.read`."""
        found = self.ring.read(self, rows)
        top, drafts = found.get("top"), found.get("drafts")
        if self.width == 1:
            [squeezed] = found.get("squeezed", [None])
            return Received([StepResults(found["search"], squeezed, top)], [1] * rows, drafts)
        *chosen, made = found["search"]
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
        numbers: the same memory as arrays, if it is the host's.
    """

    memory: Tensor
    numbers: Sequence[npt.NDArray[Any]]


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
    found.numbers = [tensor.numpy() for tensor in made] if memory.is_cpu else []
    return found


class Ring:
    """A few slots, written in turn on the device and read one step later on the host.

    On CUDA a step's results are copied into a slot on the step's stream, and from there to pinned memory on another
    stream. The host reads them after the event of that copy, one step late: it never waits for the step that it has
    just launched, and nothing is allocated from step to step. On a CPU the host reads the results themselves, at once.

    Args:
        copies: the stream that copies to the host; None if the host reads the results themselves.
        like: results that every step sends; a slot has room for them, and for more as soon as a step sends more.

    Attributes:
        lag: how many steps the host is behind when it reads: 1 on CUDA, else 0.
    """

    def __init__(self, copies: torch.cuda.Stream | None, like: Packed) -> None:
        self._stream, self._next = copies, 0
        self.lag = 0 if copies is None else 1
        self._slots = [_Slot(like.memory) for _ in range(SLOTS if self.lag else 0)]

    def send(self, width: int = 1, *, drafted: bool = False, **results: Packed | None) -> Sent:
        """Start to copy what a step has written; call it once after each step, on its stream. Host sync: none.

        Args:
            width, drafted: see `Sent`.
            results: tensors (rows, ...) on one device, which every step changes in place; None for nothing.
        """
        there = {name: one for name, one in results.items() if one is not None}
        number, self._next = self._next, (self._next + 1) % SLOTS
        if self._stream is not None:
            self._slots[number].copy([*there.values()], self._stream)
        return Sent(self, number, there, width, drafted)

    def read(self, sent: Sent, rows: int) -> dict[str, list[list[Any]]]:
        """The results of the first rows by name, as lists, one for each tensor. Host sync: a wait for the event of the
        copy."""
        there = [*sent.results.values()]
        results = there if self._stream is None else self._slots[sent.slot].read(there)
        return {
            name: [numbers[:rows].tolist() for numbers in packed.numbers]
            for name, packed in zip(sent.results, results, strict=True)
        }


class _Slot:
    """Memory for the results of a step, on the device and on the host."""

    def __init__(self, like: Tensor) -> None:
        self._written, self._copied = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._make(like)

    def _make(self, like: Tensor) -> None:
        self._device, self._host = torch.zeros_like(like), torch.zeros_like(like, device="cpu").pin_memory()

    def copy(self, results: Sequence[Packed], stream: torch.cuda.Stream) -> None:
        memory = [one.memory for one in results]
        if (size := sum(map(len, memory))) > len(self._device):
            self._make(self._device.new_empty(size))
        device, host = self._device[:size], self._host[:size]
        torch.cat(memory, out=device)  # the next step overwrites the results
        self._written.record(torch.cuda.current_stream(device.device))
        with torch.cuda.stream(stream):
            stream.wait_event(self._written)
            host.copy_(device, non_blocking=True)
            self._copied.record(stream)

    def read(self, likes: Sequence[Packed]) -> list[Packed]:
        self._copied.synchronize()
        ends = [*accumulate(len(one.memory) for one in likes)]
        return [_unpack(self._host[end - len(like.memory) : end], like) for end, like in zip(ends, likes, strict=True)]
