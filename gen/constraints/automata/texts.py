"""Sets of texts as deterministic automata over code points: what two share, differences, lengths, lists.

Lengths and further patterns are applied here, to characters; `gen.constraints.automata.spelling` writes characters as
bytes. A set of texts is a `Dfa`, or None if it is empty. Example: for the texts "a...a" of 1 to 2 characters, a state
is a pair of the state in "a...a" and a count, (0, 0) --a--> (0, 1) --a--> (0, 2), where the last two are final.
"""

from array import array
from collections.abc import Iterable

import numpy as np

from gen.constraints.automata.arrays import by_number
from gen.constraints.automata.characters import LAST
from gen.constraints.automata.dfa import Dfa, trimmed
from gen.constraints.automata.limits import MAX_STATES, MOST_WORK_OF_A_CONSTANT, Budget, TooLarge

ANY = Dfa(np.array([[0, 0, LAST, 0]], np.int32), np.ones(1, np.bool_))


def both(one: Dfa | None, other: Dfa | None, budget: Budget, *, without: bool = False) -> Dfa | None:
    """The texts of `one` that are also in `other`; or, `without`, that are not. Raises TooLarge."""
    if without:
        other = _all_but(other)
    if one is None or other is None or one is ANY or other is ANY:
        return other if one is ANY or other is None else one
    width = len(other.final)
    number = {0: 0}  # pairs, as whole numbers
    order = [0]
    edges = array("i")
    every_mine, every_other = one.lines, other.lines
    for place, pair in enumerate(order):
        mine, others = every_mine[pair // width], every_other[pair % width]
        budget.spend(1 + len(mine) * len(others))
        for low, high, target in mine:
            for low2, high2, target2 in others:
                if high2 >= low and low2 <= high:
                    after = target * width + target2
                    found = number.setdefault(after, len(order))
                    if found == len(order):
                        order.append(after)
                    edges.extend((place, low if low > low2 else low2, high if high < high2 else high2, found))
        if len(order) > MAX_STATES:
            raise TooLarge(f"more than {MAX_STATES} states")
    here, there = np.divmod(np.array(order), width)
    return trimmed(np.array(edges, np.int32).reshape(-1, 4), one.final[here] & other.final[there])


def _all_but(texts: Dfa | None) -> Dfa | None:
    """All texts but these."""
    if texts is None or texts is ANY:
        return ANY if texts is None else None
    count = len(texts.final)
    behind = np.full((count, 4), LAST + 1, np.int32)  # an edge behind the last one of each state
    behind[:, 0] = np.arange(count)
    gaps = np.concatenate((texts.edges, behind))
    gaps = by_number(gaps)
    begin = np.append(0, gaps[:-1, 2] + 1)
    begin[1:][gaps[1:, 0] != gaps[:-1, 0]] = 0
    gaps[:, 2], gaps[:, 1], gaps[:, 3] = gaps[:, 1] - 1, begin, count
    gaps = gaps.compress(gaps[:, 1] <= gaps[:, 2], 0)
    anything = np.array([[count, 0, LAST, count]], np.int32)
    return trimmed(np.concatenate((texts.edges, gaps, anything)), np.append(~texts.final, True))


def of_length(texts: Dfa | None, low: int, high: int | None) -> Dfa | None:
    """The texts with `low` to `high` characters (None: any number more). Raises TooLarge."""
    if texts is None or (not low and high is None):
        return texts
    if high is not None and high < low:
        return None
    most = low if high is None else high
    if most >= MAX_STATES and not _endless(texts):  # no text has more characters than there are states
        low, most = min(low, len(texts.final)), min(most, len(texts.final))
    try:
        if most >= MAX_STATES:
            raise TooLarge
        counts = np.arange(most + (high is None))
        edges = np.stack((counts, 0 * counts, 0 * counts + LAST, np.minimum(counts + 1, most)), 1).astype(np.int32)
        return both(texts, Dfa(edges, np.arange(most + 1) >= low), Budget(MOST_WORK_OF_A_CONSTANT))
    except TooLarge:
        raise TooLarge(f"more than {MAX_STATES} states for texts of {low} to {high} characters") from None


def _endless(texts: Dfa) -> bool:
    """Whether the automaton has a cycle: then its texts can be of any length."""
    edges = texts.edges
    while True:  # drop edges that lead to no further edge, until only cycles and paths to them are left
        goes_on = np.zeros(len(texts.final), np.bool_)
        goes_on[edges[:, 0]] = True
        kept = goes_on[edges[:, 3]]
        if kept.all():
            return len(edges) > 0
        edges = edges.compress(kept, 0)


def listed(texts: Iterable[str | bytes]) -> Dfa | None:
    """These texts alone, over code points, or over bytes if they are bytes. Raises TooLarge."""
    known: dict[int, int] = {}  # the state after a state and a code point
    edges = array("i")
    final = set()
    states = 1
    for text in texts:
        at = 0
        for code in text if isinstance(text, bytes) else map(ord, text):
            key = at * (LAST + 1) + code
            after = known.get(key)
            if after is None:
                if states > MAX_STATES:
                    raise TooLarge(f"more than {MAX_STATES} states for the texts listed")
                after = known[key] = states
                edges.extend((at, code, code, after))
                states += 1
            at = after
        final.add(at)
    if not final:
        return None
    ends = np.zeros(states, np.bool_)
    ends[list(final)] = True
    return Dfa(np.array(edges, np.int32).reshape(-1, 4), ends)


def few(texts: Dfa, most: int) -> list[str] | None:
    """The texts themselves, sorted; None if there are more than `most`."""
    if texts is ANY or _endless(texts):
        return None
    out: list[str] = []
    todo = [(0, "")]
    while todo:
        state, text = todo.pop()
        if texts.final[state]:
            out.append(text)
        for low, high, target in texts.lines[state]:
            if high - low > most:
                return None
            todo += ((target, text + chr(code)) for code in range(low, high + 1))
        if len(out) > most or len(todo) > 100 * most:
            return None
    return sorted(out)


def holds(texts: Dfa | None, text: str) -> bool:
    """Whether a text is one of them."""
    return texts is not None and (texts is ANY or texts.holds(text))
