"""Parts: each is everything that a value must meet at once, merged from the keywords of several schemas.

A schema becomes a union of parts, one for each way through anyOf and oneOf. Schemas are merged before they are written
as texts, since every text has its keys in one order.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
EVERY_TYPE = frozenset(TYPES)

Bound = tuple[Fraction, bool]
"""A number, and whether the bound excludes it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Properties:
    """What one schema says about an object's properties.

    Attributes:
        named: the schemas of properties by name.
        matching: the schemas of properties by patterns of their names.
        additional: the schema of all others; None if none is written.
        lists: whether its names count as the list of properties to which closed objects are limited.
    """

    named: dict[str, Any]
    matching: dict[str, Any]
    additional: Any = None
    lists: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """What one schema says about an array's items: the schemas of the first ones, and the schema of the rest."""

    first: tuple[Any, ...] = ()
    rest: Any = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Contains:
    """How many items of an array must meet a schema: at least, and at most (None: any number)."""

    schema: Any
    least: int
    most: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Some:
    """Some property of an object has a name and a value that meet these schemas."""

    names: Any
    value: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Everything that a value must meet. None as a limit is no limit.

    Attributes:
        types: the names of the types; "number" without "integer" is all numbers but whole ones.
        values: the only values, if these are listed.
        excluded: strings that a value must not be.
        patterns: each matches somewhere in a string; `unmatched`: none does.
        names: schemas of the names of properties.
        absent: properties that an object must not have.
        refused: keywords that cannot be written, with their paths, by the type that they are about.
    """

    types: frozenset[str] = EVERY_TYPE
    values: tuple[Any, ...] | None = None
    excluded: frozenset[str] = frozenset()
    low: Bound | None = None
    high: Bound | None = None
    multiples: tuple[Fraction, ...] = ()
    no_multiples: tuple[Fraction, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    patterns: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    min_items: int = 0
    max_items: int | None = None
    unique: bool = False
    items: tuple[Items, ...] = ()
    contains: tuple[Contains, ...] = ()
    required: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    min_properties: int = 0
    max_properties: int | None = None
    properties: tuple[Properties, ...] = ()
    names: tuple[Any, ...] = ()
    some: tuple[Some, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    def refusal(self, kind: str) -> str | None:
        """The first keyword about a type that cannot be written, with its path."""
        return next((keyword for about, keyword in self.refused if about in (kind, "any")), None)


def merge(one: Part, other: Part) -> Part:
    """The part of values that meet both."""
    if one is ANYTHING or other is ANYTHING:
        return other if one is ANYTHING else one
    defaults, known, changes = vars(ANYTHING), vars(one), dict[str, Any]()
    for name, theirs in vars(other).items():
        default, mine = defaults[name], known[name]
        if theirs is not default and theirs != default:
            changes[name] = theirs if mine is default or mine == default else _COMBINE[name](mine, theirs)
    if not changes:
        return one
    made = object.__new__(Part)  # dataclasses.replace takes ten times as long, and schemas have thousands of parts
    vars(made).update(known, **changes)
    return made


def _together(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one + other))


def _common(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    known = {identity(value) for value in other}
    return tuple(value for value in one if identity(value) in known)


def _counted(one: tuple[Contains, ...], other: tuple[Contains, ...]) -> tuple[Contains, ...]:
    """What both ask of items, with one entry for each schema."""
    found = {id(asked.schema): asked for asked in one}
    for asked in other:
        same = found.get(id(asked.schema), asked)
        most = min((most for most in (same.most, asked.most) if most is not None), default=None)
        found[id(asked.schema)] = replace(asked, least=max(same.least, asked.least), most=most)
    return tuple(found.values())


def _each_some(one: tuple[Some, ...], other: tuple[Some, ...]) -> tuple[Some, ...]:
    return tuple({(id(asked.names), id(asked.value)): asked for asked in one + other}.values())


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "types": frozenset.intersection,
    "values": _common,
    **dict.fromkeys(("excluded", "absent"), frozenset.union),
    "low": max,
    "high": lambda one, other: min(one, other, key=lambda bound: (bound[0], not bound[1])),
    **dict.fromkeys(("min_length", "min_items", "min_properties", "unique"), max),
    **dict.fromkeys(("max_length", "max_items", "max_properties"), min),
    **dict.fromkeys(("multiples", "no_multiples", "patterns", "unmatched", "formats", "items", "required"), _together),
    **dict.fromkeys(("properties", "refused"), _together),
    "contains": _counted,
    "some": _each_some,
    "names": lambda one, other: one + tuple(name for name in other if not any(name is known for known in one)),
}

ANYTHING = Part()


def kind(value: Any) -> str:
    """The name of a value's type; "integer" for whole numbers however they are written."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {type(None): "null", int: "integer", str: "string", list: "array", tuple: "array", dict: "object"}
    return names[type(value)]


def identity(value: Any) -> Any:
    """A key that is equal for values which JSON Schema takes as equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return frozenset((key, identity(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(identity, value))
    return (type(value) is bool, value)
