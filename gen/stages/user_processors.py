"""The user's own logits processors, run as a stage: functions of the tokens so far and the logits."""

from collections.abc import Collection, Hashable, Iterable, Sequence

import torch
from torch import Tensor

from gen.errors import ResultError
from gen.requests.processors import LogitsProcessor, takes_one_row
from gen.requests.request import Request
from gen.stages.stage import Here, Stage

_MOST_KEPT = 16
_Lists = dict[tuple[int, ...], tuple[tuple[LogitsProcessor, ...], Tensor]]  # by ids of functions; (count, 1) bool


class UserProcessors(Stage):
    """Runs each request's list of functions on all rows, once for equal lists; only the request's rows change.

    A function gets token_ids (rows, columns) int64, -1 past a row's end; lengths (rows,) int64, how many tokens there
    are, those of the prompt included; and logits (rows, vocab). It may change them in place, and returns logits of the
    same shape, on the same device. It must look at each row alone.

    Functions of transformers get input_ids (1, length) int64, the tokens of one row, and its scores (1, vocab) float32;
    they are only called for the rows of their requests. The host counts the lengths itself, so that it need not wait.

    Functions are called at every step, between its recorded parts, unless each of them has an attribute `replayable`
    that is True. Then they are recorded with the step: only the torch calls that they make are made again.

    Attributes:
        failing: the functions of the list that was running when a step failed; empty if none was.
    """

    looks_back = True

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._kept: _Lists = {}  # lists that recorded steps may use, and those that rows ask for now
        self._version = 0
        self.failing: Sequence[LogitsProcessor] = ()
        self._lengths = [0] * count  # each row's tokens, less one before `prepare`; only right for rows with functions
        self.begin()

    def begin(self) -> None:
        self._lists: _Lists = {}
        self._asked: list[tuple[int, ...]] = [()] * self._count  # by row
        self._begun = False  # whether rows have been admitted
        self._somewhere = False  # whether a list of functions may be for some of the rows only

    def key(self) -> Hashable:
        if not self._lists:
            return None
        return "functions" if self.anew else (self._version, self._somewhere, *self._lists)

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        each = (rows.stop - rows.start) // len(requests)
        asked = [_ids(request) for request in requests]
        self._asked[rows] = [ids for ids in asked for _ in range(each)]
        self._lengths[rows] = [len(read) - 1 for read in tokens for _ in range(each)]
        known = set(self._lists)
        for ids, request in zip(asked, requests, strict=True):
            if ids and ids not in self._lists:
                self._lists[ids] = self._list(request)
        for number, wanted in enumerate(asked):
            own = slice(rows.start + number * each, rows.start + (number + 1) * each)
            for ids, (_, mine) in self._lists.items():
                mine[own] = ids == wanted
        new = self._begun and known != set(self._lists)
        self._somewhere = self._somewhere or new or len(self._lists) > 1 or not all(asked)
        self._begun = True

    def retain_only(self, rows: Collection[int], requests: Collection[Request]) -> None:
        if self._lists:
            self._asked = [ids if row in rows else () for row, ids in enumerate(self._asked)]
            wanted = set(map(_ids, requests))
            self._lists = {ids: one for ids, one in self._lists.items() if ids in wanted}

    def _list(self, request: Request) -> tuple[tuple[LogitsProcessor, ...], Tensor]:
        """A request's functions and which rows they are for, none yet; the same tensor that a recorded step may use."""
        ids = _ids(request)
        if ids not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept = dict(self._lists)
                self._version += 1
            mine = torch.zeros((self._count, 1), dtype=torch.bool, device=self._device)
            self._kept[ids] = request.logits_processors, mine
        self._kept[ids][1].zero_()
        return self._kept[ids]

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """See `gen.stages.stage.Stage`. Host sync: those of the functions."""
        assert isinstance(here, slice)  # it takes no places; tells mypy
        changed = logits
        for ids, (processors, mine) in self._lists.items():
            # a clone, so that what functions change in place does not change other rows' logits
            made, self.failing = logits.clone() if self._somewhere else logits, processors
            for processor in processors:
                if takes_one_row(processor):
                    made = self._row_by_row(processor, made, here, ids, history)
                else:
                    made = _checked(processor(history.clone(), lengths.squeeze(1).clone(), made), logits)
            self.failing = ()
            changed = torch.where(mine[here], made, changed) if self._somewhere else made
        return changed

    def _row_by_row(
        self, processor: LogitsProcessor, logits: Tensor, here: slice, ids: tuple[int, ...], history: Tensor
    ) -> Tensor:
        """The logits (n, vocab), changed in the rows that asked for these functions."""
        changed = list(logits.float().unsqueeze(1))
        for place, row in enumerate(range(self._count)[here]):
            if self._asked[row] == ids:
                tokens = history[place : place + 1, : self._lengths[row]].clone()
                changed[place] = _checked(processor(tokens, changed[place]), changed[place])
        return torch.cat(changed)

    @property
    def anew(self) -> bool:
        """See `gen.stages.stage.Stage`; a recorded step cannot know row lengths, which some functions need."""
        functions = [one for processors, _ in self._lists.values() for one in processors]
        return not all(getattr(one, "replayable", False) is True and not takes_one_row(one) for one in functions)

    def prepare(self, here: slice, width: int = 1) -> None:
        """See `gen.stages.stage.Stage.prepare`; rows that go on from one another have equally many tokens."""
        for row in range(self._count)[here]:
            self._lengths[row] += 1

    def move(self, source: int, target: int) -> None:
        self._asked[target], self._asked[source] = self._asked[source], ()
        self._lengths[target] = self._lengths[source]

    def tensors(self) -> Iterable[Tensor]:
        return [mine for _, mine in self._lists.values()]


def _ids(request: Request) -> tuple[int, ...]:
    """A key that is equal for the same functions in the same order, as long as they are alive."""
    return tuple(map(id, request.logits_processors))


def _checked(made: object, logits: Tensor) -> Tensor:
    """Check what a function has made of logits.

    Raises:
        ResultError: it is no floating tensor of the same shape on the same device.
    """
    if isinstance(made, Tensor) and made.shape == logits.shape and made.device == logits.device:
        if made.is_floating_point():
            return made
        raise ResultError(f"a logits processor must return floating logits, got {tuple(made.shape)} of {made.dtype}")
    got = f"{tuple(made.shape)} on {made.device}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
    raise ResultError(f"a logits processor must return logits {tuple(logits.shape)} on {logits.device}, got {got}")
