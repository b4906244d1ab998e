"""The user's own logits processors, run as a stage: functions of the tokens so far and the logits."""

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from gen.errors import ArgumentError
from gen.requests import LogitsProcessor, Request


class UserProcessors:
    """Runs each request's list of functions on all rows, once for equal lists, and keeps its rows' logits.

    A function gets token_ids (rows, columns) int64, -1 past a row's end; lengths (rows,) int64, how many there are,
    the prompt's among them; and logits (rows, vocab). It returns logits of the same shape, on the same device, and
    must look at each row alone.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self.begin()

    def begin(self) -> None:
        """See `gen.loop.row_set.Stage.begin`."""
        self._lists: dict[tuple[int, ...], tuple[tuple[LogitsProcessor, ...], Tensor]] = {}  # by id; (count, 1) bool
        self._begun = False  # whether rows have been admitted
        self._somewhere = False  # whether some of them did not

    def key(self) -> Hashable:
        """See `gen.loop.row_set.Stage.key`."""
        return (self._somewhere, *self._lists) if self._lists else None

    def admit(self, rows: slice, requests: Sequence[Request]) -> None:
        """See `gen.loop.row_set.Stage.admit`."""
        each = (rows.stop - rows.start) // len(requests)
        asked = [tuple(map(id, request.logits_processors)) for request in requests]
        known = set(self._lists)
        for ids, request in zip(asked, requests, strict=True):
            if ids and ids not in self._lists:
                mine = torch.zeros((self._count, 1), dtype=torch.bool, device=self._device)
                self._lists[ids] = request.logits_processors, mine
        for number, wanted in enumerate(asked):
            own = slice(rows.start + number * each, rows.start + (number + 1) * each)
            for ids, (_, mine) in self._lists.items():
                mine[own] = ids == wanted
        new = self._begun and known != set(self._lists)
        self._somewhere = self._somewhere or new or len(self._lists) > 1 or not all(asked)
        self._begun = True

    def __call__(self, logits: Tensor, here: slice, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """See `gen.loop.row_set.Stage`. Host sync: what the functions do."""
        changed = logits
        for processors, mine in self._lists.values():
            made = logits
            for processor in processors:
                made = _checked(processor(history, lengths.squeeze(1), made), logits)
            changed = torch.where(mine[here], made, changed) if self._somewhere else made
        return changed

    def tensors(self) -> Iterable[Tensor]:
        """See `gen.loop.row_set.Stage.tensors`."""
        return [mine for _, mine in self._lists.values()]


def _checked(made: object, logits: Tensor) -> Tensor:
    """What a function has made of logits.

    Raises:
        ArgumentError: it cannot be their logits.
    """
    if isinstance(made, Tensor) and made.shape == logits.shape and made.device == logits.device:
        return made
    got = f"{tuple(made.shape)} on {made.device}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
    raise ArgumentError(f"a logits processor must return logits {tuple(logits.shape)} on {logits.device}, got {got}")
