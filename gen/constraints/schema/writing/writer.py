"""Parts as an automaton over bytes: every value that a schema allows, as it is written."""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import TooLarge, Unsupported, check_deadline, deadline_in
from gen.constraints.automata.nfa import Mark, Nfa
from gen.constraints.automata.spelling import json_content, spell
from gen.constraints.automata.texts import ANY, listed
from gen.constraints.schema.disjoint import Disjoint
from gen.constraints.schema.merging import Merger
from gen.constraints.schema.parts import ANYTHING, TYPES, Part
from gen.constraints.schema.values import allowed_values
from gen.constraints.schema.views import Patterns
from gen.constraints.schema.writing.arrays import write_array
from gen.constraints.schema.writing.layout import Layout
from gen.constraints.schema.writing.numbers import number_texts
from gen.constraints.schema.writing.objects import write_object
from gen.constraints.schema.writing.strings import string_texts

_LEVELS = 100


class Place(NamedTuple):
    """Where a value stands: its path in the schema, how deep values of any type may nest there, its level."""

    path: str
    depth: int
    level: int

    def within(self, step: str, depth: int) -> "Place":
        """A place one level below."""
        return Place(f"{self.path}/{step}", depth, self.level + 1)


class _Written(NamedTuple):
    """What was written for a value: between which marks, and the states where the value begins and ends."""

    begin: Mark
    beyond: Mark
    start: int
    end: int


class Writer:
    """Writes values into an automaton.

    Attributes:
        nfa: the automaton; a value's own states are reached from its start alone, so that they can be copied.
        closed: objects have what they list alone.
        disjoint: proves that parts have no value in common.
    """

    def __init__(self, root: Any, closed: bool, layout: Layout, deadline: float) -> None:
        self.nfa, self.closed, self.layout, self.deadline = Nfa(), closed, layout, deadline
        self.patterns = Patterns(deadline)
        self.disjoint = Disjoint(self.parts_of, self.patterns, closed)
        self._merger = Merger(root, deadline, self.disjoint)
        self._opposites: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._open: set[tuple[int, ...]] = set()
        self._copies: dict[tuple[tuple[int, ...], int, int], _Written | None] = {}

    def parts_of(self, schemas: Sequence[Any], path: str) -> Sequence[Part]:
        """The parts of values that meet all of the schemas."""
        return self._merger.all_of(schemas, path)

    def value(self, schemas: Sequence[Any], state: int, place: Place) -> int | None:
        """Write any value that meets all schemas after `state`; returns the state after it, None if there is no value.

        Raises Unsupported, TooLarge.
        """
        indented = place.level if self.layout.indent is not None else 0
        key = (tuple(map(id, schemas)), place.depth, indented)
        if key in self._copies:
            return self._copy(self._copies[key], state)
        if key[0] and key[0] in self._open:
            raise Unsupported(f"$ref at {place.path[:200]}: the schema refers to itself")
        if place.level > _LEVELS:
            raise TooLarge(f"schemas nested too deeply at {place.path[:80]}")
        check_deadline(self.deadline, f"writing the values at {place.path[:80]}")
        if not schemas:
            return self.nfa.insert(_any_value(self.layout, place.depth, indented), self.nfa.after(state))
        start = self.nfa.after(state)
        begin = self.nfa.mark()._replace(states=start)
        self._open.add(key[0])
        end = self.any_of(self.parts_of(schemas, place.path), start, place)
        self._open.discard(key[0])
        self._copies[key] = None if end is None else _Written(begin, self.nfa.mark(), start, end)
        return end

    def opposite(self, schema: Any) -> dict[str, Any]:
        """The schema of what does not meet a schema: the same one each time, so that it is written once."""
        return self._opposites.setdefault(id(schema), (schema, {"not": schema}))[1]

    def any_of(self, parts: Sequence[Part], state: int, place: Place) -> int | None:
        """Write any value of some parts after `state`; returns the state after it, None if there is no value."""
        ends = [end for part in parts for end in self._part(part, state, place) if end is not None]
        if not ends:
            return None
        end = self.nfa.state()
        for one in ends:
            self.nfa.join(one, end)
        return end

    def text(self, state: int, text: str) -> int:
        """Write a text as it is."""
        return self.nfa.spell(state, text.encode())

    def string(self, state: int, texts: Dfa) -> int:
        """Write any of some texts as a JSON string."""
        if texts is ANY:
            return self.nfa.insert(_any_string(), state)
        return self.text(spell(self.nfa, texts, self.text(state, '"'), json_content), '"')

    def _part(self, part: Part, state: int, place: Place) -> Iterator[int | None]:
        """Write a part after `state`; where each of its alternatives ends."""
        if part.values is not None:
            values = allowed_values(part, self.parts_of, self.patterns, place.path)
            texts = listed(self.layout.dumps(value, place.level) for value in values)
            if texts is not None:
                yield self.nfa.insert(texts, self.nfa.after(state))
            return
        free = part is ANYTHING
        for name in TYPES:
            if name not in part.types or (name == "integer" and "number" in part.types):
                continue
            if refusal := part.refusal(name):
                raise Unsupported(refusal)
            if free and name in ("array", "object") and place.depth <= 0:
                continue
            yield self._typed(name, part, self.nfa.after(state), place)

    def _typed(self, name: str, part: Part, state: int, place: Place) -> int | None:
        if name == "null":
            return self.text(state, "null")
        if name == "boolean":
            end = self.nfa.state()
            for text in ("true", "false"):
                self.nfa.join(self.text(state, text), end)
            return end
        if name == "array":
            return write_array(self, part, state, place)
        if name == "object":
            return write_object(self, part, state, place)
        if name == "string":
            strings = string_texts(part, self.patterns, place.path)
            return None if strings is None else self.string(state, strings)
        try:
            numbers = number_texts(part.low, part.high, part.multiples, name == "integer")
        except Unsupported as error:
            raise Unsupported(f"{error} at {place.path}") from None
        return None if numbers is None else self.nfa.insert(numbers, state)

    def _copy(self, written: _Written | None, state: int) -> int | None:
        """Copy what was written before, to stand after `state`."""
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
    return determinise(nfa, start, end, deadline=deadline_in(60))


@lru_cache(256)
def _any_value(layout: Layout, depth: int, level: int) -> Dfa:
    """Values of any type, as they are written at a level: the same in all schemas."""
    writer = Writer(True, False, layout, deadline_in(60))
    start = writer.nfa.state()
    end = writer.any_of((ANYTHING,), start, Place("#", depth, level))
    assert end is not None  # there is always null; tells mypy
    return determinise(writer.nfa, start, end, deadline=writer.deadline)
