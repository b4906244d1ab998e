"""States that allow the same tokens, found before any token is looked at: they share the rows of allowed tokens.

Two states are of one group where they agree on every string of at most as many bytes as a token has: whether it can
follow, and by how much it changes the number of tokens that are needed. A text of up to 1024 characters has 1026
states and 35 groups: one for each that is so near to the end that a token might not fit, and one for all others.

Example, the texts "abc" and "xbd", with the states 1 --a--> 2 --b--> 3 --c--> 4 and 1 --x--> 5 --b--> 6 --d--> 7. By
strings of one byte the groups are {1}, {2, 5}, {3}, {6} and {4, 7}; by strings of two bytes {2, 5} falls apart, since
"bc" can follow 2 alone.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.arrays import Bools, Ints, Longs
from gen.constraints.automata.table import Table
from gen.constraints.tables.runs import Runs, runs_of
from gen.constraints.tables.tokens_needed import FAR

_Sums = npt.NDArray[np.uint64]


def groups_of(table: Table, needed: Ints, depth: int) -> tuple[Ints, Ints]:
    """The group of each state, and a state of each group.

    Args:
        table, needed: as `tokens_needed.closable` gives them.
        depth: how many bytes a token has at most.
    Returns:
        (states + 1,), group 0 being that of the dead state alone, and (groups,).
    """
    count, classes = table.next.shape
    runs = runs_of(table.next)
    lines = _Lines(runs, classes, 2 * count)
    groups = np.ones(count, np.int64)  # numbers of no meaning; what falls apart gets new ones
    groups[0] = 0
    sizes, last_part = np.bincount(groups, minlength=2 * count), np.empty(2 * count, np.int64)
    known = 2
    change = needed[runs.target].astype(np.int64) - needed[runs.source] + int(FAR)  # never 0, which stands for no run
    states = np.arange(1, count)
    for length in range(1, depth + 1):  # after it states of a group agree on strings of at most this length
        mine = groups[states]
        places = runs.of(states)
        seen = change[places].astype(np.uint64) if length == 1 else lines.names[groups[runs.target[places]]]
        order, new = lines.sorted(states, places, seen, mine)
        states, mine = states[order], mine[order]
        groups_here = mine[new]  # of each part
        parts = np.arange(len(groups_here))
        last_part[groups_here] = parts
        # of a group all of whose states are here one part keeps the number
        keeps = (last_part[groups_here] == parts) & (np.bincount(mine)[groups_here] == sizes[groups_here])
        numbers = np.where(keeps, groups_here, known + np.cumsum(~keeps) - 1)
        known += len(keeps) - int(np.count_nonzero(keeps))
        finer = numbers[np.cumsum(new) - 1]
        moved = finer != mine
        states, mine, finer = states[moved], mine[moved], finer[moved]
        groups[states] = finer
        sizes[:known] += np.bincount(finer, minlength=known) - np.bincount(mine, minlength=known)
        touched = np.zeros(count, np.bool_)
        touched[runs.source[runs.leading_to(states)]] = True
        states = np.flatnonzero(touched & (sizes[groups] > 1))  # what is alone stays alone
        if not states.size:
            break
    _, examples, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return numbers.astype(np.int32), examples.astype(np.int32)


class _Lines:
    """Tells the lines of states apart by two random sums of 64 bits each, to which a run adds as much as its classes
    would one by one: two lines that differ have equal sums in less than one of 2 ** 90 cases.

    Attributes:
        names: a random number for each group.
    """

    def __init__(self, runs: Runs, classes: int, groups: int) -> None:
        chance = np.random.default_rng(0)
        self._begin = runs.begin
        factors = chance.integers(0, 2**64 - 1, (2, classes + 1), np.uint64)
        before = np.cumsum(factors, axis=1)
        self._weights = before[:, runs.end] - before[:, runs.first]
        self.names = chance.integers(0, 2**64 - 1, groups, np.uint64)
        self._own = chance.integers(0, 2**64 - 1, (2, 1), np.uint64) | np.uint64(1)

    def sorted(self, states: Longs, places: Longs, seen: _Sums, groups: Longs) -> tuple[Longs, Bools]:
        """An order of states in which those of a group with equal lines stand together, and where new ones begin."""
        counts = self._begin[states + 1] - self._begin[states]
        ends = np.cumsum(counts)
        running = np.zeros((2, len(places) + 1), np.uint64)
        np.cumsum(self._weights[:, places] * seen, axis=1, out=running[:, 1:])
        sums = running[:, ends] - running[:, ends - counts] + self.names[groups] * self._own
        order = np.argsort(sums[0])
        sums = sums[:, order]
        new = np.ones(len(order), np.bool_)
        np.any(sums[:, 1:] != sums[:, :-1], axis=0, out=new[1:])
        return order, new
