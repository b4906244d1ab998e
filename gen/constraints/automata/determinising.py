"""Turns nondeterministic automata into deterministic ones, by sets of states; deterministic parts stay as they are.

Example: state 0 leads to 1 by "a", and without reading to 2, which leads to itself by "b" and without reading to 1,

    from {0, 2}, which is where a text begins:          "a" leads to 1, "b" to {2, 1}
    from {2, 1}:                                        "b" leads to {2, 1}
    state 1 has no edges: it stays itself, not a set

In most automata, most states were copied from deterministic automata: they keep their edges, and only the few sets
need work. There are bounds on states, on the members of all sets together (memory) and on work.
"""

from array import array
from bisect import insort

import numpy as np

from gen.constraints.automata.arrays import Bools, Ints, adjacency, begins, by_number, overlapping
from gen.constraints.automata.dfa import Dfa, trimmed
from gen.constraints.automata.limits import MAX_STATES, Budget, Empty, TooLarge
from gen.constraints.automata.nfa import Nfa
from gen.constraints.automata.silent import aliases, through

_MEMBERS = 2_000_000  # of all sets of states together: some 100 MB
_BETWEEN_LOOKS = 1024  # edges between two looks at the bounds

Edge = tuple[int, int, int]
"""Lowest and highest number, inclusive, and the state that it leads to."""


def determinise(nfa: Nfa, start: int, accept: int, max_states: int = MAX_STATES, budget: Budget | None = None) -> Dfa:
    """The deterministic automaton of the texts that lead from `start` to `accept`, by sets of states.

    Raises:
        TooLarge: more than max_states states, or more work than the budget has left.
        Empty: there is no such text.
    """
    sets = _Sets(nfa, accept, max_states, Budget() if budget is None else budget)
    found = trimmed(*sets.reach(start))
    if found is None:
        raise Empty("no text meets this")
    return found


