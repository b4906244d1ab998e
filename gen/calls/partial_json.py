"""A JSON text that grows: the part of it that later text cannot change, and its items as soon as they are whole.

Example: of the text '{"name": "Ad' the string may grow, so its value so far is {"name": "Ad"}. After '{"age": 3' the
number may become 37, so the value so far is {}.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBERS_END = frozenset(",]} \n\t\r")
_NAMED = frozenset(["enum", "const", "format", "allOf"])  # what makes a string one of several, or of one form


@dataclass
class _Open:
    """An object or array that has not ended: what its part that comes next is called, and what schemas it may have."""

    is_object: bool
    schemas: list[Any]
    name: str | int


class PartialJson:
    """A JSON text, and what is certain of it.

    Args:
        schema: the text's; a string that it makes one of several appears whole.
        items_in: the array whose items are told: () for the text itself, ("lines",) for one in an object, with all the
            names that it may have there; None for none.

    Attributes:
        text: as far as it has come.
        certain: how many of its characters have the value so far, if what is open there is closed.
    """

    def __init__(self, schema: Mapping[str, Any], items_in: Collection[str] | None = None) -> None:
        from gen.constraints.schema.references import References  # with what compiles types; calls without need it not

        self._root, self._items_in = schema, items_in
        self._references = References(schema)
        self.text, self.certain = "", 0
        self._at = 0
        self._open: list[_Open] = []
        self._reads = "value"  # or "string", "key", "scalar", "escape"
        self._begin = 0  # where the string, key or scalar begins
        self._grows = False  # whether the string may be shown before its end
        self._escape_ends = 0
        self._half = False  # whether the first half of a character has come as an escape
        self._item = -1  # where the item begins; -1 outside of items
        self._whole: list[tuple[int, int]] = []

    def push(self, piece: str) -> None:
        """Take more text."""
        self.text += piece
        while self._at < len(self.text):
            self._read(self.text[self._at])
            self._at += 1

    def value(self) -> Any:
        """The value of what is certain; None if nothing is."""
        from pydantic_core import from_json  # calls without types do not need it

        certain = self.text[: self.certain]
        return from_json(certain, allow_partial="trailing-strings") if certain.strip() else None

    def may_have_items(self) -> bool:
        """Whether the schema has the array whose items are told."""
        schemas, names = [self._root], self._items_in
        if names:
            schemas = [one for name in names for one in self._references.below(schemas, name)]
        return any("array" in one.get("type", "array") for one in self._references.branches(schemas))

    def take_items(self) -> list[str]:
        """The texts of items that have become whole since the last call."""
        found, self._whole = [self.text[begin:end] for begin, end in self._whole], []
        return found

    def _read(self, character: str) -> None:
        if self._reads in ("string", "key"):
            self._read_string(character)
            return
        if self._reads == "escape":
            self._read_escape(character)
            return
        if self._reads == "scalar":
            if character not in _NUMBERS_END:
                return
            self._end_value(self._at)
        if character.isspace():
            return
        if character in "{[":
            self._begin_item()
            self._open.append(_Open(character == "{", self._schemas(), 0))
            self.certain = self._at + 1
        elif character in "}]":
            self._open.pop()
            self._end_value(self._at + 1)
        elif character in ",:":
            if character == "," and isinstance(self._open[-1].name, int) and not self._open[-1].is_object:
                self._open[-1].name += 1
        elif character == '"':
            self._begin_string()
        else:
            self._begin_item()
            self._reads, self._begin = "scalar", self._at

    def _begin_string(self) -> None:
        is_key = bool(self._open) and self._open[-1].is_object and self.text[: self._at].rstrip()[-1] in "{,"
        if not is_key:
            self._begin_item()
        self._reads, self._begin = "key" if is_key else "string", self._at
        self._grows, self._half = not is_key and self._may_grow(), False
        if self._grows:
            self.certain = self._at + 1

    def _read_string(self, character: str) -> None:
        if self._reads == "key" and self._at == self._escape_ends:  # a key is only read as a whole
            return
        if character == "\\":
            self._escape_ends = self._at + 1
            self._reads = "escape" if self._reads == "string" else "key"
        elif character == '"':
            if self._reads == "key":
                self._open[-1].name = json.loads(self.text[self._begin : self._at + 1])
                self._reads = "value"
            else:
                self._end_value(self._at + 1)
        elif self._grows and not self._half:
            self.certain = self._at + 1

    def _read_escape(self, character: str) -> None:
        if character == "u" and self._at == self._escape_ends:
            self._escape_ends += 4
        if self._at < self._escape_ends:
            return
        self._reads = "string"
        code = self.text[self._at - 3 : self._at + 1] if self.text[self._at - 4 : self._at - 3] == "u" else ""
        self._half = code[:2].lower() in ("d8", "d9", "da", "db")
        if self._grows and not self._half:
            self.certain = self._at + 1

    def _begin_item(self) -> None:
        if self._item < 0 and self._tells():
            self._item = self._at

    def _end_value(self, end: int) -> None:
        self.certain, self._reads = end, "value"
        if self._item >= 0 and self._tells():
            self._whole.append((self._item, end))
            self._item = -1

    def _tells(self) -> bool:
        """Whether the innermost of what is open is the array whose items are told."""
        if self._items_in is None or not self._open or self._open[-1].is_object:
            return False
        outer = self._open[:-1]
        return [one.name in self._items_in for one in outer] == [True] if self._items_in else not outer

    def _may_grow(self) -> bool:
        """Whether the string that comes next may be shown before its end."""
        schemas = self._references.branches(self._schemas())
        return len(schemas) == 1 and schemas[0].get("type", "string") == "string" and _NAMED.isdisjoint(schemas[0])

    def _schemas(self) -> list[Any]:
        """The schemas that the value which comes next may have."""
        if not self._open:
            return [self._root]
        return self._references.below(self._open[-1].schemas, self._open[-1].name)
