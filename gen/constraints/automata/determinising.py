"""Turns nondeterministic automata into deterministic ones, by sets of states; deterministic parts stay as they are.

Example: state 0 leads to 1 by "a", and without reading to 2, which leads to itself by "b" and without reading to 1,

    from {0, 2}, which is where a text begins:          "a" leads to 1, "b" to {2, 1}
    from {2, 1}:                                        "b" leads to {2, 1}

A state that leads on without reading stands for the set of those that it leads to, with their edges: 0 for {0, 2}. In
most automata, the edges of most states share no number then. These states stay as they are, and only what the others
lead to are further sets. There are bounds on states, on the members of all sets together (memory) and on work.
"""

from array import array
from bisect import insort
from collections.abc import Iterable
from itertools import chain

import numpy as np

from gen.constraints.automata.arrays import Bools, Ints, adjacency, begins, by_number, overlapping, ranges
from gen.constraints.automata.dfa import Dfa, trimmed
from gen.constraints.automata.limits import MAX_STATES, Budget, Empty, TooLarge
from gen.constraints.automata.nfa import Nfa

_MEMBERS = 2_000_000  # of all sets of states together: some 100 MB; and so many edges of them

Edge = tuple[int, int, int]
"""Lowest and highest number, inclusive, and the state that it leads to."""


def determinise(nfa: Nfa, start: int, accept: int, max_states: int = MAX_STATES, budget: Budget | None = None) -> Dfa:
    """The deterministic automaton of the texts that lead from `start` to `accept`, by sets of states.

    Raises:
        TooLarge: more than max_states states, or more work than the budget has left.
        Empty: there is no such text.
    """
    sets = _Sets(nfa, start, accept, max_states, Budget() if budget is None else budget)
    found = trimmed(*sets.reach(start))
    if found is None:
        raise Empty("no text meets this")
    return found


