"""Writes the values of a schema; the part that is the same for automata and for grammars.

`objects` and `arrays` write through a `Writer`. Its states belong to an automaton that reads bytes
(`automaton`), or to a network that reads terminals (`grammar`).
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import Budget, Empty, Unsupported
from gen.constraints.automata.texts import few
from gen.constraints.schema.merging import Merger
from gen.constraints.schema.parts import ANYTHING, TYPES, Part, kind, merge
from gen.constraints.schema.values import Checker, Disjoint
from gen.constraints.schema.views import Patterns, string_texts
from gen.constraints.schema.writing.arrays import write_array
from gen.constraints.schema.writing.objects import write_object


class Fields(NamedTuple):
    """How the properties of the outermost object are written, where it is not written as JSON.

    Attributes:
        before, after: what stands around a property's name.
        end: what stands behind its value.
        between: what stands between two properties.
        raw: whether a value that is a string has no quotes and escapes; then `end` is what it must not have.
        names: a pattern of the names that can be written.
    """

    before: str
    after: str
    end: str
    between: str
    raw: bool
    names: str


class Layout(NamedTuple):
    """Separators of items, and of names and values, and spaces for each level (None: no line breaks).

    Attributes:
        fields: how the outermost value is written, which is an object; None for JSON.
        without: what no string and no name may have.
        python: whether null, true and false are written as in Python.
    """

    item: str
    name: str
    indent: int | None
    fields: Fields | None = None
    without: tuple[str, ...] = ()
    python: bool = False

    def kind(self, level: int) -> int:
        """The level, or one at which all is written alike."""
        if self.indent is not None:
            return level
        return 0 if self.fields is None else min(level, 2)

    def at(self, level: int) -> Fields | None:
        """How an object is written at a level; None for JSON."""
        return self.fields if level == 0 else None

    def of_value(self, level: int) -> tuple[str, bool]:
        """What stands behind a value at a level, and whether strings are raw there."""
        return (self.fields.end, self.fields.raw) if self.fields is not None and level == 1 else ("", False)

    def holds(self, written: bytes) -> bool:
        """Whether what is written has nothing that it must not have."""
        return not any(mark.encode() in written for mark in self.without)

    def around(self, level: int) -> tuple[str, str, str]:
        """What stands after the bracket that opens at a level, between items and before the one that closes."""
        if self.fields is not None and level == 0:
            return "", self.fields.between, ""
        if self.indent is None:
            return "", self.item, ""
        inner, outer = (f"\n{' ' * (self.indent * depth)}" for depth in (level + 1, level))
        return inner, self.item + inner, outer

    def dumps(self, value: Any, level: int) -> bytes:
        """A value as it stands at a level. Raises Unsupported if it is no JSON or no text of Unicode."""
        separators = (self.item, self.name)
        if self.of_value(level)[1] and isinstance(value, str):
            return value.encode()
        try:
            if self.python:
                return _in_python(value).encode()
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=self.indent, separators=separators)
            return text.replace("\n", f"\n{' ' * ((self.indent or 0) * level)}").encode()
        except (UnicodeEncodeError, ValueError, TypeError) as error:
            raise Unsupported(f"a listed value that JSON cannot write: {error}") from None


def _in_python(value: Any) -> str:
    """A value as Python writes it, with strings as in JSON."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_in_python(name)}: {_in_python(one)}' for name, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_in_python, value))}]"
    plain = value is None or isinstance(value, bool)
    return str(value) if plain else json.dumps(value, ensure_ascii=False, allow_nan=False)


_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?"
_LOOKS_LIKE = {"null": "null", "boolean": "true|false", "integer": _NUMBER}
_BEGINS = {"array": r"\[", "object": r"\{", "string": '"'}


def looks_like(types: frozenset[str]) -> str:
    """The pattern of raw strings that would be read as values of one of these types, or as a string in quotes."""
    whole = "|".join(pattern for name, pattern in _LOOKS_LIKE.items() if name in types)
    begins = "|".join(pattern for name, pattern in _BEGINS.items() if name in types)
    space = "[ \\t\\r\\n]*"
    return f"^{space}(?:{f'(?:{whole}){space}$|' if whole else ''}{begins})"


def types_of(parts: Sequence[Part]) -> frozenset[str]:
    """The types of the values of some parts."""
    return frozenset[str]().union(
        *(one.types if one.values is None else one.types & {*map(kind, one.values)} for one in parts)
    )


LAYOUTS = {
    "line": Layout(", ", ": ", None),
    "compact": Layout(",", ":", None),
    "indent": Layout(",", ": ", 2),
}


ROOM = {"array": 4, "object": 3}
"""What one that holds values of any type takes of a place's room: where four arrays can nest, five objects can."""


class Place(NamedTuple):
    """Where a value stands: its path in the schema, the room that is left for values of any type, its level."""

    path: str
    room: int
    level: int

    def within(self, step: str, free: str = "") -> "Place":
        """A place one level below.

        Args:
            free: "array" or "object", if it is one that holds values of any type.
        """
        return Place(f"{self.path}/{step}", self.room - ROOM.get(free, 0), self.level + 1)


class States(Protocol):
    """States that lead to others; see `gen.constraints.automata.nfa.Nfa`."""

    states: int

    def state(self) -> int: ...

    def join(self, source: int, target: int) -> None: ...

    def after(self, state: int) -> int: ...

    def check(self, count: int) -> None: ...


