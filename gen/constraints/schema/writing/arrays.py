"""Arrays: the first items by their own schemas, then any number of one schema, as many as the limits allow."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.parts import Contains, Part
from gen.constraints.schema.views import item_schemas
from gen.constraints.schema.writing.unique import always_unique, write_unique

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

_ANY_NUMBER = Contains(schema=True, least=0, most=None)


def write_array(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any array of a part after `state`; returns the state after it, or None if there is no such array."""
    if part.max_items is not None and part.max_items < part.min_items:
        return None
    if len(part.contains) > 1:
        raise Unsupported(f"contains at {place.path}, twice")
    if part.unique and not always_unique(writer, part, place):
        return write_unique(writer, part, state, place)
    return _Array(writer, part, place).write(state)


class _Array:
    """Each item stands at a state of its own, until all that is left is the same: a loop. The states are told apart by
    how many items so far are such as `contains` asks for, as far as this matters."""

    def __init__(self, writer: "Writer", part: Part, place: "Place") -> None:
        self._writer, self._part = writer, part
        [self._contains] = part.contains or [_ANY_NUMBER]
        most = self._contains.most
        self._top = self._contains.least if most is None else most
        self._opened, self._between, self._closing = writer.layout.around(place.level)
        self._inside = place.within("items", place.depth if part.items else place.depth - 1)
        self._ends: list[int] = []

    def write(self, state: int) -> int | None:
        writer, part = self._writer, self._part
        known = max([len(one.first) for one in part.items] + [part.min_items])
        if part.max_items is not None:
            known = part.max_items
        here = {0: writer.text(state, "[")}  # the state after so many items that contains asks for
        if part.min_items == 0 and self._contains.least == 0:
            self._ends.append(writer.text(here[0], "]"))
        for number in range(known):
            after: dict[int, int] = {}
            for count, one in here.items():
                before = writer.text(one, self._between if number else self._opened)
                for more, end in self._item(number, count, before):
                    writer.nfa.join(end, after.setdefault(more, writer.nfa.state()))
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

    def _item(self, number: int, count: int, state: int) -> Iterator[tuple[int, int]]:
        """An item after `state`: how many there are with it that contains asks for, and the state after it."""
        asked, schemas = self._contains, item_schemas(self._part, number)
        ways: list[tuple[int, tuple[Any, ...]]] = [(count, schemas)]
        if asked.most is not None:
            ways = [(count, (*schemas, self._writer.opposite(asked.schema)))]
        if self._top and (asked.most is None or count < asked.most):
            ways.append((min(count + 1, self._top), (*schemas, asked.schema)))
        for more, needed in ways:
            end = self._writer.value(needed, state, self._inside)
            if end is not None:
                yield more, end

    def _loop(self, here: dict[int, int], known: int) -> None:
        """Any number of items more, after the known ones."""
        writer, nfa = self._writer, self._writer.nfa
        loops = {count: nfa.state() for count in range(self._top + 1)}
        for count, one in here.items():
            nfa.join(writer.text(one, self._between if known else self._opened), loops[count])
        after: dict[int, int] = {}
        for count, loop in loops.items():
            for more, end in self._item(known, count, nfa.after(loop)):
                nfa.join(end, after.setdefault(more, nfa.state()))
        for count, one in after.items():
            nfa.join(writer.text(one, self._between), loops[count])
        self._may_close(after)

    def _may_close(self, here: dict[int, int]) -> None:
        """Let arrays end at states after enough items that contains asks for."""
        for count, one in here.items():
            if count >= self._contains.least:
                self._ends.append(self._writer.text(one, f"{self._closing}]"))
