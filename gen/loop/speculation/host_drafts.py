"""Drafts that the host makes between two steps, on a CPU: there it takes a tenth of the time of `look_up`, and it can
see where the tokens that followed before would not match the type.

Example: a text so far is `{"name": "Ada Byron`, and the prompt says "Ada Byron, 36". A name may have a comma in it, but
here the comma suggests that the name ends. So `",` is the first draft, and forced tokens follow it: ` "age": `.

Where a text was made before, what follows there is drafted as long as the new text is the same, and again where the new
text comes back to it. Example: the old text is "The cat sat on the mat.", and the new one so far "The dog sat on". At
"dog" they part. The last two tokens, " sat" and " on", stand in the old text too: " the mat." follows there.
"""

from collections.abc import Sequence
from typing import Self

from gen.loop.speculation.drafts import ENDING, FORCED, LONGEST, NGRAM, RECORDED
from gen.loop.speculation.settings import MOST, MOST_RECORDED, Speculation
from gen.loop.speculation.words import Words, ends_long_word, is_in_word
from gen.stages.ahead import Ahead


class Places:
    """Tokens, and the places where each of them stands.

    Attributes:
        tokens: the tokens so far.
    """

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._of: dict[int, list[int]] = {}
        self.add(token_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        for place, token in enumerate(token_ids, len(self.tokens)):
            self._of.setdefault(token, []).append(place)
        self.tokens += token_ids

    def of_last(self, text: Sequence[int]) -> tuple[list[int], int]:
        """Where the last tokens of a text stand, as many of them as can be found, at most `NGRAM`.

        Returns:
            The places of the last one, in order; how many were found.
        """
        at, count = self._of.get(text[-1], []), 1
        while at and count < min(NGRAM, len(text)):
            newest = text[-1 - count]
            longer = [place for place in at if place >= count and self.tokens[place - count] == newest]
            if not longer:
                break
            at, count = longer, count + 1
        return at, count if at else 0


class EarlierText:
    """How far a text that grows has come in one that was made before."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._places = Places(token_ids)
        self._at = 0  # the place of the next token
        self._same = 0  # how many tokens before it are the same
        self._lost = False  # whether that place has to be found
        self._parted = False  # whether it ever had to be

    def follow(self, made: Sequence[int]) -> None:
        """The text goes on with these tokens."""
        same = 0
        for expected, token in zip(self._places.tokens[self._at : self._at + len(made)], made, strict=False):
            if expected != token:
                break
            same += 1
        self._at += same
        self._same += same
        if same < len(made):
            self._lost = self._parted = True

    def drafts(self, text: Sequence[int], least: int) -> list[tuple[int, int]]:
        """The tokens that follow, and the kind of each: 7 at first, and about twice as many as were the same so far.

        Args:
            text: the tokens so far, those of the prompt too.
            least: how many of its last tokens must stand in the old text.
        """
        if self._lost:
            found, count = self._places.of_last(text)
            if count < least:
                return []
            self._at = min(found, key=lambda place: abs(place - self._at)) + 1
            self._same = count
            self._lost = False
        most = min(MOST_RECORDED, max(MOST, (1 << self._same.bit_length()) - 1))
        following = self._places.tokens[self._at : self._at + most]
        if not self._parted or self._same >= NGRAM:
            return [(token, RECORDED) for token in following]
        return [(token, min(self._same + place, LONGEST)) for place, token in enumerate(following)]


_SIGNS = tuple(bytes([sign]) for sign in b",;:!?()\n")  # signs that may follow a name or a number in prose
_WORD = 6  # most words have at most so many tokens


class SoFar:
    """A text as it grows.

    Args:
        draft: a text that was made before, which it may follow; empty if there is none.

    Attributes:
        tokens: the tokens of its prompt, and then its own.
    """

    def __init__(self, prompt_ids: Sequence[int], draft: Sequence[int] = ()) -> None:
        self._prompt_ids, self.tokens = prompt_ids, [*prompt_ids]
        self._before = Places()  # all but the newest one, once they are looked through
        self._words: Words | None = None
        self._recorded = EarlierText(draft) if draft else None

    def take(self, made: Sequence[int]) -> Self:
        """Take the text's own tokens; those that it had before are not looked at."""
        new = made[len(self.tokens) - len(self._prompt_ids) :]
        self.tokens += new
        if self._recorded is not None and new:
            self._recorded.follow(new)
        return self

    def recorded(self, least: int) -> list[tuple[int, int]]:
        """What follows in the text that was made before, and the kind of each token; see `EarlierText.drafts`."""
        return [] if self._recorded is None else self._recorded.drafts(self.tokens, least)

    def found(self, ahead: Ahead | None, newest: int, *, drafted: bool, least: int) -> list[tuple[int, int]]:
        """Tokens that may follow, and the kind of each.

        Args:
            newest: the token before them.
            drafted: whether this token is a draft.
            least: see `drafts_of`.
        """
        if ahead is not None and (encode := ahead.encoder()) is not None:
            self._words = self._words or Words(self._prompt_ids, ahead, encode)
            if not is_in_word(ahead.spelled(newest)):
                typed = self._words.likely(ahead)
            else:
                own = self.tokens[len(self._prompt_ids) :]
                typed = [] if drafted else self._words.going_on(own[-LONGEST:], ahead)
            if typed:
                return typed
        if drafted:
            return []
        tokens, count = self.found_before(least)
        return [(token, min(count + place, LONGEST)) for place, token in enumerate(tokens)]

    def found_before(self, least: int = 1) -> tuple[list[int], int]:
        """As `gen.loop.speculation.drafts.look_up`, for one text: `MOST` tokens, and how many last tokens were found.

        If fewer than `least` were found, there are no tokens.
        """
        self._before.add(self.tokens[len(self._before.tokens) : -1])
        at, count = self._before.of_last(self.tokens)
        if count < max(1, least):
            return [], 0
        follow = self.tokens[at[-1] + 1 : at[-1] + 1 + MOST]
        return (follow * MOST)[:MOST], count


def drafts_of(
    text: SoFar, speculation: Speculation, ahead: Ahead | None, least: int = 1
) -> tuple[list[int], list[int]]:
    """Drafts for the next step of a text, and the kind of each.

    Args:
        ahead: goes ahead of the text under its type; None without a type.
        least: how many of the last tokens must stand before what is drafted.
    """
    drafts, kinds = list[int](), list[int]()
    for token, kind in text.recorded(least):
        if not (ahead is None or ahead.go(token)):
            break
        drafts.append(token)
        kinds.append(kind)
    if drafts:
        return drafts, kinds
    found = list[tuple[int, int]]()  # tokens that may follow, and their kinds
    while len(drafts) < speculation.most:
        token, kind, guess = -1, 0, None if ahead is None or not speculation.output_type else ahead.guess()
        if guess is not None and guess.forced:
            token, kind = guess.token, FORCED
            found = found[1:] if found and found[0][0] == token else []
        else:
            if speculation.prompt and not found and (not drafts or kinds[-1] == FORCED):
                newest = drafts[-1] if drafts else text.tokens[-1]
                found = text.found(ahead, newest, drafted=bool(drafts), least=least)
            if found:
                (token, kind), found = found[0], found[1:]
            may_end = guess is not None and guess.token >= 0 and kinds[-1:] != [FORCED]  # a part begins after FORCED
            if kind and may_end and ahead is not None and guess is not None and _ends(ahead, text, drafts, token):
                token, kind, found = guess.token, ENDING, []
        if token < 0 or not (ahead is None or ahead.go(token)):
            break
        drafts.append(token)
        kinds.append(kind)
    return drafts, kinds


def _ends(ahead: Ahead, text: SoFar, drafts: Sequence[int], token: int) -> bool:
    """Whether a token that followed before suggests that a part of a typed text ends here."""
    sign = ahead.spelled(token).strip(b" ")
    if sign in (b".", b".\n"):  # it ends a sentence or an abbreviation
        return ends_long_word(b"".join(map(ahead.spelled, [*text.tokens[-_WORD:], *drafts])))
    return sign[:1] in _SIGNS or not ahead.allows(token)
