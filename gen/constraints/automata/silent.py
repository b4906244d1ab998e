"""Removes edges that read nothing where that needs no sets of states.

Example: state 1 leads to itself by a digit and, without reading, to state 2, which leads to 3 by a comma,

    1 --0-9--> 1, 1 --.--> 2, 2 --,--> 3        becomes        1 --0-9--> 1, 1 --,--> 3
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gen.constraints.automata.arrays import Bools, Ints, begins, by_number, overlapping, ranges

_MOST_EDGES = 2_000_000


class Through(NamedTuple):
    """States that lead to another state without reading, and can have copies of its edges instead.

    Attributes:
        states: (n,) their numbers.
        closures: what each leads to without reading.
        edges: (m, 4) the copied edges.
    """

    states: list[int]
    closures: list[frozenset[int]]
    edges: Ints


def through(edges: Ints, silent: Ints, closure: Callable[[int], frozenset[int]], count: int) -> Through:
    """States that read, lead to one other without reading, and stay deterministic with the edges of that one.

    Args:
        edges: (n, 4), sorted.
        silent: (n, 2), those that read nothing.
        closure: the states that a state leads to without reading, but only those that read or accept.
    """
    begin = begins(edges[:, 0], count)
    once: Bools = (np.bincount(silent[:, 0], minlength=count) == 1) & (np.diff(begin) > 0)
    once[overlapping(edges)] = False
    pairs = silent[once[silent[:, 0]]]
    others, which = np.unique(pairs[:, 1], return_inverse=True)
    closures = [closure(other) for other in others.tolist()]
    members = np.array([one for members in closures for one in members], np.int64)
    sizes = np.array([*map(len, closures)], np.int64)
    ends = np.cumsum(sizes)[which]
    if not len(pairs) or int(sizes[which].sum()) > _MOST_EDGES:
        return Through([], [], edges[:0])
    reached = members[ranges(ends - sizes[which], ends)]
    state = np.repeat(pairs[:, 0], sizes[which])
    reads = begin[reached + 1] - begin[reached]
    if int(reads.sum()) > _MOST_EDGES:
        return Through([], [], edges[:0])
    more = edges[ranges(begin[reached], begin[reached + 1])]
    more[:, 0] = np.repeat(state, reads)
    both = np.concatenate((edges[once[edges[:, 0]]], more))
    once[overlapping(both[by_number(both)])] = False
    found = once[pairs[:, 0]]
    places = which[found].tolist()
    return Through(pairs[found, 0].tolist(), [closures[place] for place in places], more[once[more[:, 0]]])


def aliases(edges: Ints, silent: Ints, accept: int, count: int) -> Ints:
    """For each state, the one that stands for it: itself, or the end of a path that reads nothing and has no forks."""
    ways = np.bincount(silent[:, 0], minlength=count)
    ways[edges[:, 0]] = 2
    ways[accept] = 2
    alias = np.arange(count, dtype=np.int32)
    passing = ways[silent[:, 0]] == 1
    alias[silent[passing, 0]] = silent[passing, 1]
    for _ in range(count.bit_length()):
        farther = alias[alias]
        if (farther == alias).all():
            return alias
        alias = farther
    around: Bools = ways[alias] == 1  # a cycle, which leads nowhere
    return np.where(around, np.arange(count, dtype=np.int32), alias)
