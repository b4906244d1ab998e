"""An automaton on a device with all of its rows, which the device makes, chunk by chunk of states.

All states of a chunk go through the trie of the vocabulary together, level by level. Example, the tokens a and
ab: at[0] holds the states, at[1] = next[at[0] + class of "a"], at[2] = next[at[1] + class of "b"]; a token is allowed
where its node does not hold 0, the dead state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gen.constraints.automata.arrays import Ints
from gen.constraints.automata.dfa import FAR, Table
from gen.constraints.automata.limits import TooLarge
from gen.constraints.tables.vocabulary import Vocabulary, put

KINDS = 3
"""Rows of a state: tokens that are allowed at all, those that do not raise the tokens needed, those that lower them."""

MOST_BYTES = 2**26
"""How many bytes the distinct rows may have."""

_CHUNK = 2**24  # nodes times states that are walked at once on a device


@dataclass(frozen=True)
class Placed:
    """An automaton on a device.

    Attributes:
        after: (states, classes) int32, the states after state 1 and those that follow it; 0 is dead.
        needed: (states,) int32, how many tokens suffice to end.
        worst: (states,) int32, how many tokens suffice after any allowed token; 0 if not known yet.
        rows: (rows, bytes) uint8, distinct rows of allowed tokens, the lowest bit first.
        row_of: (states, 3) int64, the row of each kind; 0 if not known yet.
    """

    after: Tensor
    needed: Tensor
    worst: Tensor
    rows: Tensor
    row_of: Tensor


class _Tables(NamedTuple):
    """The tables on a device for a walk through all tokens. A state's number is where its line begins in `next`.

    Attributes:
        next: where the line of the next state begins, for each state and class, int32; that of the dead state is 0.
        needed: the tokens needed in each state, int32.
        leads: those needed after a token that leads there, int32, repeated for each place of a state's line.
        node_of: the node of each token.
        parents, columns: for each level, the parents and the classes of the bytes after them, int32.
        width: how long a line is.
    """

    next: Tensor
    needed: Tensor
    leads: Tensor
    node_of: Tensor
    parents: Sequence[Tensor]
    columns: Sequence[Tensor]
    width: int


def placed(
    table: Table,
    needed: Ints,
    leads: Ints,
    groups: Ints,
    examples: Ints,
    vocabulary: Vocabulary,
    device: torch.device,
) -> Placed:
    """Put an automaton on a device; on a CPU without its rows.

    Args:
        needed, groups, examples: as `tokens_needed.closable` and `groups.groups_of` give them.
        leads: as in `TokenAutomaton`.
    Raises:
        TooLarge: on another device, the distinct rows have more than 64 MB.
    Host sync: one on other devices, to count the distinct rows.
    """
    after, tokens = put(table.next[1:], device), put(needed[1:], device)
    row_bytes, states = -(-vocabulary.size // 8), len(after)
    if device.type == "cpu":
        rows = torch.empty((0, row_bytes), dtype=torch.uint8, device=device)
        row_of = torch.zeros((states, KINDS), dtype=torch.int64, device=device)
        return Placed(after, tokens, torch.zeros_like(tokens), rows, row_of)
    group_of = put(groups[1:].astype(np.int64), device)
    tables = _tables(table, needed, leads, vocabulary, device)
    size = max(1, _CHUNK // vocabulary.nodes)
    there = put(examples, device)
    factors = _factors(row_bytes, device)
    sums, raised = [], []
    for chunk in torch.split(there, size):  # the rows of all groups together may need gigabytes, so none stays here
        masks, more = _allowed(tables, chunk)
        sums.append(_sums(_packed(masks).view(-1, row_bytes), factors))
        raised.append(more)
    which, first = _distinct(torch.cat(sums))
    if (bytes_ := len(first) * row_bytes) > MOST_BYTES:
        raise TooLarge(f"its {len(first)} kinds of rows need {bytes_ >> 20} MB on {device}")
    rows = torch.cat(
        [
            _packed(_allowed(tables, there.index_select(0, some // KINDS))[0])
            .view(-1, row_bytes)
            .index_select(0, some % KINDS + torch.arange(0, KINDS * len(some), KINDS, device=device))
            for some in torch.split(first, size)
        ]
    )
    worst = tokens + torch.cat(raised).index_select(0, group_of)
    return Placed(after, tokens, worst, rows, which.view(-1, KINDS).index_select(0, group_of))


def _tables(table: Table, needed: Ints, leads: Ints, vocabulary: Vocabulary, device: torch.device) -> _Tables:
    """The tables for a walk through all tokens."""
    there = vocabulary.on(device)
    width = table.next.shape[1]
    classes = put(table.classes.astype(np.int32), device)
    return _Tables(
        put((table.next * width).astype(np.int32).ravel(), device),
        put(needed, device),
        put(leads.repeat(width), device),
        there.node_of,
        [parents for parents, _ in there.levels],
        [classes.index_select(0, bytes_) for _, bytes_ in there.levels],
        width,
    )


def _allowed(tables: _Tables, states: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of each kind that states allow, (states, 3, size) bool, and by how much any of these tokens may raise
    the tokens needed, (states,) int32. Host sync: none.
    """
    places = states * tables.width
    nodes = 1 + sum(map(len, tables.parents))
    at = torch.zeros((nodes + 1, len(states)), dtype=torch.int32, device=states.device)
    at[0] = places
    first = 1
    for parents, columns in zip(tables.parents, tables.columns, strict=True):
        reached = at.index_select(0, parents) + columns.unsqueeze(1)
        at[first : first + len(columns)] = tables.next.index_select(0, reached.view(-1)).view_as(reached)
        first += len(columns)
    after = at.index_select(0, tables.node_of).T
    live = after > 0
    change = tables.leads.index_select(0, after.reshape(-1)).view_as(after)
    change -= tables.needed.index_select(0, states).unsqueeze(1)
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


def _factors(row_bytes: int, device: torch.device) -> Tensor:
    """(2, bytes) int64, odd: two random weights for each byte of a row."""
    generator = np.random.default_rng(0)
    return put(generator.integers(-(2**63), 2**63 - 1, (2, row_bytes), np.int64) | 1, device)


def _sums(rows: Tensor, factors: Tensor) -> Tensor:
    """(rows, 2) int64, which are equal for equal rows, and for other ones by a chance of 2 ** -100. Host sync: none."""
    parts = [torch.stack([(part * factor).sum(1) for factor in factors], 1) for part in torch.split(rows, 256)]
    return torch.cat(parts)


def _distinct(sums: Tensor) -> tuple[Tensor, Tensor]:
    """For each row which of the distinct ones it is, (rows,) int64, and for each of these one row, (distinct,) int64.
    Host sync: one.
    """
    names, which = torch.unique(sums, dim=0, return_inverse=True)
    first = torch.zeros(len(names), dtype=torch.int64, device=sums.device)
    first.scatter_(0, which, torch.arange(len(sums), device=sums.device))
    return which, first
