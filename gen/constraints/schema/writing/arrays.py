"""Arrays: the first items by their own schemas, then any number of one schema, as many as the limits allow.

Where all items must be different, they are of few values, or of schemas that make them different. In arrays of few
values, a state is the set of values that came so far; if there are too many sets, the items come in the schema's order.
Example: arrays of at most two of ["a", "b", "c"] have the states {}, {a}, {b}, {c}, {a, b}, {a, c}, {b, c}.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, comb, floor
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.schema.parts import TYPES, Part, identity
from gen.constraints.schema.views import item_schemas

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

_MOST_SETS = 1024
_MOST_VALUES = 200
_MOST_PLACES = 8

Counts = tuple[int, ...]
"""For each `contains`, how many items so far meet it, up to the highest number that matters."""


def write_array(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any array of a part after `state`; returns the state after it, or None if there is no such array."""
    if part.max_items is not None and part.max_items < part.min_items:
        return None
    if part.unique and not _always_unique(writer, part, place):
        return _write_unique(writer, part, state, place)
    return _Array(writer, part, place).write(state)


class _Array:
    """After each item there is a state for each `Counts`, until all further items are alike: then comes a loop."""

    def __init__(self, writer: "Writer", part: Part, place: "Place") -> None:
        self._writer, self._part, self._place = writer, part, place
        self._tops = [one.least if one.most is None else one.most for one in part.contains]
        self._opened, self._between, self._closing = writer.layout.around(place.level)
        self._inside = place.within("items", "" if part.items else "array")
        self._ends: list[int] = []

    def write(self, state: int) -> int | None:
        writer, part = self._writer, self._part
        known = max([len(one.first) for one in part.items] + [part.min_items])
        if part.max_items is not None:
            known = part.max_items
        none = (0,) * len(part.contains)
        here = {none: writer.text(state, "[")}  # the state after this many items
        if part.min_items == 0 and self._enough(none):
            self._ends.append(writer.text(here[none], "]"))
        for number in range(known):
            after: dict[Counts, int] = {}
            for counts, one in here.items():
                before = writer.text(one, self._between if number else self._opened)
                for more, end in self._item(number, counts, before):
                    writer.nfa.join(end, after.setdefault(more, writer.nfa.state()))
            if number < part.min_items and not after:
                writer.because[self._place.path] = self._inside.path
            here = after
            if number + 1 >= part.min_items:
                self._may_close(here)
        if part.max_items is None and here:
            self._loop(here, known)
        if not self._ends:
            return None
        end = writer.nfa.state()
        for one in self._ends:
            writer.nfa.join(one, end)
        return end

    def _enough(self, counts: Counts) -> bool:
        return all(count >= one.least for count, one in zip(counts, self._part.contains, strict=True))

    def _item(self, number: int, counts: Counts, state: int) -> Iterator[tuple[Counts, int]]:
        """Write an item after `state` in each way; yields the `Counts` with this item, and the state after it."""
        ways: list[tuple[Counts, tuple[Any, ...]]] = [((), item_schemas(self._part, number))]
        for asked, count, top in zip(self._part.contains, counts, self._tops, strict=True):
            other = () if asked.most is None else (self._writer.opposite(asked.schema),)
            one_more = [((*more, count + 1), (*needed, asked.schema)) for more, needed in ways if count < top]
            ways = [((*more, count), (*needed, *other)) for more, needed in ways] + one_more
        for more, needed in ways:
            end = self._writer.value(needed, state, self._inside)
            if end is not None:
                yield more, end

    def _loop(self, here: dict[Counts, int], known: int) -> None:
        """Write any number of further items after the known ones."""
        writer, nfa = self._writer, self._writer.nfa
        loops = {counts: nfa.state() for counts in product(*(range(top + 1) for top in self._tops))}
        for counts, one in here.items():
            nfa.join(writer.text(one, self._between if known else self._opened), loops[counts])
        after: dict[Counts, int] = {}
        for counts, loop in loops.items():
            for more, end in self._item(known, counts, nfa.after(loop)):
                nfa.join(end, after.setdefault(more, nfa.state()))
        for counts, one in after.items():
            nfa.join(writer.text(one, self._between), loops[counts])
        self._may_close(after)

    def _may_close(self, here: dict[Counts, int]) -> None:
        """Let arrays end at those of the states where every `contains` is met."""
        for counts, one in here.items():
            if self._enough(counts):
                self._ends.append(self._writer.text(one, f"{self._closing}]"))


