"""Edges as arrays: where the edges of each state begin, which ones overlap, and ranges of numbers as one array.

Example: three edges of the states [0, 0, 2] begin at [0, 2, 2, 3]; the ranges from [5, 0] to below [7, 1] are the
numbers 5, 6 and 0. Rows are chosen with `take` and `compress`: an index in brackets takes ten times as long.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def by_number(edges: Ints) -> Ints:
    """(n, 4) edges, each source, low, high, target, sorted by source and low."""
    return edges.take(np.argsort((edges[:, 0].astype(np.int64) << 32) + edges[:, 1], kind="stable"), 0)


def moved(edges: Ints, by: int) -> Ints:
    """Edges between states whose numbers are so much larger."""
    out = edges.copy()
    out[:, [0, 3]] += by
    return out


def overlapping(edges: Ints) -> Ints:
    """The states that have two edges which share a number; the edges must be sorted."""
    before, after = edges[:-1], edges[1:]
    found: Ints = before[(before[:, 0] == after[:, 0]) & (after[:, 1] <= before[:, 2]), 0]
    return found


def begins(states: Ints | Longs, count: int) -> Longs:
    """Where each of `count` states begins in a sorted array of states, (count + 1,)."""
    out = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(states, minlength=count), out=out[1:])
    return out


def ranges(first: Longs, end: Longs) -> Longs:
    """All numbers from first[0] below end[0], then those from first[1] below end[1], and so on."""
    counts = end - first
    return np.repeat(end - np.cumsum(counts), counts) + np.arange(int(counts.sum()))


def adjacency(sources: Ints, targets: Ints, count: int) -> tuple[list[int], list[int]]:
    """Where the targets of each state begin, (count + 1,), and the targets in the order of their sources."""
    short = sources.astype(np.min_scalar_type(count))  # NumPy sorts numbers of 16 bits in a third of the time
    return begins(sources, count).tolist(), targets.take(np.argsort(short, kind="stable")).tolist()
