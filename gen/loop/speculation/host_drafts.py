"""Drafts that the host makes between two steps, on a CPU: there it takes a tenth of the time of `look_up`, and it can
see where what followed before would have left the type.

Example: a text so far is `{"name": "Ada Byron`, and the prompt said "Ada Byron, 36". A comma may stand in a name. But
it says that the name ends, so that `",` is the first draft, and after it what is forced: ` "age": `.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from gen.constraints.automata.arrays import Longs
from gen.loop.speculation.drafts import ENDING, FORCED, LONGEST, NGRAM
from gen.loop.speculation.settings import MOST, Speculation
from gen.loop.speculation.words import Words, ends_long_word, is_in_word
from gen.stages.ahead import Ahead

_SIGNS = tuple(bytes([sign]) for sign in b",;:!?()\n")  # behind a name or a number in prose
_WORD = 6  # tokens that a word has at most, as a rule


class SoFar:
    """A text as it grows.

    Attributes:
        tokens: (n,), those of its prompt, and its own behind them.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._prompt_ids, self._room = prompt_ids, np.array(prompt_ids, np.int64)
        self.tokens: Longs = self._room
        self._words: Words | None = None

    def take(self, made: Sequence[int]) -> Self:
        """These are its own tokens now; those that it had before are not looked at."""
        prompt, count = len(self._prompt_ids), len(self.tokens)
        end = prompt + len(made)
        if end > len(self._room):
            self._room = np.concatenate([self.tokens, np.zeros(max(64, end), np.int64)])
        self._room[count:end] = made[count - prompt :]
        self.tokens = self._room[:end]
        return self

    def found(self, ahead: Ahead | None, newest: int, *, drafted: bool) -> list[tuple[int, int]]:
        """Tokens that may follow, and the kind of each.

        Args:
            newest: the token that they follow.
            drafted: whether it is a draft.
        """
        if ahead is not None and (encode := ahead.encoder()) is not None:
            self._words = self._words or Words(self._prompt_ids, ahead, encode)
            if not is_in_word(ahead.spelled(newest)):
                typed = self._words.likely(ahead)
            else:
                own = self.tokens[len(self._prompt_ids) :]
                typed = [] if drafted else self._words.going_on(own[-LONGEST:].tolist(), ahead)
            if typed:
                return typed
        if drafted:
            return []
        tokens, count = found_before(self.tokens)
        return [(token, min(count + place, LONGEST)) for place, token in enumerate(tokens)]


def drafts_of(text: SoFar, speculation: Speculation, ahead: Ahead | None) -> tuple[list[int], list[int]]:
    """Drafts for the next step of a text, and the kind of each.

    Args:
        ahead: what its type says; None where it is held to none.
    """
    drafts, kinds = list[int](), list[int]()
    found = list[tuple[int, int]]()  # what followed before
    while len(drafts) < speculation.most:
        token, kind, guess = -1, 0, None if ahead is None or not speculation.output_type else ahead.guess()
        if guess is not None and guess.forced:
            token, kind = guess.token, FORCED
            found = found[1:] if found and found[0][0] == token else []
        else:
            if speculation.prompt and not found and (not drafts or kinds[-1] == FORCED):
                newest = drafts[-1] if drafts else int(text.tokens[-1])
                found = text.found(ahead, newest, drafted=bool(drafts))
            if found:
                (token, kind), found = found[0], found[1:]
            may_end = guess is not None and guess.token >= 0 and kinds[-1:] != [FORCED]  # a part has just begun there
            if kind and may_end and ahead is not None and guess is not None and _ends(ahead, text, drafts, token):
                token, kind, found = guess.token, ENDING, []
        if token < 0 or not (ahead is None or ahead.go(token)):
            break
        drafts.append(token)
        kinds.append(kind)
    return drafts, kinds


def _ends(ahead: Ahead, text: SoFar, drafts: Sequence[int], token: int) -> bool:
    """Whether a part of a typed text ends where this followed before."""
    sign = ahead.spelled(token).strip(b" ")
    if sign in (b".", b".\n"):  # it ends a sentence, or shortens a word
        return ends_long_word(b"".join(map(ahead.spelled, [*text.tokens[-_WORD:].tolist(), *drafts])))
    return sign[:1] in _SIGNS or not ahead.allows(token)


def found_before(text: Longs) -> tuple[list[int], int]:
    """As `gen.loop.speculation.drafts.look_up`, of one text: (MOST,) tokens and how many were found; none, and 0."""
    last = len(text) - 1
    at, count = np.flatnonzero(text[:last] == text[last]), 1
    if not at.size:
        return [], 0
    while count < NGRAM and (longer := at[(text[at - count] == text[last - count]) & (at >= count)]).size:
        at, count = longer, count + 1
    follow: list[int] = text[at[-1] + 1 : at[-1] + 1 + MOST].tolist()
    return (follow * MOST)[:MOST], count
