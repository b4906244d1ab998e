"""States that allow the same tokens, found before any token is looked at: they share the rows of allowed tokens.

Two states are of one group where they agree on every string of at most as many bytes as a token has: whether it can
follow, and by how much it changes the number of tokens that are needed. A text of up to 1024 characters has 1026
states and 35 groups: one for each that is so near to the end that a token might not fit, and one for all others.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automaton import Table
from gen.constraints.closing import FAR

Ints = npt.NDArray[np.int32]


def groups_of(table: Table, needed: Ints, depth: int) -> tuple[Ints, Ints]:
    """The group of each state, and a state of each group.

    Args:
        table: as `closing.spellable` gives it.
        needed: as of `closing.tokens_needed`.
        depth: how many bytes a token has at most.
    Returns:
        (states + 1,), group 0 being that of the dead state, and (groups,).
    """
    after = table.next
    change = np.where(after > 0, needed[after] - needed[:, None], FAR)
    random = np.random.default_rng(0)
    factors = random.integers(1, 2**63 - 1, (2, after.shape[1]), np.int64).astype(np.uint64) | np.uint64(1)
    own = (change.astype(np.int64).astype(np.uint64) * factors[0]).sum(1, dtype=np.uint64)
    live = np.arange(len(after)) > 0
    groups, examples = live.astype(np.int32), np.array([0, 1], np.int32)[: len(after)]
    for _ in range(depth):
        names = random.integers(0, 2**63 - 1, (2, len(examples)), np.int64).astype(np.uint64)
        hashes = own + names[0][groups] + (names[1][groups[after]] * factors[1]).sum(1, dtype=np.uint64)
        _, first, finer = np.unique(hashes, return_index=True, return_inverse=True)
        finer = finer.ravel()
        leader = first[finer]
        same = (groups == groups[leader]) & (change == change[leader]).all(1)
        same &= (groups[after] == groups[after[leader]]).all(1)
        if not same.all():  # two hashes are equal by chance, once in a million years: every state its own group
            return np.arange(len(after), dtype=np.int32), np.arange(len(after), dtype=np.int32)
        if len(first) == len(examples):
            break
        order = np.argsort(first)  # groups in the order of their first states: that of the dead state is 0
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        groups, examples = rank[finer].astype(np.int32), first[order].astype(np.int32)
    return groups, examples
