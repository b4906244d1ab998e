"""A JSON text that grows: the part of it that later text cannot change, and its items as soon as they are whole.

Example: of the text '{"name": "Ad' the string may grow, so its value so far is {"name": "Ad"}. After '{"age": 3' the
number may become 37, so the value so far is {}.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NUMBERS_END = frozenset(",]} \n\t\r")
_NAMED = ("enum", "const", "format", "anyOf", "oneOf", "allOf")  # what makes a string one of several, or of one form


@dataclass
class _Open:
    """An object or array that has not ended: what its part that comes next is called, and what its schema is."""

    is_object: bool
    schema: Any
    name: str | int


class PartialJson:
    """A JSON text, and what is certain of it.

    Args:
        schema: the text's; a string that it makes one of several appears whole.
        items_in: the array whose items are told: () for the text itself, ("lines",) for one in an object; None for
            none.

    Attributes:
        text: as far as it has come.
        certain: how many of its characters have the value so far, if what is open there is closed.
    """

    def __init__(self, schema: Mapping[str, Any], items_in: Sequence[str] | None = None) -> None:
        self._root, self._items_in = schema, None if items_in is None else [*items_in]
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
        schema: Any = self._root
        for name in self._items_in or ():
            schema = self._of_part(schema, name, is_object=True)
        return self._may_be_array(schema)

    def _may_be_array(self, schema: Any) -> bool:
        schema = self._resolved(schema)
        if not isinstance(schema, Mapping):
            return schema is True
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return any(map(self._may_be_array, schema[several]))
        return "array" in schema.get("type", "array")

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
            self._open.append(_Open(character == "{", self._schema(), 0))
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
        self._grows, self._half = not is_key and _may_grow(self._resolved(self._schema())), False
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
        if self._items_in is not None and self._item < 0 and self._path() == self._items_in:
            self._item = self._at

    def _end_value(self, end: int) -> None:
        self.certain, self._reads = end, "value"
        if self._item >= 0 and self._path() == self._items_in:
            self._whole.append((self._item, end))
            self._item = -1

    def _path(self) -> list[str] | None:
        """The names that lead to the innermost array; None where what is open is none, or is in another array."""
        if not self._open or self._open[-1].is_object or not all(one.is_object for one in self._open[:-1]):
            return None
        return [str(one.name) for one in self._open[:-1]]

    def _schema(self) -> Any:
        """The schema of the value that comes next."""
        if not self._open:
            return self._root
        outer = self._open[-1]
        return self._of_part(outer.schema, outer.name, is_object=outer.is_object)

    def _of_part(self, schema: Any, name: str | int, *, is_object: bool) -> Any:
        """The schema of a part of a value; {"anyOf": ...} where several may be meant."""
        schema = self._resolved(schema)
        if not isinstance(schema, Mapping):
            return {}
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                found = [self._of_part(one, name, is_object=is_object) for one in schema[several]]
                found = [one for place, one in enumerate(found) if one is not None and one not in found[:place]]
                return found[0] if len(found) == 1 else {"anyOf": found} if found else None
        if is_object:
            known = schema.get("properties", {})
            if name in known:
                return known[name]
            return schema.get("additionalProperties", None if known or "type" in schema else {})
        listed = schema.get("prefixItems", [])
        if isinstance(name, int) and name < len(listed):
            return listed[name]
        return schema.get("items", None if "type" in schema and schema["type"] != "array" else {})

    def _resolved(self, schema: Any) -> Any:
        while isinstance(schema, Mapping) and str(schema.get("$ref", "")).startswith("#"):
            found: Any = self._root
            for name in schema["$ref"].split("/")[1:]:
                found = found[name.replace("~1", "/").replace("~0", "~")]
            schema = found
        return schema


def _may_grow(schema: Any) -> bool:
    """Whether a string of a schema may be shown before its end."""
    if not isinstance(schema, Mapping):
        return schema is not None
    return schema.get("type", "string") == "string" and not any(name in schema for name in _NAMED)
