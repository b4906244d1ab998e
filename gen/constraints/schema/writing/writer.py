"""Writes the values of a schema; the part that is the same for automata and for grammars.

`objects`, `arrays` and `unique` write through a `Writer`. Its states belong to an automaton that reads bytes
(`automaton`), or to a network that reads terminals (`grammar`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import Budget, Empty, Unsupported
from gen.constraints.automata.texts import few
from gen.constraints.schema.disjoint import Disjoint
from gen.constraints.schema.merging import Merger
from gen.constraints.schema.parts import ANYTHING, TYPES, Part
from gen.constraints.schema.values import allowed_values, meets
from gen.constraints.schema.views import Patterns, string_texts
from gen.constraints.schema.writing.arrays import write_array
from gen.constraints.schema.writing.objects import write_object


class Layout(NamedTuple):
    """Separators of items, and of names and values, and spaces for each level (None: no line breaks)."""

    item: str
    name: str
    indent: int | None

    def around(self, level: int) -> tuple[str, str, str]:
        """What stands after the bracket that opens at a level, between items and before the one that closes."""
        if self.indent is None:
            return "", self.item, ""
        inner, outer = (f"\n{' ' * (self.indent * depth)}" for depth in (level + 1, level))
        return inner, self.item + inner, outer

    def dumps(self, value: Any, level: int) -> bytes:
        """A value as it stands at a level. Raises Unsupported if it is no JSON or no text of Unicode."""
        separators = (self.item, self.name)
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=self.indent, separators=separators)
            return text.replace("\n", f"\n{' ' * ((self.indent or 0) * level)}").encode()
        except (UnicodeEncodeError, ValueError, TypeError) as error:
            raise Unsupported(f"a listed value that JSON cannot write: {error}") from None


LAYOUTS = {
    "line": Layout(", ", ": ", None),
    "compact": Layout(",", ":", None),
    "indent": Layout(",", ": ", 2),
}


class Place(NamedTuple):
    """Where a value stands: its path in the schema, how deep values of any type may nest there, its level."""

    path: str
    depth: int
    level: int

    def within(self, step: str, depth: int) -> "Place":
        """A place one level below."""
        return Place(f"{self.path}/{step}", depth, self.level + 1)


class States(Protocol):
    """States that lead to others; see `gen.constraints.automata.nfa.Nfa`."""

    def state(self) -> int: ...

    def join(self, source: int, target: int) -> None: ...

    def after(self, state: int) -> int: ...


class Writer(ABC):
    """Writes values.

    Attributes:
        nfa: the states.
        closed: whether objects have only the properties that they list.
        disjoint: proves that parts have no value in common.
        left_out: which values the schema has that are not written; None if there are none.
        because: for the path of a schema without values, the path of a property or item that has none.
    """

    nfa: States

    def __init__(self, root: Any, closed: bool, layout: Layout, budget: Budget, ecma: bool = False) -> None:
        self.closed, self.layout, self.budget = closed, layout, budget
        self.patterns = Patterns(budget, ecma)
        self.disjoint = Disjoint(self.parts_of, self.patterns, closed)
        self._merger = Merger(root, budget, self.disjoint)
        self.left_out: str | None = None
        self.because: dict[str, str] = {}
        self._texts: dict[Hashable, Dfa | None] = {}

    def no_value(self) -> Empty:
        """The error if nothing was written. Raises Unsupported if there may be values all the same."""
        if self.left_out is not None:
            raise Unsupported(self.left_out)
        path = "#"
        while path in self.because:
            path = self.because[path]
        return Empty(f"no value meets {'this schema' if path == '#' else f'the schema at {path[:200]}'}")

    @abstractmethod
    def value(self, schemas: Sequence[Any], state: int, place: Place) -> int | None:
        """Write any value that meets all schemas after `state`; returns the state after it, None if there is no value.

        Raises Unsupported, TooLarge.
        """

    @abstractmethod
    def text(self, state: int, text: str) -> int:
        """Write a text as it is; returns the state after it, as do the methods below."""

    @abstractmethod
    def string(self, part: Part, state: int, path: str) -> int | None:
        """Write any of a part's strings, as JSON; None if there is none."""

    @abstractmethod
    def listed(self, values: Sequence[Any], state: int, place: Place) -> int:
        """Write one of the values; there must be at least one."""

    @abstractmethod
    def number(self, part: Part, whole: bool, state: int) -> int | None:
        """Write any of a part's numbers; None if there is none."""

    def parts_of(self, schemas: Sequence[Any], path: str) -> Sequence[Part]:
        """The parts of values that meet all of the schemas."""
        return self._merger.all_of(schemas, path)

    def opposite(self, schema: Any) -> dict[str, Any]:
        """The schema that takes all values which a schema refuses."""
        return self._merger.opposite(schema)

    def texts(self, part: Part, path: str) -> Dfa | None:
        """The strings of a part, as texts over code points; None if there is none. Raises TooLarge."""
        values = None if part.values is None else tuple(one for one in part.values if isinstance(one, str))
        lengths = (part.min_length, part.max_length)
        key = (part.formats, part.patterns, part.unmatched, part.excluded, values, *lengths)
        if key not in self._texts:
            self._texts[key] = string_texts(part, self.patterns, path)
        return self._texts[key]

    def few_strings(self, part: Part, most: int, path: str) -> list[str] | None:
        """The strings of a part themselves; None if there are more than `most`."""
        if part.values is not None:
            found = (one for one in part.values if isinstance(one, str))
            return [one for one in found if meets(part, one, self.parts_of, self.patterns, path)]
        texts = self.texts(part, path)
        return [] if texts is None else few(texts, most)

    def any_of(self, parts: Sequence[Part], state: int, place: Place) -> int | None:
        """Write any value of the parts after `state`; returns the state after it, None if there is no value."""
        ends = [end for part in parts for end in self._part(part, state, place) if end is not None]
        if not ends:
            return None
        end = self.nfa.state()
        for one in ends:
            self.nfa.join(one, end)
        return end

    def _part(self, part: Part, state: int, place: Place) -> Iterator[int | None]:
        """Write a part after `state`; yields where each of its alternatives ends."""
        if part.values is not None:
            values = allowed_values(part, self.parts_of, self.patterns, place.path)
            if values:
                yield self.listed(values, self.nfa.after(state), place)
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
            return self.string(part, state, place.path)
        try:
            return self.number(part, name == "integer", state)
        except Unsupported as error:
            raise Unsupported(f"{error} at {place.path}") from None