LEVELS, WORK = 100, 50  # how deep schemas nest, and what a place of one costs
_STRING = frozenset(["string"])


class Writer(ABC):
    """Writes values.

    Attributes:
        nfa: the states.
        closed: whether objects have only the properties that they list.
        checker: tells whether values meet parts.
        disjoint: proves that parts have no value in common.
        writable: what strings must meet to be written.
        left_out: which values the schema has that are not written; None if there are none.
        because: for the path of a schema without values, the path of a property or item that has none.
    """

    nfa: States

    def __init__(self, root: Any, closed: bool, layout: Layout, budget: Budget, ecma: bool = False) -> None:
        self.closed, self.layout, self.budget = closed, layout, budget
        self.patterns = Patterns(budget, ecma)
        self.checker = Checker(self.parts_of, self.patterns)
        self.disjoint = Disjoint(self.checker, closed)
        self._merger = Merger(root, budget, self.disjoint)
        self.left_out: str | None = None
        self.because: dict[str, str] = {}
        self._texts: dict[Hashable, Dfa | None] = {}
        self._types: dict[str, frozenset[str]] = {}
        marks = "|".join(map(re.escape, layout.without))
        self.writable = Part(types=_STRING, unmatched=(marks,)) if marks else ANYTHING

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
    def string(self, part: Part, state: int, path: str, around: tuple[str, str] = ('"', '"')) -> int | None:
        """Write any of a part's strings, as JSON, or as they are if anything else stands around; None if there is none.

        Args:
            around: what stands before and behind a string.
        """

    @abstractmethod
    def listed(self, values: Sequence[Any], state: int, place: Place) -> int:
        """Write one of the values, and what stands behind it; there must be at least one."""

    @abstractmethod
    def number(self, part: Part, whole: bool, state: int, end: str = "") -> int | None:
        """Write any of a part's numbers, and what stands behind it; None if there is none."""

    def parts_of(self, schemas: Sequence[Any], path: str) -> Sequence[Part]:
        """The parts of values that meet all of the schemas."""
        return self._merger.all_of(schemas, path)

    def opposite(self, schema: Any) -> dict[str, Any]:
        """The schema that takes all values which a schema refuses: the same object each time."""
        return self._merger.references.opposite(schema)

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
            return [one for one in found if self.checker.meets(part, one, path)]
        texts = self.texts(part, path)
        return [] if texts is None else few(texts, most)

    def any_of(self, parts: Sequence[Part], state: int, place: Place) -> int | None:
        """Write any value of the parts after `state`; returns the state after it, None if there is no value."""
        types = types_of(parts) if self.layout.of_value(place.level)[1] else frozenset[str]()
        told = Part(types=_STRING, unmatched=(looks_like(types),)) if len(types) > 1 else ANYTHING
        ends = [end for part in parts for end in self._part(part, state, place, told) if end is not None]
        if not ends:
            return None
        end = self.nfa.state()
        for one in ends:
            self.nfa.join(one, end)
        return end

    def types(self, name: str, schemas: Sequence[Any], path: str) -> None:
        """Note the types of a property of the outermost object. Raises Unsupported if it has others elsewhere."""
        found = types_of(self.parts_of(schemas, path))
        if self._types.setdefault(name, found) != found:
            raise Unsupported(f"the property {name!r} at {path} with other types in another alternative")

    def _part(self, part: Part, state: int, place: Place, told: Part) -> Iterator[int | None]:
        """Write a part after `state`; yields where each of its alternatives ends.

        Args:
            told: what strings must meet as well, to be told apart from values of other types.
        """
        if self.layout.at(place.level) and part.values is not None:
            raise Unsupported(f"enum at {place.path}, where the values are not written as JSON")
        if part.values is not None:
            values = self.checker.allowed(part, place.path)
            values = [one for one in values if self._can_write(one, place, told)]
            if values:
                yield self.listed(values, self.nfa.after(state), place)
            return
        free = part is ANYTHING
        for name in TYPES:
            if name not in part.types or (name == "integer" and "number" in part.types):
                continue
            if refusal := part.refusal(name):
                raise Unsupported(refusal)
            if free and name in ROOM and place.room < ROOM[name]:
                continue
            if name == "object" or not self.layout.at(place.level):
                yield self._typed(name, merge(part, told) if name == "string" else part, self.nfa.after(state), place)

    def _can_write(self, value: Any, place: Place, told: Part) -> bool:
        """Whether a listed value can be written at a place."""
        if told is ANYTHING and not self.layout.without:
            return True
        if isinstance(value, str) and not self.checker.meets(told, value, place.path):
            return False
        return self.layout.holds(self.layout.dumps(value, place.level))

    def _typed(self, name: str, part: Part, state: int, place: Place) -> int | None:
        behind, raw = self.layout.of_value(place.level)
        if name in ("array", "object"):
            end = (write_array if name == "array" else write_object)(self, part, state, place)
            return None if end is None else self.text(end, behind)
        if name == "null":
            return self.text(state, self.layout.dumps(None, 0).decode() + behind)
        if name == "boolean":
            end = self.nfa.state()
            for value in (True, False):
                self.nfa.join(self.text(state, self.layout.dumps(value, 0).decode() + behind), end)
            return end
        if name == "string":
            part = merge(part, self.writable)
            return self.string(part, state, place.path, ("", behind) if raw else ('"', f'"{behind}'))
        try:
            return self.number(part, name == "integer", state, behind)
        except Unsupported as error:
            raise Unsupported(f"{error} at {place.path}") from None
