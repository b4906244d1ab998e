"""Whether a text meets a schema by the jsonschema package, with exact numbers and in both readings of patterns.

Numbers of the schema and of the text are read as they are written, as decimals: jsonschema's own arithmetic is that of
floats. A pattern is read as Python reads it, and again as ECMA 262 does. Formats are held where a checker is installed
(`pip install "jsonschema[format]"`).
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker, ValidationError, validators

_WHITE_SPACE = r" \t\n\v\f\r\xa0\ufeff\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LINE_ENDS = r"\n\r\u2028\u2029"
_IN_ECMA = {r"\s": f"[{_WHITE_SPACE}]", r"\S": f"[^{_WHITE_SPACE}]", "$": r"\Z", ".": f"[^{_LINE_ENDS}]"}


def in_ecma(pattern: str) -> re.Pattern[str]:
    """What ECMA 262 means by a pattern, in Python's syntax."""
    out, within, at = "", False, 0
    while at < len(pattern):
        one = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(one)
        if one == r"\s" and within:
            one = _WHITE_SPACE
        elif not within:
            within = one == "["
            one = _IN_ECMA.get(one, one)
        elif one == "]":
            within = False
        out += one
    return re.compile(out, re.ASCII)


def identity(value: Any) -> Any:
    """Equal for values that JSON Schema calls equal."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__, value
    if isinstance(value, list):
        return "array", *map(identity, value)
    if isinstance(value, dict):
        return "object", frozenset((name, identity(one)) for name, one in value.items())
    return "number", Fraction(value)


def read(text: str) -> Any:
    """JSON with its numbers as they are written."""
    return json.loads(text, parse_float=Decimal)


def _number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _said(wrong: bool, word: str) -> Iterator[ValidationError]:
    if wrong:
        yield ValidationError(word)


def _multiple(validator: Any, of: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from _said(_number(instance) and Fraction(instance) % Fraction(of) != 0, "multipleOf")


def _enum(validator: Any, values: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from _said(identity(instance) not in map(identity, values), "enum")


def _const(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from _said(identity(instance) != identity(value), "const")


def _unique(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    twice = isinstance(instance, list) and len({*map(identity, instance)}) < len(instance)
    yield from _said(wanted is True and twice, "uniqueItems")


def _ecma_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from _said(isinstance(instance, str) and not in_ecma(pattern).search(instance), "pattern")


def _ecma_properties(validator: Any, matching: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for pattern, below in matching.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if in_ecma(pattern).search(name):
                yield from validator.descend(value, below, path=name)


def _ecma_additional(validator: Any, below: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    patterns = [in_ecma(pattern) for pattern in schema.get("patternProperties", {})]
    for name, value in instance.items() if isinstance(instance, dict) else ():
        if name not in schema.get("properties", {}) and not any(one.search(name) for one in patterns):
            yield from validator.descend(value, below, path=name)


def _validators(draft: Any) -> tuple[Any, Any]:
    """A draft's validator in Python's reading of patterns, and in that of ECMA 262."""
    checker = draft.TYPE_CHECKER.redefine_many(
        {
            "number": lambda _, value: _number(value),
            "integer": lambda _, value: _number(value) and value == int(value),
        }
    )
    own = {"multipleOf": _multiple, "enum": _enum, "const": _const, "uniqueItems": _unique}
    ecma = {
        "pattern": _ecma_pattern,
        "patternProperties": _ecma_properties,
        "additionalProperties": _ecma_additional,
    }
    python, both = (
        validators.extend(draft, words, type_checker=checker)  # type: ignore[no-untyped-call]
        for words in (own, own | ecma)
    )
    return python, both


def _formats(draft: Any) -> FormatChecker:
    """A draft's formats; jsonschema's own checker refuses pointers whose number has a zero before its last digit."""
    checker = FormatChecker(())
    checker.checkers = dict(draft.FORMAT_CHECKER.checkers)
    pointer = re.compile(r"(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)")
    checker.checks("relative-json-pointer")(lambda text: not isinstance(text, str) or bool(pointer.fullmatch(text)))
    return checker


_BOTH = {True: _validators(Draft7Validator), False: _validators(Draft202012Validator)}
_FORMATS = {True: _formats(Draft7Validator), False: _formats(Draft202012Validator)}


class Judge:
    """Judges texts by one schema."""

    def __init__(self, schema: Any) -> None:
        draft7 = isinstance(schema, dict) and "draft-07" in str(schema.get("$schema"))
        exact = read(json.dumps(schema))
        self._validators = [one(exact, format_checker=_FORMATS[draft7]) for one in _BOTH[draft7]]

    def takes(self, text: str) -> bool:
        """Whether a text meets the schema in both readings of patterns."""
        value = read(text)
        return all(one.is_valid(value) for one in self._validators)
