"""Deterministic automata over whole numbers, as one array of edges; those over bytes also as tables.

Example, the texts "a" and "b...b": state 0 leads to 1 by "a" and to 2 by "b", and 2 to itself by "b",

    edges [[0, 97, 97, 1], [0, 98, 98, 2], [2, 98, 98, 2]]      final [False, True, True]
"""

from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.arrays import Bools, Ints, adjacency, begins, by_number, ranges

FAR = np.int32(1 << 20)
"""The distance of a state from which no text can end, and the tokens that it needs."""

_BEYOND = 2**31  # more than any number of an edge


class Dfa:
    """A deterministic automaton; the start is state 0, and a final state can be reached from each state.

    Args:
        edges: in any order; touching edges between the same two states become one.

    Attributes:
        edges: (n, 4), each source, low, high, target, sorted; those of a state are disjoint.
        final: (states,) whether a text may end there.
        distance: as `distances` gives it, where it is known.
    """

    def __init__(self, edges: Ints, final: Bools, distance: Ints | None = None) -> None:
        self.edges, self.final, self.distance = joined(edges), final, distance

    @cached_property
    def lines(self) -> list[list[tuple[int, int, int]]]:
        """For each state, its edges as low, high and target."""
        out: list[list[tuple[int, int, int]]] = [[] for _ in self.final]
        for source, low, high, target in self.edges.tolist():
            out[source].append((low, high, target))
        return out

    def after(self, state: int, code: int) -> int:
        """The state after a number; -1 where there is none."""
        line = self.lines[state]
        place = bisect_right(line, (code, _BEYOND)) - 1
        return line[place][2] if place >= 0 and code <= line[place][1] else -1

    def holds(self, text: str) -> bool:
        """Whether an automaton over code points accepts a text."""
        state = 0
        for code in map(ord, text):
            state = self.after(state, code)
            if state < 0:
                return False
        return bool(self.final[state])


def joined(edges: Ints) -> Ints:
    """Edges sorted by state and number; touching edges between the same two states become one."""
    if len(edges) < 2:
        return edges
    edges = by_number(edges)
    before, after = edges[:-1], edges[1:]
    new = (before[:, 0] != after[:, 0]) | (before[:, 3] != after[:, 3]) | (before[:, 2] + 1 != after[:, 1])
    if new.all():
        return edges
    first = np.flatnonzero(np.concatenate(([True], new)))
    last = np.append(first[1:], len(edges)) - 1
    out = edges.take(first, 0)
    out[:, 2] = edges[:, 2].take(last)
    return out


def distances(edges: Ints, final: Bools) -> Ints:
    """(states,): the fewest edges from each state to a final one; `FAR` where there is no way."""
    first, before = adjacency(edges[:, 3], edges[:, 0], len(final))
    new: list[bool] = (~final).tolist()
    order: list[int] = np.flatnonzero(final).tolist()
    ends = [0]  # in the order, of the states of each distance
    while ends[-1] < len(order):  # breadth first, backwards
        ends.append(len(order))
        for state in order[ends[-2] :]:
            for source in before[first[state] : first[state + 1]]:
                if new[source]:
                    new[source] = False
                    order.append(source)
    distance = np.full(len(final), FAR)
    distance[order] = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    return distance


def trimmed(edges: Ints, final: Bools) -> Dfa | None:
    """The automaton with only the states that lead to a final one; None if 0 does not.

    Args:
        edges, final: as for `Dfa`; 0 leads to all states.
    """
    distance = distances(edges, final)
    live = distance < FAR
    if not live[0]:
        return None
    if live.all():
        return Dfa(edges, final, distance)
    number = (np.cumsum(live) - 1).astype(np.int32)
    edges = edges.compress(live[edges[:, 3]] & live[edges[:, 0]], 0)
    edges[:, 0], edges[:, 3] = number[edges[:, 0]], number[edges[:, 3]]
    return Dfa(edges, final[live], distance[live])


class Table(NamedTuple):
    """A deterministic automaton over bytes, with one column for all bytes that no state tells apart; state 0 is dead, 1
    is the start.

    Example, the text "a": `next` is [[0, 0], [2, 0], [0, 0]] for the dead state, the start and the end; `classes` is 0
    for "a" and 1 for every other byte; `final` is [False, False, True].

    Attributes:
        next: (states + 1, classes) int32, the state after a byte of a class; 0 where there is none.
        classes: (256,) uint8, the class of each byte.
        final: (states + 1,) bool, whether a text may end there; False for state 0.
        edges: those of the `Dfa` that it is made of, whose states have numbers one less.
        depth: how deep values of any type nest at least in its texts; None if they have none.
        distance: that of the `Dfa`.
    """

    next: Ints
    classes: npt.NDArray[np.uint8]
    final: Bools
    edges: Ints
    depth: int | None = None
    distance: Ints | None = None

    def accepts(self, data: bytes) -> bool:
        """Whether the whole of `data` is a text of the automaton."""
        state = 1
        for byte in data:
            state = int(self.next[state, self.classes[byte]])
        return bool(self.final[state])


def table(automaton: Dfa) -> Table:
    """The automaton as a table."""
    source, low, end, target = (automaton.edges + np.array([1, 0, 1, 1], np.int32)).T.astype(np.int64, order="C")
    cut = np.zeros(257, np.bool_)
    cut[0] = cut[low] = cut[end] = cut[256] = True
    place = np.cumsum(cut) - 1  # for each byte, the number of its piece between two cuts
    first, beyond = place.take(low), place.take(end)
    pieces = ranges(first, beyond)
    ways = np.repeat((source << 32) + target, beyond - first).take(np.argsort(pieces.astype(np.uint8), kind="stable"))
    number: dict[bytes, int] = {}  # the class of all pieces that lead from the same states to the same states
    begin = begins(pieces, int(place[256])).tolist()
    which = np.array([number.setdefault(ways[one:other].tobytes(), len(number)) for one, other in pairwise(begin)])
    after = np.zeros((len(automaton.final) + 1, len(number)), np.int32)
    of_classes = np.frombuffer(b"".join(number), np.int64)
    sizes = [len(one) // 8 for one in number]
    after[of_classes >> 32, np.repeat(np.arange(len(number)), sizes)] = of_classes.astype(np.int32)  # the lower half
    final = np.concatenate((np.zeros(1, np.bool_), automaton.final))
    return Table(after, which[place[:256]].astype(np.uint8), final, automaton.edges, distance=automaton.distance)