class _Sets:
    """States of the deterministic automaton: those of an Nfa, and from number `count` on further sets of them.

    Attributes:
        edges: (n, 4) of the Nfa's states, sorted.
        members: for each state that leads on without reading, and each further set, the states that it stands for, but
            only those that read or accept.
        one: for each state of the Nfa, the one that stands for the same.
    """

    def __init__(self, nfa: Nfa, start: int, accept: int, max_states: int, budget: Budget) -> None:
        self.accept, self.count = accept, nfa.states
        self._states, self._max_states, self._budget, self._size = nfa.states, max_states, budget, 0
        edges, silent = nfa.arrays()
        self.one = np.arange(self.count, dtype=np.int32)
        self.members = self._closures(edges, silent, start)
        self._number: dict[frozenset[int], int] = {}
        self._known: dict[tuple[int, ...], int] = {}  # for targets, the state that stands for them
        for state, members in self.members.items():
            self.one[state] = next(iter(members)) if len(members) == 1 else self._number.setdefault(members, state)
        edges[:, 3] = self.one.take(edges[:, 3])
        self.edges = by_number(edges)
        self._begin = begins(self.edges[:, 0], self.count)
        self._low, self._high, self._target = (np.ascontiguousarray(self.edges[:, column]).data for column in (1, 2, 3))

    def _closures(self, edges: Ints, silent: Ints, start: int) -> dict[int, frozenset[int]]:
        """What those states stand for that lead on without reading, and to which the start or an edge leads."""
        says, met = np.zeros((2, self.count), np.bool_)
        says[edges[:, 0]] = says[self.accept] = met[edges[:, 3]] = met[start] = True
        speaking = says.tolist()
        source, target = silent.T
        ways = np.bincount(source, minlength=self.count)
        alias = (ways[source] == 1) & (ways[target] == 0) & ~says[source]  # most do no more than lead to one other
        self.one[source[alias]] = target[alias]
        met[source[alias]] = met[ways == 0] = False
        first, after = adjacency(source, target, self.count)
        found: dict[int, frozenset[int]] = {}
        for state in np.flatnonzero(met).tolist():
            seen, todo = {state}, [state]
            for here in todo:
                for one in after[first[here] : first[here + 1]]:
                    if one not in seen:
                        seen.add(one)
                        todo.append(one)
            found[state] = frozenset([one for one in todo if speaking[one]])
            self._add(len(found[state]))
            self._budget.spend(len(seen))
        return found

    def _copied(self) -> Ints:
        """The edges, where a state that stands for others has theirs."""
        states = np.fromiter(self._number.values(), np.int64)
        sizes = np.fromiter(map(len, self._number), np.int64)
        members = np.fromiter(chain.from_iterable(self._number), np.int64)
        reads = self._begin[members + 1] - self._begin[members]
        if int(reads.sum()) > _MEMBERS:
            raise TooLarge(f"more than {_MEMBERS} edges of {len(states)} sets of states")
        copies = self.edges.take(ranges(self._begin[members], self._begin[members + 1]), 0)
        copies[:, 0] = np.repeat(np.repeat(states, sizes), reads)
        own = np.ones(self.count, np.bool_)
        own[states] = False
        return by_number(np.concatenate((self.edges.compress(own[self.edges[:, 0]], 0), copies)))

    def reach(self, start: int) -> tuple[Ints, Bools]:
        """The edges of all states that `start` leads to, and which of them are final; `start` becomes 0."""
        edges, single = self._copied(), np.ones(self.count, np.bool_)
        single[overlapping(edges)] = False
        begin = begins(edges[:, 0], self.count)
        first, targets, alone = begin.tolist(), edges[:, 3].tolist(), single.tolist()
        new = [True] * self.count  # whether a state is not yet reached
        made = array("i")  # edges of sets
        order = [int(self.one[start])]
        new[order[0]] = False
        for state in order:
            if alone[state]:
                leads = targets[first[state] : first[state + 1]]
            else:
                leads = []
                for low, high, target in self._taken_apart(self.members.get(state, (state,)), len(order)):
                    made.extend((state, low, high, target))
                    leads.append(target)
                new += [True] * (self._states - len(new))
                alone += [False] * (self._states - len(alone))
            for target in leads:
                if new[target]:
                    new[target] = False
                    order.append(target)
        live = ~np.array(new, np.bool_)
        states, own = int(live.sum()), live[: self.count] & single
        self._look(int((1 + np.diff(begin))[own].sum()), states)
        number = np.cumsum(live, dtype=np.int32) - 1
        number[: order[0]] += 1
        number[order[0]] = 0
        edges = np.concatenate((edges.compress(own[edges[:, 0]], 0), np.array(made, np.int32).reshape(-1, 4)))
        edges[:, 0], edges[:, 3] = number.take(edges[:, 0]), number.take(edges[:, 3])
        final = np.zeros(states, np.bool_)
        ends = [state for state, members in self.members.items() if self.accept in members and live[state]]
        final[number[np.array(ends, np.int64)]] = True
        if live[self.accept]:
            final[number[self.accept]] = True
        return edges, final

    def _taken_apart(self, members: Iterable[int], reached: int) -> list[Edge]:
        """The edges of some states, cut wherever one begins or ends; a piece leads to the targets of all its edges."""
        begin, low, high, target_of = self._begin.data, self._low, self._high, self._target
        leaving = [edge for state in members for edge in range(begin[state], begin[state + 1])]
        bounds = [(low[edge], True, target_of[edge]) for edge in leaving]
        bounds += [(high[edge] + 1, False, target_of[edge]) for edge in leaving]
        bounds.sort()
        row: list[Edge] = []
        here: list[int] = []  # the targets of the edges that have begun, sorted
        before = work = most = 0
        for at, begins_, target in bounds:
            if here and at > before:
                key = tuple(here)
                work, most = work + len(key), max(most, len(key))
                if key not in self._known:
                    self._known[key] = key[0] if len(key) == 1 else self._set_of(key)
                row.append((before, at - 1, self._known[key]))
            before = at
            if begins_:
                insort(here, target)
            else:
                here.remove(target)
        self._look(1 + len(leaving) + (work if most > 1 else 0), reached)
        return row

    def _set_of(self, states: Iterable[int]) -> int:
        """The state that stands for several ones."""
        members = frozenset().union(*(self.members.get(one, (one,)) for one in states))
        if len(members) == 1:
            return next(iter(members))
        number = self._number.get(members)
        if number is None:
            number = self._number[members] = self._states
            self.members[number] = members
            self._states += 1
            self._add(len(members))
        return number

    def _look(self, work: int, reached: int) -> None:
        """Check that there are not too many states, and count work."""
        if reached > self._max_states:
            raise TooLarge(f"more than {self._max_states} states")
        self._budget.spend(work, f"an automaton of {reached} states and more")

    def _add(self, members: int) -> None:
        self._size += members
        if self._size > _MEMBERS:
            raise TooLarge(f"more than {_MEMBERS} states in sets of states")
