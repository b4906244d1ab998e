"""Drafts from a text that was made before: what follows there, as long as the new text is the same, and where the new
text comes back to it after a place at which they differ.

Example: the old text is "The cat sat on the mat.", and the new one so far "The dog sat on". At "dog" they part. The
last two tokens, " sat" and " on", stand in the old text too: there " the mat." follows, whose tokens are the drafts.
"""

from collections.abc import Sequence

import numpy as np

from gen.constraints.automata.arrays import Longs
from gen.loop.speculation.drafts import LONGEST, NGRAM, RECORDED
from gen.loop.speculation.settings import MOST, MOST_RECORDED


class Recorded:
    """How far a text that grows has come in one that was made before."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._tokens: Longs = np.array(token_ids, np.int64)
        self._at = 0  # the place of the next token
        self._same = 0  # how many tokens before it are the same
        self._lost = False  # whether that place has to be found
        self._parted = False  # whether it ever had to be

    def follow(self, made: Longs) -> None:
        """The text goes on with these tokens."""
        there = self._tokens[self._at : self._at + len(made)]
        same = 0
        for expected, token in zip(there.tolist(), made.tolist(), strict=False):
            if expected != token:
                break
            same += 1
        self._at += same
        self._same += same
        if same < len(made):
            self._lost = self._parted = True

    def drafts(self, text: Longs, least: int) -> list[tuple[int, int]]:
        """The tokens that follow, and the kind of each: 7 at first, and about twice as many as were the same so far.

        Args:
            text: the tokens so far, those of the prompt too.
            least: how many of its last tokens must stand in the old text.
        """
        if self._lost:
            found, count = places_of_last(text, self._tokens)
            if count < least:
                return []
            nearest = np.abs(found - self._at).argmin()
            self._at = int(found[nearest]) + 1
            self._same = count
            self._lost = False
        most = min(MOST_RECORDED, max(MOST, (1 << self._same.bit_length()) - 1))
        following = self._tokens[self._at : self._at + most].tolist()
        if not self._parted or self._same >= NGRAM:
            return [(token, RECORDED) for token in following]
        return [(token, min(self._same + place, LONGEST)) for place, token in enumerate(following)]


def places_of_last(text: Longs, within: Longs) -> tuple[Longs, int]:
    """Where the last tokens of a text stand within others, as many of them as can be found, at most `NGRAM`.

    Returns:
        The places of the last one, in order; how many were found.
    """
    last = len(text) - 1
    at, count = np.flatnonzero(within == text[last]), 1
    while at.size and count < min(NGRAM, len(text)):
        longer = at[(within[at - count] == text[last - count]) & (at >= count)]
        if not longer.size:
            break
        at, count = longer, count + 1
    return at, count if at.size else 0
