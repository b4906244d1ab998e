"""Read the arguments of a call out of a text that comes in pieces, as JSON.

Example: the JSON of "<parameter=city>\\nOs" is '{"city": "Os', that of "lo\\n</parameter>\\n</function>" is 'lo"}'.
"""

import json
import re
from collections.abc import Callable
from typing import ClassVar, Protocol

from gen.constraints.automata.searching import begun_at_end
from gen.constraints.schema.writing.writer import Fields, looks_like


class ArgumentsReader(Protocol):
    """Reads the arguments of one call."""

    def take(self, held: str) -> tuple[str, int, bool]:
        """Take characters that have come and were not taken yet.

        Returns:
            A piece of JSON, how many characters were taken, and whether the arguments are whole.
        """


class JsonReader:
    """Reads arguments that are a JSON object."""

    def __init__(self) -> None:
        self._quoted = self._escaped = False
        self._depth = 0  # how many brackets are open

    def take(self, held: str) -> tuple[str, int, bool]:
        for place, character in enumerate(held):
            if self._is_plain(character):
                self._depth += (character in "{[") - (character in "}]")
                if not self._depth and character in "}]":
                    return held[: place + 1], place + 1, True
        return held, len(held), False

    def _is_plain(self, character: str) -> bool:
        """Whether the next character is in no string, or begins one."""
        if not self._quoted:
            self._quoted = character == '"'
            return True
        self._quoted = self._escaped or character != '"'
        self._escaped = character == "\\" and not self._escaped
        return False


class PythonReader(JsonReader):
    """Reads keyword arguments of Python up to the bracket that closes them."""

    _constants: ClassVar = {"True": "true", "False": "false", "None": "null"}

    def __init__(self) -> None:
        super().__init__()
        self._began, self._word = False, ""

    def take(self, held: str) -> tuple[str, int, bool]:
        written = "" if self._began or not held else "{"
        self._began = self._began or bool(held)
        for place, character in enumerate(held):
            if not self._is_plain(character):
                written += character
            elif character == "_" or character.isalnum():
                self._word += character
            else:
                named = character == "=" and not self._depth
                written += f"{json.dumps(self._word)}: " if named else self._constants.get(self._word, self._word)
                self._word = ""
                if character == ")":
                    return written + "}", place, True
                self._depth += (character in "[{") - (character in "]}")
                written += "" if named else character
        return written, len(held), False


class FieldsReader:
    """Reads arguments that are properties between marks.

    Args:
        behind: what stands behind the last property.
        types: gives the types that a property may have.
        begun: what stands before the first characters that come.
    """

    def __init__(self, fields: Fields, behind: str, types: Callable[[str], frozenset[str]], begun: str = "") -> None:
        self._fields, self._behind, self._types, self._begun = fields, behind, types, begun
        self._name = re.compile(f"{re.escape(fields.before)}(.*?){re.escape(fields.after)}", re.DOTALL)
        self._count = 0  # how many properties have begun
        self._open = ""  # what is open: "", a string, JSON or either
        self._others = ""  # the pattern of what is no string

    def take(self, held: str) -> tuple[str, int, bool]:
        written, taken, whole = self._take(self._begun + held)
        if taken:
            taken, self._begun = taken - len(self._begun), ""
        return written, taken, whole

    def _take(self, held: str) -> tuple[str, int, bool]:
        written, at = "", 0
        while True:
            if not self._open:
                if held.startswith(self._behind, at):
                    return written + ("}" if self._count else "{}"), at, True
                between = len(self._fields.between) if self._count else 0
                found = self._name.match(held, at + between)
                if found is None:
                    return written, at, False
                written += f"{', ' if self._count else '{'}{self._begin(found[1])}"
                at, self._count = found.end(), self._count + 1
            end = held.find(self._fields.end, at)
            if end < 0 and self._open == "either":
                return written, at, False
            stop = len(held) - begun_at_end(held, self._fields.end, at) if end < 0 else end
            written += self._value(held[at:stop])
            if end < 0:
                return written, stop, False
            written += '"' * (self._open == "string")
            at, self._open = end + len(self._fields.end), ""

    def _begin(self, name: str) -> str:
        types = self._types(name)
        self._open = "JSON" if "string" not in types else "string" if len(types) == 1 else "either"
        self._others = looks_like(types)
        return json.dumps(name, ensure_ascii=False) + ": " + '"' * (self._open == "string")

    def _value(self, piece: str) -> str:
        """A piece of a value as JSON; a value that may be a string or not comes as a whole."""
        if self._open == "JSON" or (self._open == "either" and re.match(self._others, piece)):
            return piece
        quoted = json.dumps(piece, ensure_ascii=False)
        return quoted if self._open == "either" else quoted[1:-1]
