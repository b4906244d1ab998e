"""How many first tokens sequences share, and how many are worth sharing."""

from collections.abc import Sequence

LEAST = 32  # shared tokens from which on a copy is worth it
WORTH = 256  # tokens that other prompts must save, for a prompt to be read before them


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many first tokens, or characters, two sequences share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # they are equal up to low, and not up to high
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
