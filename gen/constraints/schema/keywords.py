"""Reads the keywords of one schema as a part, except those that hold further schemas of the same value."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.parts import (
    ANYTHING,
    EVERY_TYPE,
    Bound,
    Contains,
    Items,
    Part,
    Properties,
    identity,
)
from gen.constraints.schema.references import items_of

_MOST_DIGITS = 300  # of a number in a schema
_REFUSED = {
    "unevaluatedItems": "array",
    "unevaluatedProperties": "object",
    "contentMediaType": "string",
    "$dynamicRef": "any",
    "$recursiveRef": "any",
    "extends": "any",
    "disallow": "any",
}
_PLAIN = """type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern
    format contentEncoding minItems maxItems contains uniqueItems items prefixItems additionalItems required
    minProperties maxProperties properties patternProperties additionalProperties propertyNames"""

SAYS_SOMETHING = frozenset(re.split(r"\s+", _PLAIN)).union(_REFUSED)
"""The keywords that say something about a value and hold no further schema of the same value."""


def own_part(schema: Mapping[str, Any], path: str) -> Part:
    """The part that the schema itself describes. Raises Unsupported if a keyword has a value that it cannot have."""
    if not SAYS_SOMETHING.intersection(schema):
        return ANYTHING
    read = _Keywords(schema, path)
    low, high = read.bounds()
    return Part(
        types=read.types(),
        values=read.values(),
        low=low,
        high=high,
        multiples=(read.fraction("multipleOf"),) if "multipleOf" in schema else (),
        min_length=read.count("minLength") or 0,
        max_length=read.count("maxLength"),
        patterns=read.text("pattern"),
        formats=read.text("format") + tuple(f"{name} encoding" for name in read.text("contentEncoding")),
        min_items=read.count("minItems") or 0,
        max_items=read.count("maxItems"),
        unique=schema.get("uniqueItems") is True,
        items=read.items(),
        contains=read.contains(),
        required=read.required(),
        min_properties=read.count("minProperties") or 0,
        max_properties=read.count("maxProperties"),
        properties=read.properties(),
        names=(schema["propertyNames"],) if schema.get("propertyNames", True) not in (True, {}) else (),
        refused=tuple((about, f"{word} at {path}") for word, about in _REFUSED.items() if read.says(word)),
    )


class _Keywords:
    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        self._schema, self._path = schema, path

    def says(self, word: str) -> bool:
        """Whether a keyword is there and says something."""
        if word == "contentMediaType":  # nobody checks texts of other media
            return self._schema.get(word) == "application/json"
        return word in self._schema and self._schema[word] is not True and self._schema[word] != {}

    def refuse(self, word: str, wanted: str) -> Unsupported:
        return Unsupported(f"{word} at {self._path} must be {wanted}")

    def types(self) -> frozenset[str]:
        said = self._schema.get("type", None)
        if said is None:
            return EVERY_TYPE
        names = [said] if isinstance(said, str) else said
        if not isinstance(names, list) or not all(isinstance(name, str) and name in EVERY_TYPE for name in names):
            raise self.refuse("type", "one of the types of JSON Schema, or a list of them")
        return frozenset([*names, "integer"] if "number" in names else names)

    def values(self) -> tuple[Any, ...] | None:
        values = self._schema.get("enum", [self._schema.get("const")])
        if not isinstance(values, list) or any(isinstance(one, float) and not math.isfinite(one) for one in values):
            raise self.refuse("enum", "a list of values that JSON can write")
        if "const" in self._schema:
            constant = identity(self._schema["const"])
            return tuple(one for one in values if identity(one) == constant)
        return tuple(values) if "enum" in self._schema else None

    def number(self, word: str) -> bool:
        value = self._schema.get(word)
        return isinstance(value, int | float) and not isinstance(value, bool)

    def fraction(self, word: str) -> Fraction:
        value = self._schema[word]
        if not self.number(word) or (isinstance(value, float) and not math.isfinite(value)):
            raise self.refuse(word, "a finite number")
        if abs(value) >= 10**_MOST_DIGITS:
            raise self.refuse(word, f"a number of at most {_MOST_DIGITS} digits")
        return Fraction(str(value))

    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """The tightest bound of each side; `exclusiveMinimum: true` is draft 4's form."""
        sides: list[Bound | None] = []
        for word, exclusive, tightest in (("minimum", "exclusiveMinimum", max), ("maximum", "exclusiveMaximum", min)):
            found = []
            if word in self._schema:
                found.append((self.fraction(word), self._schema.get(exclusive) is True))
            if exclusive in self._schema and not isinstance(self._schema[exclusive], bool):
                found.append((self.fraction(exclusive), True))
            if tightest is max:
                sides.append(max(found, default=None))
            else:
                sides.append(min(found, key=lambda bound: (bound[0], not bound[1]), default=None))
        return sides[0], sides[1]

    def count(self, word: str) -> int | None:
        if word not in self._schema:
            return None
        value = self._schema[word]
        if not self.number(word) or value < 0 or value % 1:
            raise self.refuse(word, "a whole number")
        if value >= 10**_MOST_DIGITS:
            raise self.refuse(word, f"a number of at most {_MOST_DIGITS} digits")
        return int(value)

    def text(self, word: str) -> tuple[str, ...]:
        if word not in self._schema:
            return ()
        if not isinstance(self._schema[word], str):
            raise self.refuse(word, "a text")
        return (self._schema[word],)

    def required(self) -> tuple[str, ...]:
        said = self._schema.get("required", [])
        if isinstance(said, bool):  # draft 3's form, in the schema of a property; no reader supports it any more
            return ()
        if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
            raise self.refuse("required", "a list of names")
        return tuple(dict.fromkeys(said))

    def items(self) -> tuple[Items, ...]:
        first, rest = items_of(self._schema)
        if not isinstance(first, list):
            raise self.refuse("prefixItems", "a list of schemas")
        return (Items(first=tuple(first), rest=rest),) if first or rest not in (True, {}) else ()

    def contains(self) -> tuple[Contains, ...]:
        if "contains" not in self._schema:
            return ()
        least, most = self.count("minContains"), self.count("maxContains")
        return (Contains(schema=self._schema["contains"], least=1 if least is None else least, most=most),)

    def properties(self) -> tuple[Properties, ...]:
        words = ("properties", "patternProperties")
        for word in words:
            if not isinstance(self._schema.get(word, {}), dict):
                raise self.refuse(word, "an object of schemas")
        if not any(word in self._schema for word in (*words, "additionalProperties")):
            return ()
        named, matching = (self._schema.get(word, {}) for word in words)
        additional, lists = self._schema.get("additionalProperties"), any(word in self._schema for word in words)
        return (Properties(named=named, matching=matching, additional=additional, lists=lists),)
