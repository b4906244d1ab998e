"""Regular expressions, parsed by Python's own parser, as automata over code points, and from there over bytes.

Where Python's `re` and JSON Schema (ECMA 262) read a pattern differently, a text must match in both readings: `\\d`,
`\\w` and `\\s` are ASCII, and their complements leave out what either reading counts in. With re.ASCII there is one
reading. Nothing backtracks. Look-ahead works at the beginning of a pattern, as in `^(?!.*--)[a-z-]+$`; other
look-around and references to groups are not regular, or not supported. What ends a text is read as Python alone reads
it (`certain` is None).
"""

import re
from collections.abc import Sequence
from functools import reduce
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

from gen.constraints.automata import anchors
from gen.constraints.automata.characters import (
    EVERY,
    READINGS,
    Ranges,
    Reading,
    any_case,
    category,
    complement,
    dot,
    intersection,
    union,
)
from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Dfa, Table, table
from gen.constraints.automata.limits import MAX_STATES, Budget, Empty, TooLarge, Unsupported
from gen.constraints.automata.nfa import Nfa
from gen.constraints.automata.parsing import parsed
from gen.constraints.automata.spelling import raw_table
from gen.constraints.automata.texts import ANY, both, listed, of_length

_CATEGORIES = {
    op.CATEGORY_DIGIT: "d",
    op.CATEGORY_NOT_DIGIT: "D",
    op.CATEGORY_SPACE: "s",
    op.CATEGORY_NOT_SPACE: "S",
    op.CATEGORY_WORD: "w",
    op.CATEGORY_NOT_WORD: "W",
}


_WORK = 5  # of an item of a pattern
_CHARACTERS = re.ASCII | re.UNICODE  # one of the two holds: what `\w`, `\d`, `\s` and case are
_NAMES = {
    op.ASSERT: "look-around",
    op.ASSERT_NOT: "look-around",
    op.ATOMIC_GROUP: "an atomic group",
    op.GROUPREF: "a reference to a group",
    op.GROUPREF_EXISTS: "a condition on a group",
    op.POSSESSIVE_REPEAT: "a possessive repeat",
}


def regex_table(pattern: str) -> Table:
    """The texts that a pattern of Python's re matches in full, in UTF-8. Raises Unsupported, TooLarge, Empty."""
    budget = Budget()
    texts = matched(pattern, budget)
    if texts is None:
        raise Empty(f"no text matches the regex {pattern[:80]!r}")
    return raw_table(texts, budget)


def choice_table(texts: list[str]) -> Table:
    """These texts alone, in UTF-8. Raises TooLarge; Empty if there are none."""
    found = listed(text.encode() for text in texts)
    if found is None:
        raise Empty("a choice of no texts")
    return table(found)


def text_table(without: Sequence[str], max_chars: int | None) -> Table:
    """All texts without these strings, of at most this many characters. Raises TooLarge."""
    budget = Budget()
    texts: Dfa | None = ANY
    if without:
        with_them = matched("|".join(map(re.escape, without)), budget, search=True)
        texts = both(ANY, with_them, budget, without=True)
    texts = of_length(texts, 0, max_chars)
    assert texts is not None  # the empty text is one; tells mypy
    return raw_table(texts, budget)


def matched(
    pattern: str, budget: Budget, *, search: bool = False, ecma: bool = False, certain: bool = True
) -> Dfa | None:
    """The texts, over code points, that a pattern matches in full, or None.

    Args:
        search: whether it may match anywhere in a text, as JSON Schema's `pattern` does.
        ecma: whether JSON Schema's reading counts too.
        certain: whether a text must match in every reading; otherwise in any.
    Raises:
        Unsupported: the pattern is not regular, or not supported.
        TooLarge: too many states, or past the budget.
    """
    tree = parsed(pattern)
    return read_tree(list(tree), tree.state.flags, budget, search=search, ecma=ecma, certain=certain)


def read_tree(
    items: list[Any], flags: int, budget: Budget, *, search: bool = False, ecma: bool = False, certain: bool | None
) -> Dfa | None:
    """As `matched`, for a parsed pattern; `certain` may be None for Python's own reading."""
    try:
        return _Reader(flags, search, ecma, certain, budget).read(items)
    except RecursionError:
        raise TooLarge("a regex nested too deeply") from None


def characters_of(kind: Any, value: Any, flags: int, *, ecma: bool, certain: bool | None) -> Ranges | None:
    """The characters of an item of a parsed pattern that stands for one character; None for other items."""
    if kind is op.LITERAL:
        return _in_any_case(((value, value),), flags, ecma and certain)
    if kind is op.NOT_LITERAL:
        return complement(_in_any_case(((value, value),), flags, ecma and not certain))
    if kind is op.ANY:
        return dot(flags, ecma, certain)
    if kind is not op.IN:
        return None
    negated = value[0][0] is op.NEGATE
    members = value[negated:]
    plain = union(said if member is op.RANGE else (said, said) for member, said in members if member is not op.CATEGORY)
    plain = _in_any_case(plain, flags, ecma and certain is not None and certain is not negated)
    letters = {_CATEGORIES[said] for member, said in members if member is op.CATEGORY}
    sets = []
    for reading in _readings(flags, ecma, certain) if letters else READINGS[:1]:
        found = union([*plain, *(pair for letter in letters for pair in category(letter, reading))])
        sets.append(complement(found) if negated else found)
    return reduce(intersection, sets) if certain else union(pair for found in sets for pair in found)


def _readings(flags: int, ecma: bool, certain: bool | None) -> Sequence[Reading]:
    """The readings of a pattern; `certain` is None for Python's own alone."""
    if ecma:
        return (*READINGS, "rust")
    if flags & re.ASCII:
        return ("ascii",)
    return READINGS if certain is not None else ("unicode",)


