"""Nondeterministic automata over whole numbers: code points of a text, or bytes of its UTF-8.

An edge is a range of numbers, inclusive, and where it leads. Example: "a", or one of "b" and "c" any number of times,

    nfa = Nfa()                                         0 --a--> 1
    start, end = nfa.state(), nfa.state()               0 --.--> 2
    nfa.edge(start, 97, 97, end)                        2 --b-c--> 2
    loop = nfa.after(start)                             2 --.--> 1
    nfa.edge(loop, 98, 99, loop)                        (. reads nothing)
    nfa.join(loop, end)

All edges are in one array of whole numbers: to copy an automaton into another one is one addition, and Python's garbage
collector has no objects to visit.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gen.constraints.automata.arrays import Ints
from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import MAX_STATES, TooLarge

MOST_NODES = 3 * MAX_STATES
"""The most states of an Nfa."""


class Mark(NamedTuple):
    """How much an automaton has so far: its states, and the lengths of its two arrays."""

    states: int
    edges: int
    silent: int


class Nfa:
    """States numbered from 0, with edges that read a number of a range and edges that read nothing.

    Attributes:
        states: how many there are.
    """

    def __init__(self, max_states: int = MOST_NODES) -> None:
        self.states = 0
        self._edges = array("i")  # source, low, high, target of each
        self._silent = array("i")  # source, target of each
        self._max_states = max_states

    def new(self, count: int) -> int:
        """Make this many new states; returns the first one. Raises TooLarge at the bound."""
        first = self.states
        self.states += count
        if self.states > self._max_states:
            raise TooLarge(f"more than {self._max_states} states before determinising")
        return first

    def check(self, count: int) -> None:
        """Raise TooLarge if there is no room for this many more states."""
        self.states = self.new(count)

    def state(self) -> int:
        """A new state. Raises TooLarge at the bound."""
        return self.new(1)

    def edge(self, source: int, low: int, high: int, target: int) -> None:
        """Let a state lead to another by one number of a range."""
        self._edges.extend((source, low, high, target))

    def join(self, source: int, target: int) -> None:
        """Let a state lead to another without reading."""
        self._silent.extend((source, target))

    def after(self, state: int) -> int:
        """A new state that `state` leads to without reading."""
        new = self.new(1)
        self._silent.extend((state, new))
        return new

    def reads(self, state: int, ranges: Sequence[tuple[int, int]]) -> int:
        """A new state that `state` leads to by one number of the ranges."""
        new = self.new(1)
        for low, high in ranges:
            self._edges.extend((state, low, high, new))
        return new

    def spell(self, state: int, numbers: Sequence[int]) -> int:
        """The last of new states that `state` leads to by these numbers, one after the other."""
        new = self.new(len(numbers))
        for number in numbers:
            self._edges.extend((state, number, number, new))
            state, new = new, new + 1
        return state

    def put(self, edges: Ints) -> None:
        """Add edges: (n, 4), each source, low, high, target."""
        self._edges.frombytes(np.ascontiguousarray(edges, np.int32).tobytes())

    def join_all(self, sources: Ints, target: int) -> None:
        """Let states lead to another without reading."""
        pairs = np.empty((len(sources), 2), np.int32)
        pairs[:, 0], pairs[:, 1] = sources, target
        self._silent.frombytes(pairs.tobytes())

    def insert(self, texts: Dfa, start: int) -> int:
        """Copy a deterministic automaton to stand after `start`; returns the state where its texts end."""
        again = bool((texts.edges[:, 3] == 0).any())  # texts come back to the first state, which cannot be `start` then
        begin = self.after(start) if again else start
        count = len(texts.final)
        first = self.new(count - 1)
        place = np.arange(count, dtype=np.int32) + (first - 1)
        place[0] = begin
        end = self.new(1)
        goes_on = np.zeros(count, np.bool_)
        goes_on[texts.edges[:, 0]] = True
        place[1:][texts.final[1:] & ~goes_on[1:]] = end
        edges = texts.edges.copy()
        edges[:, 0], edges[:, 3] = place.take(edges[:, 0]), place.take(edges[:, 3])
        self.put(edges)
        self.join_all(place[texts.final & (place != end)], end)
        return end

    def mark(self) -> Mark:
        """How much the automaton has so far."""
        return Mark(self.states, len(self._edges), len(self._silent))

    def copy(self, begin: Mark, end: Mark) -> int:
        """Copy what was added between two marks, whose edges lead to no earlier state; returns the states' shift."""
        shift = self.states - begin.states
        self.new(end.states - begin.states)
        for numbers, first, last, moved in (
            (self._edges, begin.edges, end.edges, (1, 0, 0, 1)),
            (self._silent, begin.silent, end.silent, (1, 1)),
        ):
            copied = np.array(numbers[first:last], np.int32).reshape(-1, len(moved))
            numbers.frombytes((copied + np.array(moved, np.int32) * np.int32(shift)).tobytes())
        return shift

    def rows(self) -> tuple[list[list[tuple[int, int, int]]], list[list[int]]]:
        """For each state, its edges, each low, high, target; and for each, the states it leads to without reading."""
        reading: list[list[tuple[int, int, int]]] = [[] for _ in range(self.states)]
        silent: list[list[int]] = [[] for _ in range(self.states)]
        edges, pairs = self.arrays()
        for source, low, high, target in edges.tolist():
            reading[source].append((low, high, target))
        for source, target in pairs.tolist():
            silent[source].append(target)
        return reading, silent

    def arrays(self) -> tuple[Ints, Ints]:
        """All edges, (n, 4), each source, low, high, target, and those that read nothing, (n, 2)."""
        edges, silent = np.array(self._edges, np.int32), np.array(self._silent, np.int32)
        return edges.reshape(-1, 4), silent.reshape(-1, 2)