class _Sets:
    """States of the deterministic automaton: those of an Nfa that are deterministic already, and from number `count` on
    sets of the Nfa's states.

    Attributes:
        edges: (n, 4) of the Nfa, sorted; they skip states that only lead to another one without reading.
        node: for each state of the Nfa, its state in the deterministic automaton; -1: not known yet.
    """

    def __init__(self, nfa: Nfa, accept: int, max_states: int, budget: Budget) -> None:
        self.accept, self.count = accept, nfa.states
        self._max_states, self._budget = max_states, budget
        self._number: dict[frozenset[int], int] = {}
        self._members: list[frozenset[int]] = []
        self._closures: dict[int, frozenset[int]] = {}
        self._leaving: dict[int, list[Edge]] = {}
        self._size = 0
        edges, silent = nfa.arrays()
        self._alias = aliases(edges, silent, accept, self.count)
        edges[:, 3] = self._alias[edges[:, 3]]
        silent[:, 1] = self._alias[silent[:, 1]]
        self.edges = edges[by_number(edges)]
        self._begin = begins(self.edges[:, 0], self.count)
        says = np.diff(self._begin) > 0
        says[accept] = True
        self._says = says.tolist()  # which states read or accept
        self._first, self._after = adjacency(silent[:, 0], silent[:, 1], self.count)
        single = np.ones(self.count, np.bool_)
        single[silent[:, 0]] = False
        single[overlapping(self.edges)] = False
        self._final = np.arange(self.count) == accept
        self._own = self.edges
        read = through(self.edges, silent, self._closure, self.count)
        single[read.states] = True
        for state, members in zip(read.states, read.closures, strict=True):
            self._number[members | {state}] = state
            self._final[state] |= accept in members
        edges = np.concatenate((self.edges, read.edges))
        self.edges = edges[by_number(edges)]
        self._single = single.tolist()
        self.node: list[int] = np.where(single, np.arange(self.count), -1).tolist()

    def reach(self, start: int) -> tuple[Ints, Bools]:
        """The edges of all states that `start` leads to, and which of them are final; `start` becomes 0."""
        node, count = self.node, self.count
        begin, targets = begins(self.edges[:, 0], count).tolist(), self.edges[:, 3].tolist()
        reached = bytearray(count)  # which of the Nfa's states
        made = array("i")  # edges of sets
        first = self._node(int(self._alias[start]))
        order = [first] if first < count else []
        for state in order:
            reached[state] = 1
        done = sets = work = 0
        while done < len(order) or sets < len(self._members):
            while done < len(order):
                state = order[done]
                done += 1
                leads = targets[begin[state] : begin[state + 1]]
                work += 1 + len(leads)
                for target in leads:
                    to = node[target]
                    if to < 0:
                        to = self._node(target)
                    if to < count and not reached[to]:
                        reached[to] = 1
                        order.append(to)
                if work > _BETWEEN_LOOKS:
                    self._look(work, len(order))
                    work = 0
            if sets < len(self._members):
                for low, high, to in self._taken_apart(self._members[sets]):
                    made.extend((count + sets, low, high, to))
                    if to < count and not reached[to]:
                        reached[to] = 1
                        order.append(to)
                sets += 1
                self._look(0, len(order))
        self._look(work, len(order))
        return self._arranged(first, np.frombuffer(reached, np.bool_), np.array(made, np.int32).reshape(-1, 4))

    def _arranged(self, first: int, reached: Bools, made: Ints) -> tuple[Ints, Bools]:
        """The edges of the reached states and of the sets, numbered anew, and which of them are final."""
        used = np.concatenate((reached, np.ones(len(self._members), np.bool_)))
        number = np.cumsum(used, dtype=np.int32) - 1
        number[:first] += 1
        number[first] = 0
        kept = self.edges[reached[self.edges[:, 0]]]
        kept[:, 3] = np.array(self.node, np.int32)[kept[:, 3]]
        edges = np.concatenate((kept, made))
        edges[:, 0], edges[:, 3] = number[edges[:, 0]], number[edges[:, 3]]
        final = np.zeros(int(used.sum()), np.bool_)
        ends = np.array([self.accept in members for members in self._members], np.bool_)
        final[number[used]] = np.concatenate((self._final, ends))[used]
        return edges, final

    def _node(self, state: int) -> int:
        """The state that stands for a state of the Nfa: itself if it is deterministic, otherwise a set."""
        if self.node[state] < 0:
            self.node[state] = self._of(self._closure(state))
        return self.node[state]

    def _of(self, members: frozenset[int]) -> int:
        """The state of the deterministic automaton for a set of states."""
        if len(members) == 1:
            [one] = members
            if self._single[one]:
                return one
        number = self._number.get(members)
        if number is None:
            number = self._number[members] = self.count + len(self._members)
            self._members.append(members)
            self._add(len(members))
        return number

    def _closure(self, state: int) -> frozenset[int]:
        """The states that a state leads to without reading, but only those that read or accept."""
        known = self._closures.get(state)
        if known is None:
            first, after = self._first, self._after
            seen, todo = {state}, [state]
            while todo:
                here = todo.pop()
                new = [one for one in after[first[here] : first[here + 1]] if one not in seen]
                seen.update(new)
                todo += new
            known = frozenset([one for one in seen if self._says[one]])
            self._closures[state] = known
            self._add(len(known))
            self._look(len(seen), 0)
        return known

    def _taken_apart(self, members: frozenset[int]) -> list[Edge]:
        """The edges of a set, cut wherever one begins or ends; a piece leads to the targets of all its edges."""
        leaving = [edge for state in members for edge in self._edges_of(state)]
        bounds = [(low, True, target) for low, _, target in leaving]
        bounds += [(high + 1, False, target) for _, high, target in leaving]
        bounds.sort()
        known: dict[tuple[int, ...], int] = {}
        row: list[Edge] = []
        here: list[int] = []  # the targets of the edges that have begun, sorted
        before = work = most = 0
        for at, begins_, target in bounds:
            if here and at > before:
                key = tuple(here)
                work, most = work + len(key), max(most, len(key))
                if key not in known:
                    together = frozenset().union(*map(self._closure, key)) if len(key) > 1 else None
                    known[key] = self._node(key[0]) if together is None else self._of(together)
                row.append((before, at - 1, known[key]))
            before = at
            if begins_:
                insort(here, target)
            else:
                here.remove(target)
        self._look(1 + len(leaving) + (work if most > 1 else 0), 0)
        return row

    def _edges_of(self, state: int) -> list[Edge]:
        """The edges of a state of the Nfa."""
        known = self._leaving.get(state)
        if known is None:
            lines = self._own[self._begin[state] : self._begin[state + 1], 1:].tolist()
            known = self._leaving[state] = [(low, high, target) for low, high, target in lines]
        return known

    def _look(self, work: int, reached: int) -> None:
        """Check that there are not too many states, and count work."""
        if reached + len(self._members) > self._max_states:
            raise TooLarge(f"more than {self._max_states} states")
        self._budget.spend(work, f"an automaton of {reached + len(self._members)} states and more")

    def _add(self, members: int) -> None:
        self._size += members
        if self._size > _MEMBERS:
            raise TooLarge(f"more than {_MEMBERS} states in {len(self._members)} sets of states")
