"""States that allow the same tokens, found before any token is looked at: they share the rows of allowed tokens.

Two states are of one group where they agree on every string of at most as many bytes as a token has: whether it can
follow, and by how much it changes the number of tokens that are needed. A text of up to 1024 characters has 1026
states and 35 groups: one for each that is so near to the end that a token might not fit, and one for all others.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.automaton import Table
from gen.constraints.tables.tokens_needed import FAR

Ints = npt.NDArray[np.int32]


def groups_of(table: Table, needed: Ints, depth: int) -> tuple[Ints, Ints]:
    """The group of each state, and a state of each group.

    Args:
        table, needed: as `tokens_needed.closable` gives them.
        depth: how many bytes a token has at most.
    Returns:
        (states + 1,), group 0 being that of the dead state alone, and (groups,).
    """
    after = table.next
    change = np.where(after > 0, needed[after] - needed[:, None], FAR)
    groups = np.minimum(np.arange(len(after), dtype=np.int32), 1)
    states = np.arange(1, len(after))
    for length in range(1, depth + 1):  # after it states of a group agree on strings of this length
        lines = change[states] if length == 1 else groups[after[states]]
        finer = _split(groups[states], lines, int(groups.max()) + 1)
        stable = length > 1 and bool((finer == groups[states]).all())
        groups[states] = finer
        states = states[np.bincount(groups)[finer] > 1]  # what is alone stays alone
        if stable or not states.size:
            break
    return groups, np.unique(groups, return_index=True)[1].astype(np.int32)


def _split(groups: Ints, lines: Ints, count: int) -> Ints:
    """Groups whose states also have equal lines: one part of each keeps its number, others are numbered from `count`.

    Lines are told apart by a random sum, and then compared.
    """
    factors = np.random.default_rng(0).integers(1, 2**63 - 1, lines.shape[1] + 1, np.int64).astype(np.uint64)
    sums = lines.astype(np.uint64) @ factors[1:] + groups.astype(np.uint64) * factors[0]
    _, first, part = np.unique(sums, return_index=True, return_inverse=True)
    if not ((groups == groups[first[part]]).all() and (lines == lines[first[part]]).all()):  # hardly ever
        whole = np.column_stack((groups, lines))
        _, first, part = np.unique(whole, axis=0, return_index=True, return_inverse=True)
    numbers = np.full(len(first), -1, np.int32)
    kept, keeper = np.unique(groups[first], return_index=True)
    numbers[keeper] = kept
    new = numbers < 0
    numbers[new] = np.arange(count, count + int(new.sum()), dtype=np.int32)
    return numbers[part.ravel()]
