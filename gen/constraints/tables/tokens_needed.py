"""How many tokens a text still needs: what makes it whole before the tokens run out.

Example, the text must be "yes" or "no, never", the tokens are all letters and "es": from the start "no, never" would
take nine tokens, "yes" takes two, since "es" is one. So the start needs 2, and with 2 tokens left "n" is not allowed.

What is counted is the shortest text in bytes, spelled in as few tokens as it can be: so many certainly suffice.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.automaton import Table
from gen.constraints.tables.vocabulary import MAX_BYTES, Vocabulary

Ints = npt.NDArray[np.int32]

FAR = np.int32(1 << 20)
"""Stands for the tokens that a state needs from which no text can be spelled to its end."""


def closable(table: Table, vocabulary: Vocabulary) -> tuple[Table, Ints]:
    """An automaton without what cannot be spelled to an end byte by byte, and how many tokens suffice for an end.

    Returns:
        The automaton: states keep their numbers, and nothing leads to one that has no end.
        (states + 1,): how many tokens certainly suffice from each state: 0 where a text may end, `FAR` where it has no
        end. From each state that needs tokens, one token leads to a state that needs one less.
    """
    distance, bytes_ = _ways(table, vocabulary)
    if (distance[1:] >= FAR).any():
        table = Table(np.where(distance[table.next] < FAR, table.next, 0), table.classes, table.final)
    needed = np.where(table.final, 0, FAR).astype(np.int32)
    order = np.argsort(distance, kind="stable").astype(np.int32)
    order = order[(distance[order] > 0) & (distance[order] < FAR)]
    targets = _tokens_along(table, vocabulary, order, bytes_)
    ends = np.searchsorted(distance[order], np.arange(1, int(distance[order].max(initial=0)) + 1), side="right")
    start = 0
    for end in ends.tolist():  # all states that are one byte farther, whose tokens lead to nearer ones
        needed[order[start:end]] = needed[targets[:, start:end]].min(0) + 1
        start = end
    return table, needed


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
