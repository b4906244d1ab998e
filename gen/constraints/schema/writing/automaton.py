"""Values as an automaton over bytes: a value that stands in several places is written once, and copied."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import MOST_WORK_OF_A_CONSTANT, Budget, TooLarge
from gen.constraints.automata.nfa import MOST_NODES, Mark, Nfa
from gen.constraints.automata.spelling import json_content, spell, utf8
from gen.constraints.automata.texts import ANY, listed
from gen.constraints.schema.parts import ANYTHING, Part
from gen.constraints.schema.writing.numbers import part_numbers
from gen.constraints.schema.writing.writer import LEVELS, WORK, Layout, Place, Writer


class _Written(NamedTuple):
    """A value as it was written: the marks before and after it, and the states where it begins and ends."""

    begin: Mark
    beyond: Mark
    start: int
    end: int


class AutomatonWriter(Writer):
    """See `Writer`. Only a value's start leads to its other states, so they can be copied.

    Attributes:
        free: whether a value of any type was written.
    """

    nfa: Nfa

    def __init__(self, root: Any, closed: bool, layout: Layout, budget: Budget, ecma: bool = False) -> None:
        super().__init__(root, closed, layout, budget, ecma)
        self._begin(MOST_NODES)

    def _begin(self, max_states: int) -> None:
        self.nfa, self.free = Nfa(max_states), False
        self._open: set[tuple[int, ...]] = set()
        self._copies: dict[tuple[tuple[int, ...], int, int], _Written | None] = {}

    def write(self, schema: Any, room: int, max_states: int, layouts: Sequence[Layout] = ()) -> tuple[int, int]:
        """Write all values of a schema anew; returns the first state and the last one. Raises Empty, as `value`.

        Args:
            room: see `Place`.
            layouts: in each of which the values are written; its own if there is none.
        """
        self._begin(max_states)
        start, ends = self.nfa.state(), []
        for layout in layouts or [self.layout]:
            self.layout, self._copies = layout, {}
            end = self.value((schema,), start, Place("#", room, 0))
            if end is None:
                raise self.no_value()
            ends.append(end)
        for end in ends[1:]:
            self.nfa.join(end, ends[0])
        return start, ends[0]

    def value(self, schemas: Sequence[Any], state: int, place: Place) -> int | None:
        """See `Writer`. Raises TooLarge for a schema that refers to itself."""
        indented = self.layout.kind(place.level)
        key = (tuple(map(id, schemas)), place.room, indented)
        if key in self._copies:
            return self._copy(self._copies[key], state)
        if key[0] and key[0] in self._open:
            raise TooLarge(f"$ref at {place.path[:200]}: the schema refers to itself")
        if place.level > LEVELS:
            raise TooLarge(f"schemas nested too deeply at {place.path[:80]}")
        self.budget.spend(WORK, f"writing the values at {place.path[:80]}")
        if not schemas:
            self.free = True
            return self.nfa.insert(_any_value(self.layout, place.room, indented), self.nfa.after(state))
        start = self.nfa.after(state)
        begin = self.nfa.mark()._replace(states=start)
        self._open.add(key[0])
        end = self.any_of(self.parts_of(schemas, place.path), start, place)
        self._open.discard(key[0])
        self._copies[key] = None if end is None else _Written(begin, self.nfa.mark(), start, end)
        return end

    def text(self, state: int, text: str) -> int:
        return self.nfa.spell(state, text.encode())

    def string(self, part: Part, state: int, path: str, around: tuple[str, str] = ('"', '"')) -> int | None:
        texts = self.texts(part, path)
        if texts is None:
            return None
        before, behind = around
        if texts is ANY and before == '"':
            return self.text(self.nfa.insert(_any_string(), state), behind[1:])
        content = json_content if before == '"' else utf8
        return self.text(spell(self.nfa, texts, self.text(state, before), content), behind)

    def listed(self, values: Sequence[Any], state: int, place: Place) -> int:
        behind, _ = self.layout.of_value(place.level)
        texts = listed(self.layout.dumps(value, place.level) + behind.encode() for value in values)
        assert texts is not None  # there is a value; tells mypy
        return self.nfa.insert(texts, self.nfa.after(state))

    def number(self, part: Part, whole: bool, state: int, end: str = "") -> int | None:
        numbers = part_numbers(part, whole)
        return None if numbers is None else self.text(self.nfa.insert(numbers, state), end)

    def _copy(self, written: _Written | None, state: int) -> int | None:
        """Copy a value that was written before, to stand after `state`."""
        if written is None:
            return None
        shift = self.nfa.copy(written.begin, written.beyond)
        self.nfa.join(state, written.start + shift)
        return written.end + shift


@cache
def _any_string() -> Dfa:
    """Any JSON string: the same in all schemas."""
    nfa = Nfa()
    start = nfa.state()
    end = nfa.spell(spell(nfa, ANY, nfa.spell(start, b'"'), json_content), b'"')
    return determinise(nfa, start, end, budget=Budget(MOST_WORK_OF_A_CONSTANT))


@lru_cache(256)
def _any_value(layout: Layout, room: int, level: int) -> Dfa:
    """Values of any type, as they are written at a level: the same in all schemas."""
    writer = AutomatonWriter(True, False, layout, Budget(MOST_WORK_OF_A_CONSTANT))
    start = writer.nfa.state()
    end = writer.any_of((ANYTHING,), start, Place("#", room, level))
    assert end is not None  # there is always null; tells mypy
    return determinise(writer.nfa, start, end, budget=writer.budget)
