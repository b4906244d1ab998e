"""Drafts that the host makes between two steps, on a CPU: there it takes a tenth of the time of `look_up`, and it can
see where what followed before would have left the type.

Example: a text so far is `{"name": "Ada Byron`, and the prompt said "Ada Byron, 36". A comma may stand in a name. But
it says that the name ends, so that `",` is the first draft, and after it what is forced: ` "age": `.
"""

from collections.abc import Sequence

import numpy as np

from gen.constraints.automata.arrays import Longs
from gen.loop.speculation.drafts import ENDING, FORCED, LONGEST, NGRAM
from gen.loop.speculation.settings import MOST, Speculation
from gen.stages.ahead import Ahead

_SIGNS = tuple(bytes([sign]) for sign in b",;:!?()\n")  # behind a name or a number in prose


class SoFar:
    """A text as it grows: the tokens of its prompt, and its own behind them."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._tokens, self._prompt = np.array(prompt_ids, np.int64), len(prompt_ids)
        self._count = self._prompt

    def tokens(self, made: Sequence[int]) -> Longs:
        """All tokens, (n,), where the text has these; those that it had at the last call are not looked at."""
        end = self._prompt + len(made)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens[: self._count], np.zeros(max(64, end), np.int64)])
        self._tokens[self._count : end] = made[self._count - self._prompt :]
        self._count = end
        return self._tokens[:end]


def drafts_of(text: Longs, speculation: Speculation, ahead: Ahead | None) -> tuple[list[int], list[int]]:
    """Drafts for the next step of a text, and the kind of each.

    Args:
        text: its tokens so far, those of the prompt before them.
        ahead: what its type says; None where it is held to none.
    """
    drafts, kinds = list[int](), list[int]()
    found, count = list[int](), -1  # what followed before, and after how many of the last tokens
    while len(drafts) < speculation.most:
        token, kind, guess = -1, 0, None if ahead is None or not speculation.output_type else ahead.guess()
        if guess is not None and guess.forced:
            token, kind = guess.token, FORCED
            found = found[1:] if found[:1] == [token] else []
        else:
            if not drafts and speculation.prompt:
                found, count = found_before(text)
            if found:
                token, kind, found = found[0], min(count + len(drafts), LONGEST), found[1:]
            may_end = guess is not None and guess.token >= 0 and kinds[-1:] != [FORCED]  # a part has just begun there
            if kind and may_end and ahead is not None and guess is not None and _ends(ahead, token):
                token, kind, found = guess.token, ENDING, []
        if token < 0 or not (ahead is None or ahead.go(token)):
            break
        drafts.append(token)
        kinds.append(kind)
    return drafts, kinds


def _ends(ahead: Ahead, token: int) -> bool:
    """Whether a part of a typed text ends where this followed before."""
    return ahead.spelled(token).strip(b" ")[:1] in _SIGNS or not ahead.allows(token)


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
