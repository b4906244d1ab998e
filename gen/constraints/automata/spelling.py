"""Characters as bytes: automata over code points become automata over UTF-8, or over the content of JSON strings.

Characters that are one byte, unescaped, stay edges. Every other set of characters is written once as a small automaton,
which is copied for each state that the set leads to. Example: "é" is the bytes C3 A9, so edges of "é" from 0 and from 1
to 2 become 0 --C3--> 3, 1 --C3--> 3, 3 --A9--> 2.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gen.constraints.automata.arrays import Bools, Ints, ranges
from gen.constraints.automata.characters import LAST
from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Dfa, Table, table
from gen.constraints.automata.limits import MOST_WORK_OF_A_CONSTANT, Budget, Empty
from gen.constraints.automata.nfa import Nfa

Bytes = tuple[tuple[int, int], ...]
"""Ranges of bytes, one after the other."""

Encode = Callable[[int, int], tuple[Bytes, ...]]
"""How a range of code points is written in bytes."""


_BOUNDS = np.array([0, 32, 34, 35, 92, 93, 128, LAST + 1], np.int32)
"""Where ranges of characters begin. In every second one, from 32 to 33 on, each character is one byte, even in JSON."""


def raw_table(texts: Dfa, budget: Budget) -> Table:
    """Texts over code points as a table over the bytes of their UTF-8."""
    nfa = Nfa()
    start = nfa.state()
    return table(determinise(nfa, start, spell(nfa, texts, start, utf8), budget=budget))


def spell(nfa: Nfa, texts: Dfa, start: int, encode: Encode) -> int:
    """Write texts over code points into an automaton over bytes, after `start`; returns the state where they end."""
    end = nfa.state()
    again = bool((texts.edges[:, 3] == 0).any())  # texts come back to the first state, which cannot be `start` then
    begin = nfa.after(start) if again else start
    place = np.arange(len(texts.final), dtype=np.int32) + (nfa.new(len(texts.final) - 1) - 1)
    place[0] = begin
    nfa.join_all(place[texts.final], end)
    edges, alone = _pieces(texts.edges)
    edges[:, 0], edges[:, 3] = place[edges[:, 0]], place[edges[:, 3]]
    nfa.put(edges.compress(alone, 0))
    for characters, pairs in _by_characters(edges.compress(~alone, 0)):
        character = _character(characters, encode)
        if character is not None:
            _copy(nfa, character, pairs)
    return end


def _pieces(edges: Ints) -> tuple[Ints, Bools]:
    """Edges cut at `_BOUNDS`, and which pieces are of characters that are one byte each."""
    first, last = (np.searchsorted(_BOUNDS, edges[:, column], side="right") - 1 for column in (1, 2))
    piece = ranges(first, last + 1)
    edges = np.repeat(edges, last + 1 - first, 0)
    edges[:, 1] = np.maximum(edges[:, 1], _BOUNDS[piece])
    edges[:, 2] = np.minimum(edges[:, 2], _BOUNDS[piece + 1] - 1)
    return edges, piece % 2 == 1


def _by_characters(edges: Ints) -> list[tuple[tuple[tuple[int, int], ...], Ints]]:
    """Sets of characters, as ranges, each with the pairs of states, (n, 2), between which it has edges."""
    if not len(edges):
        return []
    edges = edges.take(np.argsort((edges[:, 0].astype(np.int64) << 32) + edges[:, 3], kind="stable"), 0)
    new = np.ones(len(edges), np.bool_)
    new[1:] = (edges[1:, 0] != edges[:-1, 0]) | (edges[1:, 3] != edges[:-1, 3])
    first = np.flatnonzero(new)
    sizes = np.diff(np.append(first, len(edges)))
    found: dict[tuple[tuple[int, int], ...], list[int]] = {}
    characters = list(zip(edges[:, 1].tolist(), edges[:, 2].tolist(), strict=True))
    for at, size in zip(first.tolist(), sizes.tolist(), strict=True):
        found.setdefault(tuple(characters[at : at + size]), []).append(at)
    return [(one, edges[places][:, [0, 3]]) for one, places in found.items()]


def _copy(nfa: Nfa, character: Dfa, pairs: Ints) -> None:
    """Copy the automaton of one character, whose only final state is the last one, between pairs of states; pairs that
    lead to the same state share all but the first byte.
    """
    last = len(character.final) - 1
    ends, which = np.unique(pairs[:, 1], return_inverse=True)
    place = np.empty((len(ends), last + 1), np.int32)
    place[:, last] = ends
    inner = len(ends) * (last - 1)
    place[:, 1:last] = (np.arange(inner, dtype=np.int32) + nfa.new(inner)).reshape(len(ends), last - 1)
    first = int(np.searchsorted(character.edges[:, 0], 1))
    begin = np.repeat(character.edges[None, :first], len(pairs), 0)
    begin[:, :, 0], begin[:, :, 3] = pairs[:, :1], place[which[:, None], character.edges[:first, 3]]
    inside = np.repeat(character.edges[None, first:], len(ends), 0)
    inside[:, :, 0], inside[:, :, 3] = place[:, character.edges[first:, 0]], place[:, character.edges[first:, 3]]
    nfa.put(begin.reshape(-1, 4))
    nfa.put(inside.reshape(-1, 4))


@lru_cache(2048)
def _character(ranges: tuple[tuple[int, int], ...], encode: Encode) -> Dfa | None:
    """The automaton over bytes of one character of these ranges; its final state is the last one."""
    nfa = Nfa()
    start, end = nfa.state(), nfa.state()
    known: dict[tuple[int, int, int], int] = {}
    for low, high in ranges:
        for sequence in encode(low, high):
            after = end
            for first, last in reversed(sequence[1:]):
                key = (first, last, after)
                if key not in known:
                    known[key] = nfa.state()
                    nfa.edge(known[key], *key)
                after = known[key]
            nfa.edge(start, *sequence[0], after)
    try:
        found = determinise(nfa, start, end, budget=Budget(MOST_WORK_OF_A_CONSTANT))
    except Empty:  # surrogates alone
        return None
    place = np.arange(len(found.final), dtype=np.int32)
    final, last = int(found.final.argmax()), len(place) - 1
    place[final], place[last] = last, final
    edges = found.edges.copy()
    edges[:, 0], edges[:, 3] = place[edges[:, 0]], place[edges[:, 3]]
    return Dfa(edges, np.arange(len(place)) == last)


def utf8(low: int, high: int) -> tuple[Bytes, ...]:
    """A range of code points as UTF-8, without surrogates."""
    todo, out = [(low, high)], []
    while todo:
        first, last = todo.pop()
        cut = _cut(first, last)
        if first > last:
            continue
        if cut is not None:
            todo += [(cut, last), (first, cut - 1)]
        elif not 0xD800 <= first <= 0xDFFF:
            out.append(tuple(zip(chr(first).encode(), chr(last).encode(), strict=True)))
    return tuple(out)


def _cut(first: int, last: int) -> int | None:
    """Where to cut a range, so that each part is a range in every byte; None if the range is so already."""
    for bound in (0x80, 0x800, 0xD800, 0xE000, 0x10000):
        if first < bound <= last:
            return bound
    if last >= 0x80:
        for bits in (6, 12, 18):
            below = (1 << bits) - 1
            if first & ~below != last & ~below:
                if first & below:
                    return (first | below) + 1
                if last & below != below:
                    return last & ~below
    return None


_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}


def json_content(low: int, high: int) -> tuple[Bytes, ...]:
    """A range of code points inside a JSON string, as `json.dumps(ensure_ascii=False)` writes them."""
    escaped = [code for code in (*range(32), 34, 92) if low <= code <= high]
    out = [tuple((byte, byte) for byte in f"\\{_SHORT.get(code, f'u{code:04x}')}".encode()) for code in escaped]
    for first, last in ((32, 33), (35, 91), (93, LAST)):
        if max(first, low) <= min(last, high):
            out += utf8(max(first, low), min(last, high))
    return tuple(out)
