"""Automata over whole numbers (code points of a text, bytes of its UTF-8): nondeterministic, deterministic, tables.

An edge is a range of numbers, inclusive, and where it leads. Example: "a", or one of "b" and "c" any number of times,

    nfa = Nfa()                                        state 0 --a--> 1
    start, end = nfa.state(), nfa.state()              state 0 --.--> 2, 2 --b-c--> 2, 2 --.--> 1
    ...                                                (. reads nothing)
    determinise(nfa, start, end)                       sets of states: {0, 2, 1}, {1}, {2, 1}
    table(...)                                         classes: a, b-c and the rest; next (4, 3), state 0 is dead

`determinise` splits ranges only where they overlap, so that what is nearly deterministic costs little. Everything has a
bound: states, members of all sets of states together (memory) and a deadline (time).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Edge = tuple[int, int, int]
"""Lowest and highest number, inclusive, and the state that it leads to."""

MAX_STATES = 30_000
SECONDS = 2.0
_MEMBERS = 2_000_000  # of all sets of states together: some 100 MB
_BETWEEN_LOOKS = 20_000  # edges between two looks at the clock


class Unsupported(Exception):
    """The automaton cannot say this; another engine may. The message names keyword and path."""


class TooLarge(Exception):
    """The automaton has too many states, or takes too long to make; another engine may do."""


class Empty(Exception):
    """No text at all meets the constraint: an error, never a reason to fall back."""


def deadline_in(seconds: float = SECONDS) -> float:
    """When this thread will have computed for `seconds` more: what else the machine does changes no result."""
    return time.thread_time() + seconds


def check_deadline(deadline: float, what: str = "making the automaton") -> None:
    """Raise TooLarge if the deadline is over."""
    if time.thread_time() > deadline:
        raise TooLarge(f"{what} takes too long")


class Nfa:
    """States numbered from 0, with edges that read a number of a range and edges that read nothing.

    Attributes:
        silent: for each state those that it leads to without reading.
        edges: for each state its edges, in any order, overlapping or not.
    """

    def __init__(self, max_states: int = 12 * MAX_STATES) -> None:
        self.silent: list[list[int]] = []
        self.edges: list[list[Edge]] = []
        self._max_states = max_states

    def state(self) -> int:
        """A new state. Raises TooLarge at the bound."""
        if len(self.edges) >= self._max_states:
            raise TooLarge(f"more than {self._max_states} states before determinising")
        self.silent.append([])
        self.edges.append([])
        return len(self.edges) - 1

    def after(self, state: int) -> int:
        """A new state that `state` leads to without reading."""
        new = self.state()
        self.silent[state].append(new)
        return new

    def reads(self, state: int, ranges: Sequence[tuple[int, int]]) -> int:
        """A new state that `state` leads to by one number of the ranges."""
        new = self.state()
        self.edges[state] += [(low, high, new) for low, high in ranges]
        return new


@dataclass
class Sparse:
    """A deterministic automaton; the start is state 0, and a final state can be reached from each state.

    Attributes:
        edges: for each state its edges, sorted and disjoint.
        final: for each state whether a text may end there.
    """

    edges: list[list[Edge]]
    final: list[bool]


class Table(NamedTuple):
    """A deterministic automaton over bytes; state 0 is dead, 1 is the start.

    Attributes:
        next: (states + 1, classes) int32, the state after a byte of a class; 0 where there is none.
        classes: (256,) uint8, the class of each byte.
        final: (states + 1,) bool, whether a text may end there; False for state 0.
    """

    next: npt.NDArray[np.int32]
    classes: npt.NDArray[np.uint8]
    final: npt.NDArray[np.bool_]

    def accepts(self, data: bytes) -> bool:
        """Whether the whole of `data` is a text of the automaton."""
        state = 1
        for byte in data:
            state = int(self.next[state, self.classes[byte]])
        return bool(self.final[state])


@dataclass
class _Sets:
    """The sets of states of an Nfa that are states of the deterministic automaton, numbered in the order they came."""

    nfa: Nfa
    accept: int
    max_states: int
    deadline: float
    order: list[frozenset[int]] = field(default_factory=list)
    _number: dict[frozenset[int], int] = field(default_factory=dict)
    _closures: dict[int, frozenset[int]] = field(default_factory=dict)
    _members: int = 0
    _work: int = 0

    def number(self, members: frozenset[int]) -> int:
        number = self._number.get(members)
        if number is None:
            number = self._number[members] = len(self.order)
            self.order.append(members)
            if len(self.order) > self.max_states:
                raise TooLarge(f"more than {self.max_states} states")
            self._count(len(members))
        return number

    def closure(self, state: int) -> frozenset[int]:
        """What can be reached without reading, of that only what reads or accepts."""
        known = self._closures.get(state)
        if known is None:
            silent, edges = self.nfa.silent, self.nfa.edges
            if not silent[state]:
                self._closures[state] = known = frozenset((state,))
                return known
            seen, todo = {state}, [state]
            while todo:
                new = [one for one in silent[todo.pop()] if one not in seen]
                seen.update(new)
                todo += new
            known = frozenset(one for one in seen if edges[one] or one == self.accept)
            self._closures[state] = known
            self._count(len(known))
            self.look(len(seen))
        return known

    def look(self, work: int) -> None:
        """Look at the clock once in a while."""
        self._work += work
        if self._work > _BETWEEN_LOOKS:
            self._work = 0
            check_deadline(self.deadline, f"an automaton of {len(self.order)} states and more")

    def _count(self, members: int) -> None:
        self._members += members
        if self._members > _MEMBERS:
            raise TooLarge(f"more than {_MEMBERS} states in {len(self.order)} sets of states")


def determinise(
    nfa: Nfa, start: int, accept: int, max_states: int = MAX_STATES, deadline: float | None = None
) -> Sparse:
    """The deterministic automaton of the texts that lead from `start` to `accept`, by sets of states.

    Raises:
        TooLarge: more than max_states states, or past the deadline (of `deadline_in`; None is 2 seconds from now).
        Empty: there is no such text.
    """
    sets = _Sets(nfa, accept, max_states, deadline_in() if deadline is None else deadline)
    sets.number(sets.closure(start))
    rows: list[list[Edge]] = []
    edges = nfa.edges
    while len(rows) < len(sets.order):
        here = sets.order[len(rows)]
        leaving = sorted([edge for state in here for edge in edges[state]])
        sets.look(len(leaving) + 1)
        overlap = len(leaving) > 1 and any(after[0] <= before[1] for before, after in pairwise(leaving))
        rows.append(_split(leaving, sets) if overlap else _as_they_are(leaving, sets))
    found = trimmed(rows, [accept in members for members in sets.order])
    if found is None:
        raise Empty("no text meets this")
    return found


def _as_they_are(leaving: list[Edge], sets: _Sets) -> list[Edge]:
    row: list[Edge] = []
    for low, high, target in leaving:
        _append(row, low, high, sets.number(sets.closure(target)))
    return row


def _split(leaving: list[Edge], sets: _Sets) -> list[Edge]:
    """Cut overlapping edges where one begins or ends; a piece leads to all that its edges lead to."""
    cuts = sorted({low for low, _, _ in leaving} | {high + 1 for _, high, _ in leaving})
    place = {cut: index for index, cut in enumerate(cuts)}
    targets: list[list[int]] = [[] for _ in cuts]
    for low, high, target in leaving:
        sets.look(place[high + 1] - place[low])
        for index in range(place[low], place[high + 1]):
            targets[index].append(target)
    row: list[Edge] = []
    known: dict[tuple[int, ...], int] = {}
    for index, reached in enumerate(targets):
        if reached:
            key = tuple(reached)
            if key not in known:
                known[key] = sets.number(frozenset().union(*map(sets.closure, key)))
            _append(row, cuts[index], cuts[index + 1] - 1, known[key])
    return row


def _append(row: list[Edge], low: int, high: int, target: int) -> None:
    """Append an edge; it becomes one with the last where they touch and lead to one state."""
    if row and row[-1][2] == target and row[-1][1] + 1 == low:
        row[-1] = (row[-1][0], high, target)
    else:
        row.append((low, high, target))


def trimmed(edges: list[list[Edge]], final: list[bool]) -> Sparse | None:
    """The automaton with those states alone that 0 leads to and that lead to a final one; None if 0 is none of them."""
    before: list[list[int]] = [[] for _ in edges]
    for state, row in enumerate(edges):
        for _, _, target in row:
            before[target].append(state)
    live = list(final)
    todo = [state for state, ends in enumerate(final) if ends]
    while todo:
        for state in before[todo.pop()]:
            if not live[state]:
                live[state] = True
                todo.append(state)
    if not live[0]:
        return None
    order = [0]
    number = {0: 0}
    for state in order:
        for _, _, target in edges[state]:
            if live[target] and target not in number:
                number[target] = len(order)
                order.append(target)
    kept = [[(low, high, number[target]) for low, high, target in edges[state] if live[target]] for state in order]
    return Sparse(kept, [final[state] for state in order])


def table(automaton: Sparse) -> Table:
    """The automaton as a table: one column for all bytes that no state tells apart."""
    flat = [
        (state + 1, low, high + 1, target + 1) for state, row in enumerate(automaton.edges) for low, high, target in row
    ]
    source, low, end, target = np.array(flat, np.int64).reshape(-1, 4).T
    cuts = np.unique(np.concatenate((np.array([0, 256]), low, end)))
    width = len(cuts) - 1
    first = np.searchsorted(cuts, low)
    count = np.searchsorted(cuts, end) - first
    after = np.zeros((len(automaton.edges) + 1) * width, np.int32)
    runs = np.repeat(source * width + first - (np.cumsum(count) - count), count)
    after[runs + np.arange(count.sum())] = np.repeat(target, count)
    columns = np.ascontiguousarray(after.reshape(-1, width).T)
    number: dict[bytes, int] = {}
    which = np.array([number.setdefault(column.tobytes(), len(number)) for column in columns])
    distinct = columns[np.unique(which, return_index=True)[1]]
    classes = which[np.repeat(np.arange(width), np.diff(cuts))]
    return Table(np.ascontiguousarray(distinct.T), classes.astype(np.uint8), np.array([False, *automaton.final]))
