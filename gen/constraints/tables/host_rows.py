"""The rows of one state at a time, on the CPU: which tokens it allows, and which of them leave enough tokens to end.

A state goes through the trie of the vocabulary, level by level. If few of a level's nodes can be reached, as within the
name of a property, only their children are looked at; if many can, as within a string, all nodes of the next level at
once. Example: after `{"na` the tokens m, me and me": are allowed. Of the root's children only m can be reached, from
there only me, and then only me": so only these nodes and their siblings are looked at, of a hundred thousand.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.arrays import Ints, Longs, ranges
from gen.constraints.automata.dfa import Table
from gen.constraints.tables.vocabulary import Vocabulary

_FEW = 6  # few nodes are less than one in so many


class HostRows:
    """Makes the rows of any state of an automaton. A state's number is where its line begins in `next`.

    Attributes:
        nbytes: how many bytes this holds.

    Args:
        needed, leads: as in `TokenAutomaton`.
    """

    def __init__(self, table: Table, needed: Ints, leads: Ints, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._width = table.next.shape[1]
        self._next = table.next.astype(np.int64).ravel() * self._width
        self._needed, self._leads = needed, leads.repeat(self._width)
        self._columns = [table.classes[level.bytes] for level in vocabulary.levels]
        self.nbytes = self._next.nbytes + self._leads.nbytes + sum(one.nbytes for one in self._columns)

    def of(self, state: int) -> tuple[npt.NDArray[np.uint8], int]:
        """The rows of a state, (3, bytes), the lowest bit first: all tokens that it allows, those that do not raise the
        tokens needed, those that lower them; and by how much an allowed token may raise the tokens needed at most.
        """
        start, size = state * self._width, self._vocabulary.size
        tokens, after = self._walked(start)
        change = self._leads.take(after) - self._needed[state]
        kinds = np.zeros((3, size), np.bool_)
        if tokens is None:
            np.greater(after, 0, out=kinds[0])
            np.logical_and(kinds[0], change <= 0, out=kinds[1])
            np.logical_and(kinds[0], change < 0, out=kinds[2])
        else:
            kinds[0, tokens], kinds[1, tokens], kinds[2, tokens] = True, change <= 0, change < 0
        return np.packbits(kinds, axis=-1, bitorder="little"), max(0, int(change.max(initial=0)))

    def _walked(self, start: int) -> tuple[Longs | None, Longs]:
        """The tokens that a state allows and the states after them; None for all tokens: then 0 means not allowed."""
        vocabulary = self._vocabulary
        at = np.zeros(vocabulary.nodes + 1, np.int64)
        at[0] = start
        last, few = slice(0, 1), np.zeros(1, np.int64)  # nodes of the last level; if few can be reached, which ones
        found: list[slice | Longs] = []
        total = 0
        for level, columns in zip(vocabulary.levels, self._columns, strict=True):
            here = slice(last.stop, last.stop + len(columns))
            begin, end = vocabulary.children[few], vocabulary.children[few + 1]
            if few.size and int((end - begin).sum()) * _FEW < len(columns):
                nodes = ranges(begin, end)
                after = self._next[np.repeat(at[few], end - begin) + columns[nodes - here.start]]
                few = nodes[after > 0]
                at[few] = after[after > 0]
                reached = few.size
                found.append(few)
            else:
                after = at.take(level.parents)
                after += columns
                self._next.take(after, out=at[here], mode="clip")
                reached = int(np.count_nonzero(at[here]))
                few = np.flatnonzero(at[here]) + here.start if reached * _FEW < len(columns) else few[:0]
                found.append(here)
            total += reached
            last = here
            if not reached:
                break
        if total * _FEW >= vocabulary.nodes:
            return None, at.take(vocabulary.node_of)
        nodes = np.concatenate(
            [np.flatnonzero(at[one]) + one.start if isinstance(one, slice) else one for one in found]
        )
        begin, end = vocabulary.first_token[nodes], vocabulary.first_token[nodes + 1]
        return vocabulary.by_node[ranges(begin, end)], np.repeat(at[nodes], end - begin)
