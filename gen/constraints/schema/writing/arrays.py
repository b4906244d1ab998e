"""Arrays: the first items by their own schemas, then any number of one schema, as many as the limits allow."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from gen.constraints.schema.parts import Part
from gen.constraints.schema.views import item_schemas
from gen.constraints.schema.writing.unique import always_unique, write_unique

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

Counts = tuple[int, ...]
"""For each `contains`, how many items so far meet it, up to the highest number that matters."""


def write_array(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any array of a part after `state`; returns the state after it, or None if there is no such array."""
    if part.max_items is not None and part.max_items < part.min_items:
        return None
    if part.unique and not always_unique(writer, part, place):
        return write_unique(writer, part, state, place)
    return _Array(writer, part, place).write(state)


class _Array:
    """After each item there is a state for each `Counts`, until all further items are alike: then comes a loop."""

    def __init__(self, writer: "Writer", part: Part, place: "Place") -> None:
        self._writer, self._part, self._place = writer, part, place
        self._tops = [one.least if one.most is None else one.most for one in part.contains]
        self._opened, self._between, self._closing = writer.layout.around(place.level)
        self._inside = place.within("items", place.depth if part.items else place.depth - 1)
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