def _always_unique(writer: "Writer", part: Part, place: "Place") -> bool:
    """Whether no two items of an array can be equal, because the schemas of their places are disjoint."""
    each: list[Sequence[Part]] = []
    while part.max_items is None or len(each) < part.max_items:
        here = writer.parts_of(item_schemas(part, len(each)), place.path)
        if not here:  # longer arrays do not exist
            break
        if len(each) == _MOST_PLACES:
            return False
        each.append(here)
    return all(
        writer.disjoint(one, other)
        for number, here in enumerate(each)
        for later in each[number + 1 :]
        for one in here
        for other in later
    )


def _write_unique(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any array of different values after `state`; returns the state after it, None if there is no such array.

    Raises:
        Unsupported: the values are not few, or differ from place to place.
    """
    values = None if part.contains or any(one.first for one in part.items) else _values(writer, part, place)
    if values is None:
        raise Unsupported(f"uniqueItems at {place.path}, of items that are not few")
    most = len(values) if part.max_items is None else min(part.max_items, len(values))
    if part.min_items > most:
        return None
    ordered = sum(comb(len(values), count) for count in range(most + 1)) > _MOST_SETS
    nfa, inside = writer.nfa, place.within("items")
    opened, between, closing = writer.layout.around(place.level)
    end = nfa.state()
    start = writer.text(state, "[")
    if part.min_items == 0:
        nfa.join(writer.text(start, "]"), end)
    # the state after each set of values, by the set's bits; if ordered, by the number of its last value
    here = {0: start}
    states = list[int]()  # that each value takes
    for count in range(most):
        if count == 1:  # all further ones are counted before they are written
            nfa.check(
                sum(
                    takes * (max(number - place + 1, 0) if ordered else comb(len(values) - 1, place))
                    for number, takes in enumerate(states)
                    for place in range(1, most)
                )
            )
        after: dict[int, int] = {}
        for came, one in here.items():
            before = writer.text(one, between if count else opened)
            for number, value in enumerate(values):
                if (number < came) if ordered else (came >> number & 1):
                    continue
                key, so_far = number + 1 if ordered else came | 1 << number, nfa.states
                nfa.join(writer.listed([value], before, inside), after.setdefault(key, nfa.state()))
                if not count:
                    states.append(nfa.states - so_far)
        here = after
        if count + 1 >= part.min_items:
            for one in here.values():
                nfa.join(writer.text(one, f"{closing}]"), end)
    return end


def _values(writer: "Writer", part: Part, place: "Place") -> list[Any] | None:
    """All values that an item may have, each once; None if they are not few."""
    found: dict[Any, Any] = {}
    for one in writer.parts_of(item_schemas(part, 0), place.path):
        values = _of_part(writer, one, place.path)
        if values is None:
            return None
        for value in values:
            found.setdefault(identity(value), value)
    if len(found) > _MOST_VALUES:
        raise TooLarge(f"uniqueItems at {place.path} of {len(found)} values")
    return list(found.values())


def _of_part(writer: "Writer", part: Part, path: str) -> list[Any] | None:
    if part.values is not None:
        return writer.checker.allowed(part, path)
    out: list[Any] = []
    for name in TYPES:
        if name not in part.types or (name == "integer" and "number" in part.types):
            continue
        values: Sequence[Any] | None = None
        if name == "null":
            values = [None]
        elif name == "boolean":
            values = [False, True]
        elif name == "integer" and part.low is not None and part.high is not None:
            values = range(ceil(part.low[0]), floor(part.high[0]) + 1)
        elif name == "string":
            values = writer.few_strings(part, _MOST_VALUES, path)
        if values is None or len(values) > 10 * _MOST_VALUES:
            return None
        out += [one for one in values if writer.checker.meets(part, one, path)]
    return out
