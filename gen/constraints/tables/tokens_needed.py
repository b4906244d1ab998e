"""How many tokens a text still needs to be whole, so that it ends before the tokens run out.

Example, the text must be "yes" or "no, never"; the tokens are single letters, and "es". From the start, "no, never"
would take nine tokens, and "yes" two. So the start needs 2, and with 2 tokens left "n" is not allowed.

The count is for the text with the fewest bytes, spelled in as few tokens as possible: so many certainly suffice.
"""

import numpy as np

from gen.constraints.automata.arrays import Bools, Ints, adjacency, begins
from gen.constraints.automata.dfa import FAR, Table, distances
from gen.constraints.tables.vocabulary import Vocabulary


def closable(table: Table, vocabulary: Vocabulary) -> tuple[Table, Ints]:
    """An automaton without texts that the vocabulary cannot spell byte by byte, and how many tokens suffice for an end.

    Returns:
        The automaton: states keep their numbers, and nothing leads to one that has no end.
        (states + 1,): how many tokens certainly suffice from each state: 0 where a text may end, `FAR` where it has no
        end, or is within a special token. From each state that needs tokens, one leads to a state that needs one less.
    """
    distance, bytes_ = _ways(table, vocabulary.spells)
    if (distance[1:] >= FAR).any():
        kept = table.edges.compress(distance[table.edges[:, 3] + 1] < FAR, 0)
        table = table._replace(next=np.where(distance[table.next] < FAR, table.next, 0), edges=kept, distance=None)
    needed = np.where(table.final, 0, FAR).astype(np.int32)
    order = np.argsort(distance, kind="stable").astype(np.int32)
    order = order[(distance[order] > 0) & (distance[order] < FAR)]
    targets = _tokens_along(table, vocabulary, order, bytes_)
    ends = np.searchsorted(distance[order], np.arange(1, int(distance[order].max(initial=0)) + 1), side="right")
    start = 0
    for end in ends.tolist():  # all states one byte farther from an end; their tokens lead to nearer states
        needed[order[start:end]] = needed.take(targets[:, start:end]).min(0) + 1
        start = end
    return table, np.minimum(needed, FAR)


def most_needed(table: Table, needed: Ints) -> Ints:
    """For each state, the most tokens that it or any state reached from it needs: (states + 1,); 0 for the dead one.

    Args:
        table, needed: as `closable` gives them.
    """
    first, before = adjacency(table.edges[:, 3] + 1, table.edges[:, 0] + 1, len(needed))
    most = [-1] * len(needed)
    for state in np.argsort(-needed, kind="stable").tolist():  # most first: the first to reach a state needs most
        if most[state] >= 0:
            continue
        most[state] = worst = int(needed[state]) if needed[state] < FAR else 0
        front = [state]
        for there in front:
            for source in before[first[there] : first[there + 1]]:
                if most[source] < 0:
                    most[source] = worst
                    front.append(source)
    return np.array(most, np.int32)


def _ways(table: Table, spells: Bools) -> tuple[Ints, Ints]:
    """The fewest bytes from each state to a final one, `FAR` if there is no way, and the first byte of such a way.

    Args:
        spells: (256,) the bytes that are tokens by themselves; ways use only these, so that every way can be spelled.
    """
    states = len(table.final)
    spelled = np.where(spells, np.arange(256), 256)
    following = np.minimum.accumulate(spelled[::-1])[::-1]  # for each byte, the first one from it on that is a token
    byte = following[table.edges[:, 1]]
    edges, within, known = table.edges, byte <= table.edges[:, 2], table.distance
    if not within.all():
        edges, byte, known = edges.compress(within, 0), byte.compress(within), None
    distance = np.append(FAR, distances(edges, table.final[1:]) if known is None else known)
    best = np.zeros(states, np.int64)
    begin = begins(edges[:, 0] + 1, states)
    leads = np.diff(begin) > 0
    if leads.any():
        ways = distance[edges[:, 3] + 1] * np.int64(256) + byte
        best[leads] = np.minimum.reduceat(ways, begin[:-1][leads])
    return distance, (best % 256).astype(np.int32)


def _tokens_along(table: Table, vocabulary: Vocabulary, states: Ints, bytes_: Ints) -> Ints:
    """Where tokens lead along the shortest way of each state: (longest token, states), 0 where no token ends."""
    targets: list[Ints] = []
    places = np.arange(len(states))
    at, node = states, np.zeros(len(states), np.int32)
    while places.size and len(targets) < vocabulary.longest:
        byte = bytes_[at]
        node = vocabulary.after(node, byte)
        at = table.next[at, table.classes[byte]]
        here = np.zeros(len(states), np.int32)
        here[places] = np.where(vocabulary.is_token[node], at, 0)
        targets.append(here)
        goes_on = (node < vocabulary.nodes) & ~table.final[at]
        places, at, node = places[goes_on], at[goes_on], node[goes_on]
    return np.array(targets, np.int32).reshape(len(targets), len(states))
