"""Groups of states that allow the same tokens, found without looking at tokens: a group shares its rows.

Two states are in one group if they agree on every string that is at most as long as the longest token: whether it can
follow, and by how much it changes the number of tokens needed. A text of up to 1024 characters has 1026 states and 35
groups: one for each state so near to the end that a token might not fit, and one for all others.

Example, the texts "abc" and "xbd", with the states 1 --a--> 2 --b--> 3 --c--> 4 and 1 --x--> 5 --b--> 6 --d--> 7. By
strings of one byte, the groups are {1}, {2, 5}, {3}, {6} and {4, 7}; by strings of two bytes, {2, 5} falls apart, since
"bc" can follow only 2.
"""

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.arrays import Ints, begins
from gen.constraints.automata.dfa import FAR, Table

_Sums = npt.NDArray[np.uint64]
_BEFORE = np.cumsum(np.random.default_rng(0).integers(0, 2**64 - 1, (2, 257), np.uint64), axis=1)  # of each byte
_BETWEEN_LOOKS = 4  # rounds between two checks whether any group still falls apart


def groups_of(table: Table, needed: Ints, depth: int) -> tuple[Ints, Ints]:
    """The group of each state, and a state of each group.

    States are alike if their sums are equal. Each round makes a state's sum from the sums of the states that its bytes
    lead to, where each byte has a random weight; so after n rounds the sums stand for all strings of n bytes.
    Each state has two sums of 64 bits, made with different weights: two groups get equal sums in less than one of
    2 ** 90 cases.

    Args:
        table, needed: as `tokens_needed.closable` gives them.
        depth: how many bytes a token has at most.
    Returns:
        (states + 1,), where only the dead state is in group 0, and (groups,).
    """
    source, low, high, leads = table.edges.T.astype(np.int64, order="C")
    count = len(needed) - 1
    weights = (_BEFORE.take(high + 1, 1) - _BEFORE.take(low, 1)).ravel()  # an edge weighs as much as its bytes
    target = np.concatenate((leads, leads + count))
    begin = begins(source, count)
    begin = np.append(begin, begin[1:] + len(source))
    running = np.zeros(len(target) + 1, np.uint64)

    def summed(of_runs: _Sums) -> _Sums:
        np.cumsum(weights * of_runs, out=running[1:])
        return np.diff(running.take(begin))

    change = needed.take(leads + 1) - needed.take(source + 1) + 2 * FAR  # never 0, which stands for no edge
    change_sums = summed(np.tile(change.astype(np.uint64), 2))
    sums, known = np.zeros(2 * count, np.uint64), 1
    for length in range(1, depth + 1):
        sums = _mixed(summed(sums.take(target)) + change_sums)
        if length % _BETWEEN_LOOKS == 0:
            parts = int(np.count_nonzero(np.diff(np.sort(sums[:count]))))
            if parts == known:  # no group falls apart any more
                break
            known = parts
    one, other = sums.reshape(2, count)
    order = np.argsort(one, kind="stable")
    one, other = one[order], other[order]
    new = np.append(True, (one[1:] != one[:-1]) | (other[1:] != other[:-1]))
    groups = np.zeros(count + 1, np.int32)
    groups[order + 1] = np.cumsum(new)
    return groups, np.append(0, order[new] + 1).astype(np.int32)


def _mixed(sums: _Sums) -> _Sums:
    """SplitMix64's last step (Steele et al. 2014): without it the sums of "ab" and "ba" would be equal products."""
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        sums = (sums ^ (sums >> np.uint64(bits))) * np.uint64(factor)
    return sums ^ (sums >> np.uint64(31))
