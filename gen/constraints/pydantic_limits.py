"""Limits that pydantic checks after it has read a value, where `Field` limits what has no words for it itself.

Example: a `max_length` of `str | None` is the str's own, but that of `str | list[int]` is a function's, which asks for
the length of whatever was read. Of `int | Path` it asks for that of a Path, which has none: that is a TypeError.
"""

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Any

FUNCTIONS = ("function-before", "function-wrap", "function-after")
NUMBERS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
LENGTHS = {
    "min_length": ("minLength", "minItems", "minProperties"),
    "max_length": ("maxLength", "maxItems", "maxProperties"),
}

Kinds = frozenset[tuple[str, str]]
"""The types of JSON that a core schema reads, each with a kind of values that it makes of them."""

_KINDS = {
    **dict.fromkeys(("str", "bytes"), ("string", "str")),
    **dict.fromkeys(("date", "datetime", "time", "timedelta", "uuid", "complex"), ("string", "other")),
    **dict.fromkeys(("url", "multi-host-url"), ("string", "url")),
    **dict.fromkeys(("int", "float", "fraction"), ("number", "number")),
    "bool": ("boolean", "bool"),
    "none": ("null", "other"),
    **dict.fromkeys(("list", "tuple", "deque", "generator"), ("array", "items")),
    **dict.fromkeys(("set", "frozenset"), ("array", "distinct")),
    **dict.fromkeys(("named-tuple", "call"), ("array", "other")),
    **dict.fromkeys(("dict", "typed-dict", "counter", "ordered-dict", "frozendict"), ("object", "items")),
    **dict.fromkeys(("model", "dataclass"), ("object", "other")),
}
_ANY = frozenset(_KINDS[kind] for kind in ("str", "float", "bool", "none", "list", "dict"))
_OPTIONS = {bool: "bool", str: "str", int: "int", float: "float", type(None): "none"}
_ANY_STR = frozenset(["type", "metadata", "serialization"])  # what a core schema of any str has
_AFTER_STR = frozenset(["date", "datetime", "time", "timedelta", "decimal", "lax-or-strict", "json-or-python"])
"""What no string is read as where a str comes before it in a union."""
_SIZED = frozenset(["str", "url", "secret", "items", "unknown"])
_SIZES, _BOUNDS = "lengths of strings, lists and dicts", "bounds of numbers"
_LIMITED = {
    "min_length": (_SIZED, _SIZES),
    "max_length": (_SIZED | {"distinct"}, _SIZES),
    **dict.fromkeys(NUMBERS, (frozenset(["number", "unknown"]), _BOUNDS)),
    "allow_inf_nan": (frozenset(["number", "bool", "unknown"]), _BOUNDS),
    "pattern": (frozenset(["str", "changed", "member", "remade", "unknown"]), "patterns and the like of strings"),
}
"""The kinds of values that know a limit, and this limit in words. A set may have fewer items than its text."""
_MAYBE_REMADE = _SIZED | {"changed", "distinct", "number"}


def limited(kinds: Kinds, name: str, least: bool = False) -> list[str] | str | None:
    """The types of JSON from which only values are read that know a limit; None if all types are that, or words for it
    if no type is, or if values of one type may and may not know it.
    """
    good, words = _LIMITED["max_length" if least else name]
    if words == _SIZES and ("string", "str") not in kinds:  # else a str that is changed may take its texts
        good |= {"changed"}
    taken, odd = ({one for one, kind in kinds if (kind in good) is known} for known in (True, False))
    fewer = "distinct" in {kind for _, kind in kinds} - good
    return words if not taken or taken & odd or fewer else sorted(taken) if odd else None


def own_limits(schema: Any) -> Mapping[str, Any]:
    """What a function of pydantic's asks of a value that it has read; {} for other functions."""
    called, own = _called(schema)
    if own and getattr(called, "__name__", "") == "forbid_inf_nan_check":
        return {"allow_inf_nan": False}
    limits = isinstance(called, partial) and called.func.__module__ == "pydantic._internal._validators"
    return called.keywords if limits and schema["type"] == "function-after" else {}


def str_step(schema: Any) -> Any:
    """The core schema of the str that a step of a chain reads; None if it reads none."""
    while schema["type"] in FUNCTIONS:
        schema = schema["schema"]
    return schema if schema["type"] == "str" else None


