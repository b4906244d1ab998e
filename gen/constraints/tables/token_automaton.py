"""An automaton with a vocabulary: which tokens each state allows, and which of them leave enough tokens to end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gen.constraints.automata.limits import Empty, TooLarge
from gen.constraints.automata.table import Table
from gen.constraints.tables.groups import groups_of
from gen.constraints.tables.tokens_needed import FAR, closable
from gen.constraints.tables.vocabulary import Vocabulary
from gen.devices import to_device

MOST_BYTES = 2**28
KINDS = 3
"""Rows of a state: tokens that are allowed at all, those that do not raise the tokens needed, those that lower it."""

_CHUNK = 2**24  # nodes times states that are walked at once on a device


@dataclass(frozen=True)
class Placed:
    """An automaton on a device.

    Attributes:
        after: (states, classes) int32, the states that follow states 1 and on; 0 is dead.
        needed: (states,) int32, how many tokens suffice to end.
        worst: (states,) int32, how many tokens suffice after any allowed token; 0 where that is not known yet.
        rows: (rows, bytes) uint8, distinct rows of allowed tokens, the lowest bit first.
        row_of: (states, 3) int64, the row of each kind; 0 where that is not known yet.
    """

    after: Tensor
    needed: Tensor
    worst: Tensor
    rows: Tensor
    row_of: Tensor


class _Tables(NamedTuple):
    """What a walk through all tokens reads on a device: a state is told by where its line begins in `next`.

    Attributes:
        next: where the line of the next state begins, for each state and class, int32; that of the dead state is 0.
        needed: the tokens needed, int32, as often for each state as its line is long.
        node_of: of each token.
        parents, columns: of each level the parents and the classes of the bytes that lead from there, int32.
    """

    next: Tensor
    needed: Tensor
    node_of: Tensor
    parents: Sequence[Tensor]
    columns: Sequence[Tensor]


class TokenAutomaton:
    """An automaton that is walked by tokens, kept for any number of texts, threads and devices.

    On a CPU rows are made when they are first needed, one group of states at a time; elsewhere all of them at once, on
    the device.

    Attributes:
        table: the automaton, without what the vocabulary cannot spell.
        needed: (states + 1,), how many tokens certainly suffice from each state.
        states: how many there are, without the dead one.
        least_tokens: how many tokens certainly suffice for a text.
        group_of: (states + 1,), the group of each state, whose states share their rows.

    Raises:
        Empty: no text can be spelled.
        TooLarge: its rows might need more than 256 MB.
    """

    def __init__(self, table: Table, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.table, self.needed = closable(table, vocabulary)
        if self.needed[1] >= FAR:
            raise Empty("the vocabulary has no tokens that spell such a text")
        self.group_of, self._examples = groups_of(self.table, self.needed, vocabulary.longest)
        self.row_bytes = -(-vocabulary.size // 8)
        if (bytes_ := len(self._examples) * KINDS * self.row_bytes) > MOST_BYTES:
            raise TooLarge(f"its {len(self._examples)} kinds of states need {bytes_ >> 20} MB of rows")
        self.states = len(self.table.next) - 1
        self.least_tokens = int(self.needed[1])
        self._next = np.ascontiguousarray(self.table.next).ravel().data
        self._classes = self.table.classes.tolist()
        self._complete = self.table.final & ~self.table.next.any(1)
        self._lock = Lock()  # of what is made on first need:
        self._rows: dict[int, tuple[list[npt.NDArray[np.uint8]], int]] = {}
        self._known_rows: dict[bytes, npt.NDArray[np.uint8]] = {}
        self._walked: _Tables | None = None
        self._placed: dict[torch.device, Placed] = {}

    def next_state(self, state: int, token_id: int) -> int:
        """The state after a token; 0 where it is not allowed. A token that spells nothing is never allowed."""
        spelled = self.vocabulary.tokens[token_id]
        return self._walk(state, spelled) if spelled else 0

    def follow(self, token_ids: Iterable[int]) -> int:
        """The state after tokens from the start; 0 where one of them is not allowed."""
        state = 1
        for token_id in token_ids:
            state = self.next_state(state, token_id)
        return state

    def is_complete(self, state: int) -> bool:
        """Whether a text is whole in a state and nothing can follow."""
        return bool(self._complete[state])

    def accepts(self, text: str | bytes) -> bool:
        """Whether a whole text is one of the automaton's."""
        return bool(self.table.final[self._walk(1, text.encode() if isinstance(text, str) else text)])

    def _walk(self, state: int, data: bytes) -> int:
        width = self.table.next.shape[1]
        for byte in data:
            state = self._next[state * width + self._classes[byte]]
        return state

    def rows(self, group: int) -> tuple[list[npt.NDArray[np.uint8]], int]:
        """The three rows of a group's states, each (bytes,) uint8 and kept once, and by how much any allowed token may
        raise the tokens needed; made on the CPU at the first call, which walks all tokens.
        """
        with self._lock:
            made = self._rows.get(group)
            if made is None:
                cpu = torch.device("cpu")
                example = torch.tensor(self._examples[group : group + 1], device=cpu)
                masks, raised = self._allowed(self._tables(cpu), example)
                packed = np.packbits(masks[0].numpy(), axis=-1, bitorder="little")
                rows = [self._known_rows.setdefault(row.tobytes(), row) for row in packed]
                made = self._rows[group] = rows, int(raised.item())
            return made

    def place(self, device: torch.device) -> Placed:
        """The automaton on a device, made once; on a CPU without its rows.

        Host sync: one when it is made elsewhere, for how many rows differ.
        """
        with self._lock:
            if device not in self._placed:
                with torch.inference_mode(False):
                    self._placed[device] = self._place(device)
            return self._placed[device]

    def _place(self, device: torch.device) -> Placed:
        after, needed = _put(self.table.next[1:], device), _put(self.needed[1:], device)
        if device.type == "cpu":
            rows = torch.empty((0, self.row_bytes), dtype=torch.uint8, device=device)
            row_of = torch.zeros((self.states, KINDS), dtype=torch.int64, device=device)
            return Placed(after, needed, torch.zeros_like(needed), rows, row_of)
        groups = _put(self.group_of[1:].astype(np.int64), device)
        examples = _put(self._examples, device)
        tables = self._tables(device)
        size = max(1, _CHUNK // self.vocabulary.nodes)
        parts = [self._allowed(tables, chunk) for chunk in torch.split(examples, size)]
        packed = torch.cat([_packed(masks) for masks, _ in parts]).view(-1, self.row_bytes)
        raised = torch.cat([raised for _, raised in parts])
        distinct, which = _distinct(packed)
        return Placed(
            after,
            needed,
            needed + raised.index_select(0, groups),
            distinct,
            which.view(-1, KINDS).index_select(0, groups),
        )

    def _tables(self, device: torch.device) -> _Tables:
        """What a walk through all tokens reads; kept for the CPU."""
        if device.type == "cpu" and self._walked is not None:
            return self._walked
        vocabulary = self.vocabulary.on(device)
        width = self.table.next.shape[1]
        classes = _put(self.table.classes.astype(np.int32), device)
        tables = _Tables(
            _put((self.table.next * width).astype(np.int32).ravel(), device),
            _put(self.needed.repeat(width), device),
            vocabulary.node_of,
            [parents for parents, _ in vocabulary.levels],
            [classes.index_select(0, bytes_) for _, bytes_ in vocabulary.levels],
        )
        if device.type == "cpu":
            self._walked = tables
        return tables

    def _allowed(self, tables: _Tables, states: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that states allow, of each kind, (states, 3, size) bool, and by how much any of them raises the
        tokens needed, (states,) int32. Host sync: none.
        """
        places = states * self.table.next.shape[1]
        # of one state a line: torch selects from a line quicker than from a column
        shape = () if len(states) == 1 else (len(states),)
        at = torch.zeros((self.vocabulary.nodes + 1, *shape), dtype=torch.int32, device=states.device)
        at[0] = places.view(shape)
        first = 1
        for parents, columns in zip(tables.parents, tables.columns, strict=True):
            reached = at.index_select(0, parents)
            reached += columns if not shape else columns.unsqueeze(1)
            nodes = slice(first, first + len(columns))
            at[nodes] = tables.next.index_select(0, reached.view(-1)).view_as(reached)
            first = nodes.stop
        after = at.index_select(0, tables.node_of).view(self.vocabulary.size, len(states)).T
        live = after > 0
        change = tables.needed.index_select(0, after.reshape(-1)).view_as(after)
        change -= tables.needed.index_select(0, places).unsqueeze(1)
        change.masked_fill_(~live, -int(FAR))
        masks = torch.stack((live, live & (change <= 0), live & (change < 0)), 1)
        return masks, change.amax(1).clamp(min=0)


def _packed(masks: Tensor) -> Tensor:
    """(..., size) bool -> (..., bytes) uint8, the lowest bit first. Host sync: none."""
    bits = torch.unflatten(torch.nn.functional.pad(masks, (0, -masks.shape[-1] % 8)).to(torch.uint8), -1, (-1, 8))
    packed = bits[..., 0].clone()
    for place in range(1, 8):
        packed |= bits[..., place] << place
    return packed


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that differ, and for each row which of them it is, (rows,) int64: told apart by two random sums of 64
    bits. Host sync: one.
    """
    generator = np.random.default_rng(0)
    factors = _put(generator.integers(-(2**63), 2**63 - 1, (2, rows.shape[1]), np.int64) | 1, rows.device)
    sums = torch.stack(
        [torch.cat([(part * factor).sum(1) for part in torch.split(rows, 256)]) for factor in factors], 1
    )
    names, which = torch.unique(sums, dim=0, return_inverse=True)
    first = torch.zeros(len(names), dtype=torch.int64, device=rows.device)
    first.scatter_(0, which, torch.arange(len(rows), device=rows.device))
    return rows.index_select(0, first), which


def _put(array: npt.NDArray[np.generic] | Sequence[int], device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)
