"""What sequences begin with in common; and columns that were copied out of a row of the KV cache, to be copied into
other rows later, on any stream."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from gen.models.base import Rows

LEAST = 16  # shared tokens from which on a copy is worth it
WORTH = 256  # tokens that other prompts must save, for a prompt to be read before them


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many first tokens, or characters, two sequences share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # they are equal up to low, and not up to high
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low


@dataclass(frozen=True, eq=False)
class Columns:
    """The KV cache of a run of tokens, or the recurrent states at its end. It never changes.

    Attributes:
        tensors: from `gen.models.base.Rows.save`, (..., tokens, width); or from `Rows.save_states`.
        made: for each GPU, the event to wait for before the tensors are used.
    """

    tensors: Mapping[Hashable, Tensor]
    made: Mapping[torch.device, torch.cuda.Event]

    @classmethod
    def of(cls, tensors: Mapping[Hashable, Tensor]) -> Self:
        """Keep tensors that the work launched so far on the current streams computes. Host sync: none."""
        made = {}
        for device in {tensor.device for tensor in tensors.values()}:
            if device.type == "cuda":
                made[device] = torch.cuda.Event()  # type: ignore[no-untyped-call]
                made[device].record(torch.cuda.current_stream(device))
        return cls(tensors, made)

    @cached_property
    def sizes(self) -> Mapping[torch.device, int]:
        """How many bytes the tensors take on each device."""
        sizes: dict[torch.device, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.nbytes
        return sizes

    @property
    def nbytes(self) -> int:
        """How many bytes the tensors take."""
        return sum(self.sizes.values())

    def ready(self) -> Mapping[Hashable, Tensor]:
        """The tensors, for work on the current streams. These streams wait until they are computed. Host sync: none."""
        for device, event in self.made.items():
            torch.cuda.current_stream(device).wait_event(event)
        for tensor in self.tensors.values():
            if tensor.device.type == "cuda":  # if its memory is freed, it is not used again before that work is done
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return self.tensors

    def part(self, start: int, end: int) -> Mapping[Hashable, Tensor]:
        """Views of some of the columns, ready for work as from `ready`."""
        return {name: tensor[..., start:end, :] for name, tensor in self.ready().items()}

    def cut(self, start: int, end: int) -> "Columns":
        """Copies of some of the columns, so that the memory of the others can be freed."""
        return Columns.of({name: tensor.clone() for name, tensor in self.part(start, end).items()})


@dataclass(frozen=True, eq=False)
class Kept:
    """The beginning of a text.

    Attributes:
        runs: the columns of the text, run after run, each with how many of its first tokens belong to the text.
        states: the recurrent states after all of these tokens; None if there are none.
    """

    runs: Sequence[tuple[Columns, int]] = ()
    states: Columns | None = None


def load(rows: Rows, row: int, kept: Kept, columns: int) -> None:
    """Let a row begin with the first of the kept columns. Host sync: none."""
    start = 0
    for run, count in kept.runs:
        count = min(count, columns - start)
        if count > 0:
            rows.load(row, start, run.part(0, count))
        start += count
    if kept.states is not None and rows.recurrent:
        rows.load_states(row, kept.states.ready())
