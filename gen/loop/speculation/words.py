"""Drafts words of the prompt in a text with an output type, in the tokens that the text has for them.

Example: a prompt says "Send it to Hamburg." and has the token ` Hamburg`. In `{"city": "H` the word begins without a
space, so its tokens are `H` and `amburg`. The prompt has neither token, but it has a word that begins with H: `amburg`
is the first draft, and the tokens after the word in the prompt follow it. After `"colour": "` the type allows three
words, and the prompt has one of these: it is drafted before any letter of it has been chosen.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, islice

from gen.loop.speculation.drafts import LIKELY, WORD
from gen.loop.speculation.settings import MOST
from gen.stages.ahead import Ahead

_LETTERS = rb"0-9A-Za-z\x80-\xf4"  # letters and digits, in UTF-8
_WORD = re.compile(rb"[%s]+" % _LETTERS)
_LONG = re.compile(rb"[A-Za-z\x80-\xf4]{4}\Z")
_NEWEST = 4096  # tokens of a prompt whose words are looked at
_BYTES = 48  # of a word, at most; a script without spaces has longer ones
_FEW = 3  # if a type allows at most so many words of a prompt, one of them is likely


class Words:
    """The words of a prompt.

    Args:
        ahead: spells the prompt's tokens.
        encode: gives the tokens of a word without a space before it.
    """

    def __init__(self, prompt_ids: Sequence[int], ahead: Ahead, encode: Callable[[str], list[int]]) -> None:
        self._ids, self._encode = prompt_ids[-_NEWEST:], encode
        pieces = [*map(ahead.spelled, self._ids)]
        self._text = b"".join(pieces)
        self._begins = [0, *accumulate(map(len, pieces))]  # where each token begins in the text, and the text's end
        self._by_letter: dict[int, list[bytes]] = {}  # without repetitions, the newest first
        for word in dict.fromkeys(reversed(_WORD.findall(self._text))):
            if len(word) <= _BYTES:
                self._by_letter.setdefault(word[0], []).append(word)

    def likely(self, ahead: Ahead) -> list[tuple[int, int]]:
        """The tokens of the newest word of the prompt that may come now, and their kind.

        None if the type decides little, because it allows many of the words, or all of them.
        """
        fitting = (word for letter in ahead.letters(self._by_letter) for word in self._by_letter[letter])
        words = [*islice((word for word in fitting if ahead.may_be(word)), _FEW + 1)]
        if not words or len(words) in (_FEW + 1, sum(map(len, self._by_letter.values()))):
            return []
        newest = max(words, key=self._text.rfind)
        return [(token, LIKELY) for token in self._encode(newest.decode(errors="ignore"))]

    def going_on(self, last: Sequence[int], ahead: Ahead) -> list[tuple[int, int]]:
        """The rest of a word that the last tokens of a text have begun, and the tokens after it in the prompt.

        Returns:
            At most `MOST` tokens, each with its kind, of the newest word that begins in this way. None if the text has
            a space before the word: then the word has the same tokens as in the prompt.
        """
        begun = list[int]()
        for token in reversed(last):
            spelled = ahead.spelled(token)
            if not _WORD.fullmatch(spelled):
                if is_in_word(spelled):
                    return []
                break
            begun.insert(0, token)
        letters = re.escape(b"".join(map(ahead.spelled, begun)))
        pattern = rb"(?<![%s])%s[%s]{0,%d}" % (_LETTERS, letters, _LETTERS, _BYTES)
        matches = [*re.finditer(pattern, self._text)] if begun else []
        if not matches:
            return []
        newest = matches[-1]
        word = self._encode(newest[0].decode(errors="ignore"))
        if word[: len(begun)] != begun:
            return []
        following = bisect_left(self._begins, newest.end())
        behind = self._ids[following : following + MOST] if self._begins[following] == newest.end() else ()
        return [(token, WORD) for token in [*word[len(begun) :], *behind]][:MOST]


def ends_long_word(spelled: bytes) -> bool:
    """Whether a text ends in four letters: then its last word is taken to be neither an abbreviation nor a number."""
    return _LONG.search(spelled) is not None


def is_in_word(spelled: bytes) -> bool:
    """Whether a token ends in a letter or a digit."""
    return _WORD.match(spelled[-1:]) is not None