def kinds_of(schema: Any, referred: Mapping[str, Any], config: Any, seen: frozenset[str] = frozenset()) -> Kinds:
    """The types of JSON that a core schema reads, each with the kinds of the values.

    Args:
        referred: core schemas by what refers to them.
        config: the settings of the model around it.
    """
    kind = schema["type"]
    if kind == "any":
        return _ANY
    if kind == "str" and changes(schema, config, "strip_whitespace", "to_lower", "to_upper"):
        return frozenset([("string", "changed")])
    if kind in ("enum", "literal"):
        return frozenset(map(_kind_of_option, schema["members" if kind == "enum" else "expected"]))
    if kind == "decimal":  # which is read from strings before a str is
        return frozenset([("string", "other"), *([] if counts_digits(schema) else [_KINDS["float"]])])
    if kind in ("dict", "counter", "ordered-dict", "frozendict") and converts(schema, config):
        return frozenset([("object", "distinct")])
    if kind in _KINDS and not schema.get("root_model"):
        return frozenset([_KINDS[kind]])
    if kind == "definition-ref":
        name = schema["schema_ref"]
        return frozenset() if name in seen else kinds_of(referred[name], referred, config, seen | {name})
    choices = schema.get("choices", ())
    inner = [*(choices.values() if isinstance(choices, dict) else choices), *schema.get("steps", ())[:1]]
    inner += [schema[name] for name in ("schema", "json_schema", "lax_schema") if name in schema]
    inner = [one[0] if isinstance(one, tuple) else one for one in inner]
    found = [kinds_of(one, referred, config, seen) for one in inner]
    plain = [number for number, one in enumerate(inner) if one["type"] == "str" and one.keys() <= _ANY_STR]
    for number, one in enumerate(inner):
        if plain and number > plain[0] and one["type"] in _AFTER_STR:
            found[number] = frozenset(kind for kind in found[number] if kind[0] != "string")
    kinds = frozenset[tuple[str, str]]().union(*found) or frozenset((one, "other") for one, _ in _ANY)
    if kind == "chain":
        strings = all(str_step(one) and (one["type"] == "str" or _called(one)[1]) for one in schema["steps"][1:])
        return _read(kinds, "pattern") if strings else _by_users(kinds)
    if kind in (*FUNCTIONS, "function-plain"):
        return _after(schema, kinds)
    if kind == "model":
        return _all(kinds, "other")
    return kinds | {_KINDS["none"]} if kind == "nullable" else kinds


def changes(schema: Any, config: Any, *how: str) -> bool:
    """Whether pydantic changes a str that it reads in one of some ways."""
    return any(schema.get(one) or getattr(config, f"str_{one}", False) for one in how)


def converts(schema: Any, config: Any) -> bool:
    """Whether pydantic may read two different keys of a dict as one."""
    keys = schema.get("keys_schema", {"type": "any"})
    if keys["type"] == "str":
        return changes(keys, config, "to_lower", "to_upper")
    return keys["type"] not in ("any", "int", "bool", "date", "literal", "enum")


def counts_digits(schema: Any) -> bool:
    """Whether the digits of a Decimal are limited, so that it is read from a string."""
    return any(schema.get(name) is not None for name in ("max_digits", "decimal_places"))


def _called(schema: Any) -> tuple[Any, bool]:
    """The function of a core schema, and whether it is pydantic's own."""
    called = schema.get("function", {}).get("function")
    return called, str(getattr(getattr(called, "func", called), "__module__", "")).startswith("pydantic.")


def _after(schema: Any, kinds: Kinds) -> Kinds:
    """The kinds of values after a function."""
    called, own = _called(schema)
    if not own:
        return _all(kinds, "unknown") if schema["type"] == "function-plain" else _by_users(kinds)
    if limits := own_limits(schema):
        for name in limits.keys() & _LIMITED.keys():
            kinds = _read(kinds, name)
        return kinds
    if schema["type"] == "function-plain":
        types = ("string", "number") if called.__module__ == "pydantic.networks" else ("string",)
        return frozenset((one, "other") for one in types)
    if isinstance(called, type) and hasattr(called, "__len__"):  # SecretStr, SecretBytes
        return _all(kinds, "secret")
    kept = ("array", "object", "string") if "Secret" not in getattr(called, "__qualname__", "") else ()
    return frozenset((one, kind if one in kept and kind not in ("str", "changed") else "other") for one, kind in kinds)


def _by_users(kinds: Kinds) -> Kinds:
    """The kinds of values of which a function of the user's may make others: None is most likely still None."""
    known = ("unknown" if kind in _MAYBE_REMADE else "remade" if one == "string" else kind for one, kind in kinds)
    return frozenset(zip((one for one, _ in kinds), known, strict=True))


def _read(kinds: Kinds, name: str) -> Kinds:
    """The kinds of values that know a limit."""
    return frozenset((one, kind) for one, kind in kinds if kind in _LIMITED[name][0])


def _all(kinds: Kinds, kind: str) -> Kinds:
    return frozenset((one, kind) for one, _ in kinds)


def _kind_of_option(option: Any) -> tuple[str, str]:
    """The type of an option in JSON, and its kind."""
    value = option.value if isinstance(option, Enum) else option
    named = _KINDS[_OPTIONS.get(type(value), "model")]
    return named if isinstance(option, type(value)) else (named[0], "member" if named[0] == "string" else "other")
