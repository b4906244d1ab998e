"""Stop strings and stop regexes, found in text that arrives in pieces."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from typing import Any

from gen.requests.stops import Stop


class StopStrings:
    """Passes text on up to the first stop, however the text is cut into pieces.

    The first stop is the one that ends first; a regex ends as soon as it matches in the text so far. Of stops that end
    at the same place, the longest counts. Text that may become part of a stop is held back until that is decided. The
    hidden text of special tokens is searched too, but it is only passed on as part of a stop.

    Args:
        include: whether the stop that was found is passed on too.

    Attributes:
        found: whether a stop has come; all later text is dropped.
        stop: the stop that has come, a regex as its pattern; None before.
    """

    def __init__(self, stops: Sequence[Stop], *, include: bool = False) -> None:
        self._strings = [stop for stop in stops if isinstance(stop, str)]
        self._patterns = [stop for stop in stops if isinstance(stop, re.Pattern)]
        self._include = include
        self._text = ""
        self._at = 0  # where the held text begins
        self._shown: list[bool] = []  # whether each character of the held text is shown
        self.found = False
        self.stop: str | None = None

    def push(self, piece: str, *, hidden: bool = False) -> str:
        """Take more text; return what is certain to come before any stop."""
        if self.found or not piece:
            return ""
        before = len(self._text)
        self._text += piece
        self._shown = [*self._shown, *[not hidden] * len(piece)]
        if spans := [*self._strings_found(), *self._patterns_found(before)]:
            _, begin, minus_end, self.stop = min(spans)
            taken = self._take(begin) + (self._text[begin:-minus_end] if self._include else "")
            self.found, self._at = True, len(self._text)
            return taken
        return self._take(self._undecided())

    def flush(self) -> str:
        """The held text, when no more will come."""
        return self._take(len(self._text))

    def _strings_found(self) -> list[tuple[int, int, int, str]]:
        """For each stop string in the text: the length of the text up to its end, its start, minus its end, itself."""
        places = [(self._text.find(stop, self._at), stop) for stop in self._strings]
        return [(at + len(stop), at, -at - len(stop), stop) for at, stop in places if at >= 0]

    def _patterns_found(self, before: int) -> list[tuple[int, int, int, str]]:
        """As `_strings_found`, for each regex: in the shortest text, longer than `before`, in which it matches."""
        found = []
        for pattern in self._patterns:
            ends = range(before + 1, len(self._text) + 1)
            matches = ((end, pattern.search(self._text, self._at, end)) for end in ends)
            found += [(end, match.start(), -match.end(), pattern.pattern) for end, match in matches if match][:1]
        return found

    def _undecided(self) -> int:
        """Where the text begins that may still become part of a stop."""
        overlaps = (self._overlap(self._text[self._at :], stop) for stop in self._strings)
        place = len(self._text) - max(overlaps, default=0)
        for pattern in self._patterns:
            partly = _partly(pattern)
            match = partly.search(self._text, self._at, partial=True) if partly else None
            place = min(place, match.start() if match else self._at)
        return place

    def _take(self, end: int) -> str:
        """The held text up to `end`, without hidden characters."""
        taken = "".join(compress(self._text[self._at : end], self._shown))
        self._at, self._shown = end, self._shown[end - self._at :]
        return taken

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How many last characters of the text are the first ones of a stop string."""
        longest = min(len(stop) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@lru_cache(maxsize=256)
def _partly(pattern: re.Pattern[str]) -> Any:
    """The regex, compiled by a module that tells where a match may begin; None if that module cannot read it."""
    import regex

    names = [name for name in "AIMSX" if pattern.flags & getattr(re, name)]
    flags = sum(getattr(regex, name) for name in names)
    try:
        return regex.compile(pattern.pattern, flags)
    except regex.error:
        return None
