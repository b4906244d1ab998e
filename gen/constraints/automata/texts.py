"""Sets of texts as deterministic automata over code points: both, without, of a length, listed; and as bytes.

Lengths and further patterns are taken here, over characters; only then are characters written as bytes, either as UTF-8
or as the content of a JSON string. Each set of characters is written once as a small automaton, which is copied.
A set of texts is a `Sparse`, or None if it is empty.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache

from gen.constraints.automata.automaton import (
    MAX_STATES,
    Edge,
    Empty,
    Nfa,
    Sparse,
    TooLarge,
    check_deadline,
    deadline_in,
    determinise,
    trimmed,
)
from gen.constraints.automata.characters import LAST

Bytes = tuple[tuple[int, int], ...]
"""Ranges of bytes, one after the other."""

ANY = Sparse([[(0, LAST, 0)]], [True])


def both(
    one: Sparse | None, other: Sparse | None, deadline: float, *, without: bool = False, max_states: int = MAX_STATES
) -> Sparse | None:
    """The texts of `one` that are also in `other`; or, `without`, that are not. Raises TooLarge."""
    if one is None or (other is None and not without):
        return None
    if other is None:
        return one
    gone = -1  # the state of `other` after what no text of it begins with
    number = {(0, 0): 0}
    order = [(0, 0)]
    rows: list[list[Edge]] = []
    for here, there in order:
        row: list[tuple[int, int, tuple[int, int]]] = []
        beside = other.edges[there] if there != gone else []
        for low, high, target in one.edges[here]:
            at = low
            for low2, high2, target2 in beside:
                if high2 < at or low2 > high:
                    continue
                if without and low2 > at:
                    row.append((at, low2 - 1, (target, gone)))
                row.append((max(at, low2), min(high, high2), (target, target2)))
                at = high2 + 1
            if without and at <= high:
                row.append((at, high, (target, gone)))
        for _, _, pair in row:
            if pair not in number:
                number[pair] = len(order)
                order.append(pair)
        if len(order) > max_states:
            raise TooLarge(f"more than {max_states} states")
        if len(rows) % 256 == 0:
            check_deadline(deadline)
        rows.append([(low, high, number[pair]) for low, high, pair in row])
    final = [one.final[here] and (without != (there != gone and other.final[there])) for here, there in order]
    return trimmed(rows, final)


def of_length(texts: Sparse | None, low: int, high: int | None, max_states: int = MAX_STATES) -> Sparse | None:
    """The texts with `low` to `high` characters (None: any number more). Raises TooLarge."""
    if texts is None or (not low and high is None):
        return texts
    if high is not None and high < low:
        return None
    most = low if high is None else high
    number = {(0, 0): 0}
    order = [(0, 0)]
    rows: list[list[Edge]] = []
    for state, count in order:
        row: list[Edge] = []
        for first, last, target in texts.edges[state] if count < most or high is None else []:
            pair = (target, min(count + 1, most))
            if pair not in number:
                number[pair] = len(order)
                order.append(pair)
            row.append((first, last, number[pair]))
        if len(order) > max_states:
            raise TooLarge(f"more than {max_states} states for texts of {low} to {high} characters")
        rows.append(row)
    return trimmed(rows, [texts.final[state] and count >= low for state, count in order])


def listed(texts: Iterable[str | bytes], max_states: int = MAX_STATES) -> Sparse | None:
    """These texts alone, over code points, or over bytes if they are bytes. Raises TooLarge."""
    nodes: list[dict[int, int]] = [{}]
    final = [False]
    for text in texts:
        at = 0
        for code in text if isinstance(text, bytes) else map(ord, text):
            after = nodes[at].get(code)
            if after is None:
                after = nodes[at][code] = len(nodes)
                nodes.append({})
                final.append(False)
                if after > max_states:
                    raise TooLarge(f"more than {max_states} states for the texts listed")
            at = after
        final[at] = True
    return trimmed([[(code, code, after) for code, after in sorted(node.items())] for node in nodes], final)


def holds(texts: Sparse | None, text: str) -> bool:
    """Whether a text is one of them."""
    if texts is None:
        return False
    state = 0
    for code in map(ord, text):
        after = next((target for low, high, target in texts.edges[state] if low <= code <= high), None)
        if after is None:
            return False
        state = after
    return texts.final[state]


def write(nfa: Nfa, texts: Sparse, start: int, encode: Callable[[int, int], tuple[Bytes, ...]] | None = None) -> int:
    """Put texts into an automaton over bytes from state `start`; returns the state where they end.

    Args:
        encode: how a range of code points is written in bytes; None if the texts are over bytes already.
    """
    end = nfa.state()
    again = any(target == 0 for row in texts.edges for _, _, target in row)  # then `start` must be kept free of it
    at = [nfa.after(start) if again else start, *(nfa.state() for _ in texts.edges[1:])]
    edges = nfa.edges
    for state, row in enumerate(texts.edges):
        if texts.final[state]:
            nfa.silent[at[state]].append(end)
        if encode is None:
            edges[at[state]] += [(low, high, at[target]) for low, high, target in row]
            continue
        characters: dict[int, list[tuple[int, int]]] = {}
        for low, high, target in row:
            characters.setdefault(target, []).append((low, high))
        for target, ranges in characters.items():
            character = _character(tuple(ranges), encode)
            if character is not None:
                _copy(nfa, character, at[state], at[target])
    return end


def _copy(nfa: Nfa, character: Sparse, start: int, end: int) -> None:
    """Copy the automaton of one character, whose only final state is the last one, between two states."""
    last = len(character.edges) - 1
    place = [start, *(nfa.state() for _ in range(1, last)), end]
    for state, row in enumerate(character.edges):
        nfa.edges[place[state]] += [(low, high, place[target]) for low, high, target in row]


@lru_cache(2048)
def _character(ranges: tuple[tuple[int, int], ...], encode: Callable[[int, int], tuple[Bytes, ...]]) -> Sparse | None:
    """One character of these ranges, in bytes; the final state is made the last one."""
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
                    nfa.edges[known[key]].append(key)
                after = known[key]
            nfa.edges[start].append((*sequence[0], after))
    try:
        found = determinise(nfa, start, end, deadline=deadline_in(60))
    except Empty:  # surrogates alone
        return None
    final, last = found.final.index(True), len(found.final) - 1
    swap = {final: last, last: final}
    rows = [[(low, high, swap.get(target, target)) for low, high, target in row] for row in found.edges]
    rows[final], rows[last] = rows[last], rows[final]
    return Sparse(rows, [state == last for state in range(last + 1)])


@lru_cache(8192)
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
    """Where a range must be cut so that its parts are a range in each byte; None if it is one."""
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


@lru_cache(8192)
def json_content(low: int, high: int) -> tuple[Bytes, ...]:
    """A range of code points inside a JSON string, as `json.dumps(ensure_ascii=False)` writes them."""
    escaped = [code for code in (*range(32), 34, 92) if low <= code <= high]
    out = [tuple((byte, byte) for byte in f"\\{_SHORT.get(code, f'u{code:04x}')}".encode()) for code in escaped]
    for first, last in ((32, 33), (35, 91), (93, LAST)):
        if max(first, low) <= min(last, high):
            out += utf8(max(first, low), min(last, high))
    return tuple(out)
