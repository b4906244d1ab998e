"""Regexes sought in a text that comes in pieces, in one pass and without a step back.

Each place of the text may begin a match: there a thread starts, which is a state of an automaton and its first place. A
character moves all threads. Of two that are in the same state the earlier one stays, so there are never more threads
than states. Example: "ab+c" in "abbab",

    a: from 0      b: from 0      b: from 0      a: from 3      b: from 3      now "c" would end a match from 3

The text before the first thread's place is certain: a thread ends where no text can make it a match.
"""

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import numpy as np

from gen.constraints.automata.arrays import moved
from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import Budget, TooLarge

Threads = Mapping[int, int]
"""States, each with the place where its match would begin, the earliest first."""

_MOST_STATES = 2_000  # each may have a thread, and each thread takes a step for each character
_NO_EDGES, _NO_STATES = np.empty((0, 4), np.int32), np.empty(0, np.bool_)
_ANY = (op.SUBPATTERN, (None, int(re.DOTALL), 0, [(op.ANY, None)]))  # any character


def begun_at_end(text: str, mark: str, begin: int = 0) -> int:
    """How many of the last characters of a text, from `begin` on, are the first ones of a mark, which more text may
    complete. Example: 3 of "Hi <to" for "<tool>"."""
    longest = min(len(mark) - 1, len(text) - begin)
    return next((count for count in range(longest, 0, -1) if text.endswith(mark[:count])), 0)


class Found(NamedTuple):
    """A match: where it begins and ends, and the length of the text that has shown it."""

    begin: int
    end: int
    shown: int


class _Automaton(NamedTuple):
    """Texts that match.

    Attributes:
        first: the state before a match at the text's beginning; -1: there is no such match.
        later: the state before the last character before any other match, or -1; None where `first` will do behind it.
    """

    texts: Dfa
    first: int
    later: int | None

    def begun(self, code: int) -> int:
        """The state before a match, after this character."""
        if self.later is None:
            return self.first
        return self.texts.after(self.later, code) if self.later >= 0 else -1

    def holds(self, text: str, begin: int) -> bool:
        """Whether all of a text from a place on is a match."""
        state = self.begun(ord(text[begin - 1])) if begin else self.first
        for code in map(ord, text[begin:]):
            state = self.texts.after(state, code) if state >= 0 else -1
        return state >= 0 and bool(self.texts.final[state])


class Search:
    """A regex, sought in a text that grows, as Python's re reads it.

    The match is the one that is complete in the shortest text, of several the one that begins first, and of several
    that begin there the longest.

    Args:
        anywhere: whether a match may begin behind the text's beginning.

    Attributes:
        pattern, flags: what was given.
        empty: whether it matches a text without characters.
    Raises:
        Unsupported: it has references to groups, look-around, or something else that no automaton can say.
        TooLarge: it has too many states, or takes too long to make.
    """

    def __init__(self, pattern: re.Pattern[str], *, anywhere: bool = True) -> None:
        self.pattern, self.flags, self._anywhere = pattern.pattern, pattern.flags, anywhere
        tree = parser.parse(pattern.pattern, pattern.flags)
        read = partial(_read, flags=tree.state.flags, around=_has_anchors(tree), budget=Budget())
        items = [(op.SUBPATTERN, (None, 0, 0, tree))]
        self._whole = self._sought = read(items)
        if self._whole.later is not None:  # the next character may show that an anchor holds
            self._sought = read([*items, (op.MAX_REPEAT, (0, 1, [_ANY]))])
        self._final = frozenset(np.flatnonzero(self._sought.texts.final).tolist())
        self.empty = self._sought.holds("", 0)

    def start(self) -> Threads:
        """The threads before the first character."""
        return {self._sought.first: 0} if self._sought.first >= 0 else {}

    def read(self, threads: Threads, text: str, place: int) -> tuple[Threads, Found | None]:
        """Move the threads by the characters of a text from a place on, up to the first match.

        Args:
            text: all that came so far. It is only read from `place` on; with a match, from the character before it on.
        Returns:
            The threads, and the match, or None.
        """
        after, begun = self._sought.texts.after, self._sought.begun
        for at, code in enumerate(map(ord, text[place:]), place):
            moved = dict[int, int]()
            for state, begin in threads.items():
                target = after(state, code)
                if target >= 0 and target not in moved:
                    moved[target] = begin
            if self._anywhere and (state := begun(code)) >= 0:
                moved.setdefault(state, at + 1)
            threads = moved
            if not self._final.isdisjoint(moved):
                begin = next(begin for state, begin in moved.items() if state in self._final)
                return threads, Found(begin, at + self._is_whole(text[: at + 1], begin), at + 1)
        return threads, None

    def _is_whole(self, text: str, begin: int) -> bool:
        """Whether the match that begins there ends with the text, or the last character only shows that it is one."""
        return self._whole is self._sought or self._whole.holds(text, begin)


@lru_cache(256)
def search_of(pattern: re.Pattern[str]) -> Search:
    """A regex to seek anywhere in a text; see `Search`."""
    return Search(pattern)


def _read(items: list[Any], *, flags: int, around: bool, budget: Budget) -> _Automaton:
    """The automaton of parsed items.

    Args:
        around: whether what they match depends on what is around it.
    """
    from gen.constraints.automata.regexes import read_tree  # calls without regexes do without it

    first = read_tree(items, flags, budget, certain=None)
    later = read_tree([_ANY, *items], flags, budget, certain=None) if around else None
    found = [one for one in (first, later) if one is not None]
    states = sum(len(one.final) for one in found)
    if states > _MOST_STATES:
        raise TooLarge(f"an automaton of {states} states, more than {_MOST_STATES}")
    beyond = 0 if first is None else len(first.final)
    edges = [moved(one.edges, beyond if one is later else 0) for one in found]
    texts = Dfa(np.concatenate([_NO_EDGES, *edges]), np.concatenate([_NO_STATES, *(one.final for one in found)]))
    behind = beyond if later is not None else -1
    return _Automaton(texts, -1 if first is None else 0, behind if around else None)


def _has_anchors(tree: Any) -> bool:
    """Whether there is `^`, `$`, `\\b` or the like in a part of Python's parse tree."""
    if isinstance(tree, list | tuple | parser.SubPattern):
        return any(map(_has_anchors, tree))
    return tree is op.AT