def _in_any_case(ranges: Ranges, flags: int, of_ascii: bool | None) -> Ranges:
    """Characters, in any case if case is ignored; `of_ascii`: in ASCII only, as readers of JSON Schema differ there."""
    return any_case(ranges, flags | re.ASCII if of_ascii else flags)


class _Reader:
    """Makes the automaton of a parsed pattern."""

    def __init__(self, flags: int, search: bool, ecma: bool, certain: bool | None, budget: Budget) -> None:
        self._flags, self._search, self._ecma, self._certain, self._budget = flags, search, ecma, certain, budget

    def read(self, items: list[Any]) -> Dfa | None:
        """The texts that the items match: those that meet the look-aheads at the beginning and match the rest."""
        aheads, rest = look_aheads(items, self._flags, self._search)
        if not aheads:
            return self._texts(items, before=self._search, after=self._search)
        texts = self._texts(rest, before=False, after=self._search)
        for kind, (_, ahead) in aheads:
            wanted = kind is op.ASSERT
            reader = _Reader(self._flags, self._search, self._ecma, self._certain is wanted, self._budget)
            begun = reader._texts(list(ahead), before=False, after=True)
            texts = both(texts, begun, self._budget, without=not wanted)
        return texts

    def _texts(self, items: list[Any], *, before: bool, after: bool) -> Dfa | None:
        """The texts that the items match, with any text `before` and `after` where these are true."""
        self._nfa = Nfa()
        self._guards: dict[int, list[tuple[int, anchors.Guard]]] = {}
        start = self._nfa.state()
        here = start
        if before:
            self._nfa.edge(start, *EVERY[0], start)
            here = self._nfa.after(start)
        end = self._sequence(items, here, self._flags)
        if after:
            end = self._nfa.after(end)
            self._nfa.edge(end, *EVERY[0], end)
        nfa, start, end = anchors.without_guards(self._nfa, self._guards, start, end, self._ecma)
        try:
            return determinise(nfa, start, end, MAX_STATES, self._budget)
        except Empty:
            return None

    def _sequence(self, items: Any, state: int, flags: int) -> int:
        for kind, value in items:
            self._budget.spend(_WORK, "reading the regex")
            state = self._item(kind, value, state, flags)
        return state

    def _item(self, kind: Any, value: Any, state: int, flags: int) -> int:
        """Add an item of Python's parse tree after `state`; returns the state after it."""
        nfa = self._nfa
        letters = characters_of(kind, value, flags, ecma=self._ecma, certain=self._certain)
        if letters is not None:
            return nfa.reads(state, letters)
        if kind is op.BRANCH:
            end = nfa.state()
            for alternative in value[1]:
                nfa.join(self._sequence(alternative, nfa.after(state), flags), end)
            return end
        if kind is op.SUBPATTERN:
            _, more, less, items = value
            return self._sequence(items, state, within_group(flags, more, less))
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, items = value
            return self._repeat(least, most, items, state, flags)
        if kind is op.AT:
            end = nfa.state()
            self._guards.setdefault(state, []).append((end, self._guard(value, flags)))
            return end
        if kind is op.FAILURE:  # "(?!)", from Python 3.13 on
            return nfa.state()
        raise Unsupported(f"{_NAMES.get(kind, str(kind).lower())} in a regex is not regular, or not supported")

    def _repeat(self, least: int, most: Any, items: Any, state: int, flags: int) -> int:
        nfa = self._nfa
        for _ in range(least):
            state = self._sequence(items, nfa.after(state), flags)
        if most is op.MAXREPEAT:
            loop = nfa.after(state)
            nfa.join(self._sequence(items, nfa.after(loop), flags), loop)
            return nfa.after(loop)
        end = nfa.state()
        for _ in range(most - least):
            nfa.join(state, end)
            state = self._sequence(items, nfa.after(state), flags)
        nfa.join(state, end)
        return end

    def _guard(self, at: Any, flags: int) -> anchors.Guard:
        if at is op.AT_BEGINNING:
            return anchors.caret(flags)
        if at is op.AT_BEGINNING_STRING:
            return anchors.at_begin()
        if at is op.AT_END:
            return anchors.dollar(flags, self._ecma, self._certain)
        if at is op.AT_END_STRING:
            return anchors.at_end()
        certain = None if flags & re.ASCII and not self._ecma else self._certain
        return anchors.boundary(at is op.AT_NON_BOUNDARY, certain, flags, self._ecma)


def within_group(flags: int, more: int, less: int) -> int:
    """The flags that hold in a group, which has some more and some less."""
    kept = flags & ~_CHARACTERS if more & _CHARACTERS else flags
    return (kept | more) & ~less


def is_begin(item: Any, flags: int) -> bool:
    """Whether an item of a parsed pattern is an anchor at the text's beginning."""
    kind, value = item
    return kind is op.AT and (
        value is op.AT_BEGINNING_STRING or (value is op.AT_BEGINNING and not flags & re.MULTILINE)
    )


def look_aheads(items: list[Any], flags: int, search: bool) -> tuple[list[Any], list[Any]]:
    """The look-aheads that a parsed pattern begins with, behind an anchor if it is sought, and what is behind them."""
    begin = 0
    while begin < len(items) and is_begin(items[begin], flags):
        begin += 1
    end = begin
    while end < len(items) and items[end][0] in (op.ASSERT, op.ASSERT_NOT) and items[end][1][0] == 1:
        end += 1
    return ([], items) if search and not begin else (items[begin:end], items[end:])
