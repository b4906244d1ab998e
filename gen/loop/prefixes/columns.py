"""What was copied out of a row of the cache, to be copied into others later, on whatever streams these are."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from gen.models.base import Rows, SavesColumns, SavesStates, SharesColumns


@dataclass(frozen=True, eq=False)
class Columns:
    """What the cache has for a run of tokens, or recurrent states at its end. It never changes.

    Attributes:
        tensors: as of `gen.models.base.SavesColumns.save`: (..., tokens, width); or as of `SavesStates.save_states`.
        made: on each GPU what to wait for before they are used.
    """

    tensors: Mapping[Hashable, Tensor]
    made: Mapping[torch.device, torch.cuda.Event]

    @classmethod
    def of(cls, tensors: Mapping[Hashable, Tensor]) -> Self:
        """Keep tensors that the last launches on the current streams make. Host sync: none."""
        made = {}
        for device in {tensor.device for tensor in tensors.values()}:
            if device.type == "cuda":
                made[device] = torch.cuda.Event()  # type: ignore[no-untyped-call]
                made[device].record(torch.cuda.current_stream(device))
        return cls(tensors, made)

    @cached_property
    def sizes(self) -> Mapping[torch.device, int]:
        """How many bytes they take of each device."""
        sizes: dict[torch.device, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.nbytes
        return sizes

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return sum(self.sizes.values())

    def ready(self) -> Mapping[Hashable, Tensor]:
        """The tensors, for work on the current streams, which wait until they are there. Host sync: none."""
        for device, event in self.made.items():
            torch.cuda.current_stream(device).wait_event(event)
        for tensor in self.tensors.values():
            if tensor.device.type == "cuda":  # memory that is given back meanwhile is not used again before that work
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return self.tensors

    def part(self, start: int, end: int) -> Mapping[Hashable, Tensor]:
        """Views of some of the columns, as `ready`."""
        return {name: tensor[..., start:end, :] for name, tensor in self.ready().items()}

    def cut(self, start: int, end: int) -> "Columns":
        """Copies of some of them, so that the memory of the others can be given back."""
        return Columns.of({name: tensor.clone() for name, tensor in self.part(start, end).items()})


@dataclass(frozen=True, eq=False)
class Kept:
    """The beginning of a text.

    Attributes:
        runs: one after the other, each with how many of its first tokens count.
        states: the recurrent states after all of them; None where there are none.
    """

    runs: Sequence[tuple[Columns, int]] = ()
    states: Columns | None = None


def share(rows: Rows, source: int, targets: slice, columns: int) -> None:
    """Let rows begin with the first columns of another one, which does not change these any more. Host sync: none."""
    (rows.share if isinstance(rows, SharesColumns) else rows.copy)(source, targets, columns)


def load(rows: SavesColumns, row: int, kept: Kept, columns: int) -> None:
    """Let a row begin with the first columns of what was kept. Host sync: none."""
    start = 0
    for run, count in kept.runs:
        count = min(count, columns - start)
        if count > 0:
            rows.load(row, start, run.part(0, count))
        start += count
    if kept.states is not None and isinstance(rows, SavesStates):
        rows.load_states(row, kept.states.ready())
