"""Anchors and word boundaries: edges that read nothing and hold only between certain characters.

`without_guards` makes an automaton without such edges: its states also record what the last character was and what the
next one may be. Example: in "a$" the edge of `$` holds only where the next character is END, so the state after it
records "next: END", has no edges, and accepts.
"""

import re
from collections.abc import Mapping

from gen.constraints.automata.characters import (
    EVERY,
    NEWLINE,
    Ranges,
    Reading,
    category,
    complement,
    intersection,
)
from gen.constraints.automata.nfa import Nfa

BEGIN, LINE_END, WORD, PERHAPS, OTHER, END, LAST_LINE_END = (1 << bit for bit in range(7))
"""Kinds of what stands before or after a place: the text's beginning, a newline, a character that is in `\\w` in every
reading, one that is in `\\w` in one reading only, any other, the text's end, a newline that is the last character."""

_ANYTHING = LINE_END | WORD | PERHAPS | OTHER | END | LAST_LINE_END
_NOT_WORD = BEGIN | LINE_END | OTHER | END | LAST_LINE_END

Guard = Mapping[int, int]
"""For each kind of the last character, the kinds that the next one may have, as bits."""


def at_begin() -> Guard:
    """`\\A`, and `^` without MULTILINE."""
    return {BEGIN: _ANYTHING}


def at_end() -> Guard:
    """`\\Z`, and `$` of ECMA 262."""
    return _after_all(END)


def caret(flags: int) -> Guard:
    """Python's `^`."""
    return {BEGIN: _ANYTHING, LINE_END: _ANYTHING} if flags & re.MULTILINE else at_begin()


def dollar(flags: int, ecma: bool, certain: bool | None) -> Guard:
    """`$`; in Python it also holds before a last newline, in ECMA 262 it does not."""
    if flags & re.MULTILINE:
        return _after_all(END | LINE_END | LAST_LINE_END)
    return at_end() if ecma and certain else _after_all(END | LAST_LINE_END)


def boundary(inside: bool, certain: bool | None, flags: int, ecma: bool) -> Guard:
    """`\\b`, or `\\B` if `inside`. Beside a character that is in `\\w` in one reading only, it may be uncertain.

    Args:
        certain: None for Python's own reading, with these flags.
        ecma: whether there are readings in which only one of two such characters is in `\\w`.
    """
    if certain is None:
        word = WORD if flags & re.ASCII else WORD | PERHAPS
        other = _ANYTHING & ~word
        if inside:
            return {**_each(word, word), **_each(other, other), BEGIN: other & ~END}
        return {**_each(word, other), **_each(other | BEGIN, word)}
    if inside and certain:
        return {**_each(_NOT_WORD, _NOT_WORD), BEGIN: _NOT_WORD & ~END, WORD: WORD, PERHAPS: 0 if ecma else PERHAPS}
    if inside:
        return _after_all(_ANYTHING)
    if certain:
        return {**_each(_NOT_WORD, WORD), WORD: _NOT_WORD & _ANYTHING}
    beside = _ANYTHING if ecma else _ANYTHING & ~PERHAPS
    return {**_each(_NOT_WORD, WORD | PERHAPS), WORD: _ANYTHING & ~WORD, PERHAPS: beside}


def _each(kinds: int, after: int) -> dict[int, int]:
    return {kind: after for kind in (BEGIN, LINE_END, WORD, PERHAPS, OTHER) if kind & kinds}


def _after_all(after: int) -> Guard:
    return _each(BEGIN | LINE_END | WORD | PERHAPS | OTHER, after)


def without_guards(
    nfa: Nfa, guards: Mapping[int, list[tuple[int, Guard]]], start: int, accept: int, ecma: bool = False
) -> tuple[Nfa, int, int]:
    """The automaton without guarded edges.

    Args:
        guards: for each state, the states that it leads to without reading, each with the guard that must hold.
        ecma: whether the readings are those of JSON Schema's patterns.
    Returns:
        The automaton, its start and where it accepts.
    """
    if not guards:
        return nfa, start, accept
    kinds = _kinds([guard for edges in guards.values() for _, guard in edges], "rust" if ecma else "unicode")
    reading, silent = nfa.rows()
    out = Nfa()
    end = out.state()
    number: dict[tuple[int, int, int], int] = {}
    todo: list[tuple[int, int, int]] = []

    def place(state: int, before: int, after: int) -> int:
        key = (state, before, after)
        if key not in number:
            number[key] = out.state()
            todo.append(key)
        return number[key]

    first = place(start, BEGIN, _ANYTHING)
    while todo:
        state, before, after = key = todo.pop()
        here = number[key]
        if state == accept and after & END:
            out.join(here, end)
        for target in silent[state]:
            out.join(here, place(target, before, after))
        for target, guard in guards.get(state, ()):
            if still := after & guard.get(before, 0):
                out.join(here, place(target, before, still))
        read: dict[int, list[tuple[int, int]]] = {}
        for low, high, target in reading[state]:
            read.setdefault(target, []).append((low, high))
        for target, characters in read.items():
            for kind, ranges in kinds:
                if then := _after(kind, after):
                    reached = place(target, kind, then)
                    for low, high in intersection(tuple(characters), ranges):
                        out.edge(here, low, high, reached)
    return out, first, end


def _after(kind: int, allowed: int) -> int:
    """The kinds that may follow a character of `kind`; 0 if that character is not `allowed` itself."""
    if kind != LINE_END:
        return _ANYTHING if allowed & kind else 0
    return (_ANYTHING & ~END if allowed & LINE_END else 0) | (END if allowed & LAST_LINE_END else 0)


def _kinds(guards: list[Guard], widest: Reading) -> list[tuple[int, Ranges]]:
    """The kinds of characters that the guards tell apart, with their ranges; all other characters are OTHER.

    Args:
        widest: the reading with the most characters in `\\w`.
    """

    def told_apart(one: int, other: int) -> bool:
        return any(
            guard.get(one) != guard.get(other)
            or any(bool(after & one) != bool(after & other) for after in guard.values())
            for guard in guards
        )

    found: list[tuple[int, Ranges]] = []
    words = told_apart(WORD, OTHER) or told_apart(PERHAPS, OTHER)
    if words:
        certain = category("w", "ascii")
        found += [(WORD, certain), (PERHAPS, intersection(category("w", widest), complement(certain)))]
    if told_apart(LINE_END, OTHER) or told_apart(LAST_LINE_END, OTHER):
        found.append((LINE_END, NEWLINE))
    rest = EVERY
    for _, ranges in found:
        rest = intersection(rest, complement(ranges))
    return [*found, (OTHER, rest)]
