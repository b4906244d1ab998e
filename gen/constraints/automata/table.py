"""Deterministic automata over bytes as tables, with one column for all bytes that no state tells apart.

Example, the text "a": `next` is [[0, 0], [2, 0], [0, 0]] for the dead state, the start and the end; `classes` is 0 for
"a" and 1 for every other byte; `final` is [False, False, True].
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.dfa import Dfa


class Table(NamedTuple):
    """A deterministic automaton over bytes; state 0 is dead, 1 is the start.

    Attributes:
        next: (states + 1, classes) int32, the state after a byte of a class; 0 where there is none.
        classes: (256,) uint8, the class of each byte.
        final: (states + 1,) bool, whether a text may end there; False for state 0.
        depth: how deep values of any type nest in its texts; None if they have none.
    """

    next: npt.NDArray[np.int32]
    classes: npt.NDArray[np.uint8]
    final: npt.NDArray[np.bool_]
    depth: int | None = None

    def accepts(self, data: bytes) -> bool:
        """Whether the whole of `data` is a text of the automaton."""
        state = 1
        for byte in data:
            state = int(self.next[state, self.classes[byte]])
        return bool(self.final[state])


def table(automaton: Dfa) -> Table:
    """The automaton as a table."""
    source, low, end, target = (automaton.edges + np.array([1, 0, 1, 1], np.int32)).T
    cut = np.zeros(257, np.bool_)
    cut[0] = cut[low] = cut[end] = cut[256] = True
    place = np.cumsum(cut) - 1  # for each byte, the number of its piece between two cuts
    width = int(place[256])
    first, count = place[low], place[end] - place[low]
    after = np.zeros((len(automaton.final) + 1) * width, np.int32)
    runs = np.repeat(source.astype(np.int64) * width + first - (np.cumsum(count) - count), count)
    after[runs + np.arange(len(runs))] = np.repeat(target, count)
    columns = np.ascontiguousarray(after.reshape(-1, width).T)
    number: dict[bytes, int] = {}
    which = np.array([number.setdefault(column.tobytes(), len(number)) for column in columns])
    distinct = columns[np.unique(which, return_index=True)[1]]
    final = np.concatenate((np.zeros(1, np.bool_), automaton.final))
    return Table(np.ascontiguousarray(distinct.T), which[place[:256]].astype(np.uint8), final)
