"""How many tokens a text still needs: what makes it whole before the tokens run out.

Example, the text must be "yes" or "no, never", the tokens are all letters and "es": from the start "no, never" would
take nine tokens, "yes" takes two, since "es" is one. So the start needs 2, and with 2 tokens left "n" is not allowed.

What is counted is the shortest text in bytes, spelled in as few tokens as it can be: so many certainly suffice.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automaton import Table
from gen.constraints.vocabulary import MAX_BYTES, Vocabulary

Ints = npt.NDArray[np.int32]

FAR = np.int32(1 << 20)
"""Stands for the tokens that a state needs from which no text can be spelled to its end."""


def spellable(table: Table, vocabulary: Vocabulary) -> Table:
    """The automaton without the states from which the vocabulary cannot spell a text to its end, byte by byte.

    Their numbers stay; nothing leads to them.
    """
    distance, _ = _ways(table, vocabulary)
    if (distance[1:] < FAR).all():
        return table
    return Table(np.where(distance[table.next] < FAR, table.next, 0), table.classes, table.final)


def tokens_needed(table: Table, vocabulary: Vocabulary) -> Ints:
    """How many tokens certainly suffice to end a text, from each state: 0 where it may end, `FAR` where it cannot.

    From each state that needs tokens, one token leads to a state that needs one less.

    Args:
        table: as `spellable` gives it.
    """
    distance, bytes_ = _ways(table, vocabulary)
    needed = np.where(table.final, 0, FAR).astype(np.int32)
    order = np.argsort(distance, kind="stable").astype(np.int32)
    order = order[(distance[order] > 0) & (distance[order] < FAR)]
    targets = _tokens_along(table, vocabulary, order, bytes_)
    ends = np.searchsorted(distance[order], np.arange(1, int(distance[order].max(initial=0)) + 1), side="right")
    start = 0
    for end in ends.tolist():  # all states that are one byte farther, whose tokens lead to nearer ones
        needed[order[start:end]] = needed[targets[:, start:end]].min(0) + 1
        start = end
    return needed


def _ways(table: Table, vocabulary: Vocabulary) -> tuple[Ints, Ints]:
    """Fewest bytes from each state to a final one, `FAR` where there is no way, and the first byte of such a way.

    Ways are of bytes that are tokens by themselves, so that every way can be spelled.
    """
    states, classes = table.next.shape
    spells = vocabulary.spells
    byte_of = np.full(classes, -1, np.int32)
    for byte in np.flatnonzero(spells)[::-1]:
        byte_of[table.classes[byte]] = byte
    distance = np.where(table.final, 0, FAR).astype(np.int32)
    after = np.where(byte_of >= 0, table.next, 0)
    order = np.argsort(after, axis=None, kind="stable")
    sources = (order // classes).astype(np.int32)
    first = np.searchsorted(after.ravel()[order], np.arange(states + 1))
    front = np.flatnonzero(table.final)
    while front.size:  # breadth first, backwards
        before = np.unique(np.concatenate([sources[first[state] : first[state + 1]] for state in front]))
        before = before[(distance[before] == FAR) & (before > 0)]
        distance[before] = distance[front[0]] + 1
        front = before
    best = np.where(after > 0, distance[after], FAR).argmin(1)
    return distance, byte_of[best]


def _tokens_along(table: Table, vocabulary: Vocabulary, states: Ints, bytes_: Ints) -> Ints:
    """Where tokens lead along the shortest way of each state: (longest token, states), 0 where no token ends."""
    targets = np.zeros((min(vocabulary.longest, MAX_BYTES), len(states)), np.int32)
    places = np.arange(len(states))
    at, node = states, np.zeros(len(states), np.int64)
    first = 1  # node of the level
    for depth, level in enumerate(vocabulary.levels):
        byte = bytes_[at]
        keys = level.parents.astype(np.int64) * 256 + level.bytes
        wanted = node * 256 + byte
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        at = table.next[at, table.classes[byte]]
        goes_on = keys[found] == wanted
        node = first + found
        targets[depth, places] = np.where(goes_on & vocabulary.is_token[node], at, 0)
        goes_on &= ~table.final[at]
        places, at, node = places[goes_on], at[goes_on], node[goes_on]
        first += len(keys)
        if not places.size:
            break
    return targets
