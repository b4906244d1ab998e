"""Anchors and word boundaries: edges that read nothing and hold only between certain characters.

An automaton with such edges becomes one without: its states also say what the last character was and what the next one
may be. Example: "a$" with the text "a": the edge of `$` holds where the next is END, so that the state after it says
"next: END", has no edges, and accepts.
"""

import re
from collections.abc import Mapping

from gen.constraints.automata.characters import EVERY, NEWLINE, Ranges, category, complement, intersection
from gen.constraints.automata.nfa import Nfa

BEGIN, LINE_END, WORD, PERHAPS, OTHER, END, LAST_LINE_END = (1 << bit for bit in range(7))
"""What stands before or after a place: nothing, a newline, characters of `\\w`, or of it in one reading, others,
nothing, a newline that is the last character."""

_ANYTHING = LINE_END | WORD | PERHAPS | OTHER | END | LAST_LINE_END
_NOT_WORD = BEGIN | LINE_END | OTHER | END | LAST_LINE_END

Guard = Mapping[int, int]
"""For each kind of the last character the kinds that the next one may have, as bits."""


def at_begin() -> Guard:
    """`\\A`, and `^` without MULTILINE."""
    return {BEGIN: _ANYTHING}


def at_end() -> Guard:
    """`\\Z`, and `$` of ECMA 262."""
    return _after_all(END)


def caret(flags: int) -> Guard:
    """Python's `^`."""
    return {BEGIN: _ANYTHING, LINE_END: _ANYTHING} if flags & re.MULTILINE else at_begin()


def dollar(flags: int, ecma: bool, certain: bool) -> Guard:
    """`$`, to Python also before a last newline, to ECMA 262 not."""
    if flags & re.MULTILINE:
        return _after_all(END | LINE_END | LAST_LINE_END)
    return at_end() if ecma and certain else _after_all(END | LAST_LINE_END)


def boundary(inside: bool, certain: bool) -> Guard:
    """`\\b`, or with `inside` `\\B`. What is a word in one reading alone is a boundary, or none, only perhaps."""
    if inside and certain:
        return {**_each(_NOT_WORD, _NOT_WORD), BEGIN: _NOT_WORD & ~END, WORD: WORD, PERHAPS: PERHAPS}
    if inside:
        return _after_all(_ANYTHING)
    if certain:
        return {**_each(_NOT_WORD, WORD), WORD: _NOT_WORD & _ANYTHING}
    return {**_each(_NOT_WORD, WORD | PERHAPS), WORD: _ANYTHING & ~WORD, PERHAPS: _ANYTHING & ~PERHAPS}


def _each(kinds: int, after: int) -> dict[int, int]:
    return {kind: after for kind in (BEGIN, LINE_END, WORD, PERHAPS, OTHER) if kind & kinds}


def _after_all(after: int) -> Guard:
    return _each(BEGIN | LINE_END | WORD | PERHAPS | OTHER, after)


def without_guards(
    nfa: Nfa, guards: Mapping[int, list[tuple[int, Guard]]], start: int, accept: int
) -> tuple[Nfa, int, int]:
    """The automaton without guarded edges.

    Args:
        guards: for each state the states that it leads to without reading where the guard holds.
    Returns:
        The automaton, its start and where it accepts.
    """
    if not guards:
        return nfa, start, accept
    kinds = _kinds([guard for edges in guards.values() for _, guard in edges])
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
    """What may follow a character of a kind, if it was allowed to come; 0 if it was not."""
    if kind != LINE_END:
        return _ANYTHING if allowed & kind else 0
    return (_ANYTHING & ~END if allowed & LINE_END else 0) | (END if allowed & LAST_LINE_END else 0)


def _kinds(guards: list[Guard]) -> list[tuple[int, Ranges]]:
    """The kinds of characters that the guards tell apart; what they do not is OTHER."""

    def told_apart(one: int, other: int) -> bool:
        return any(
            guard.get(one) != guard.get(other)
            or any(bool(after & one) != bool(after & other) for after in guard.values())
            for guard in guards
        )

    found: list[tuple[int, Ranges]] = []
    words = told_apart(WORD, OTHER) or told_apart(PERHAPS, OTHER)
    if words:
        certain = category("w", True)
        found += [(WORD, certain), (PERHAPS, intersection(category("w", False), complement(certain)))]
    if told_apart(LINE_END, OTHER) or told_apart(LAST_LINE_END, OTHER):
        found.append((LINE_END, NEWLINE))
    rest = EVERY
    for _, ranges in found:
        rest = intersection(rest, complement(ranges))
    return [*found, (OTHER, rest)]
