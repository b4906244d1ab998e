"""Negates schemas of few keywords, for `not`, `if` and oneOf: gives what a value must meet to fail a schema.

Example: not {"required": ["a"], "properties": {"kind": {"const": "x"}}} is an object without "a", or one with a "kind"
that is not "x".
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.keywords import SAYS_SOMETHING, own_part
from gen.constraints.schema.parts import ANYTHING, EVERY_TYPE, Contains, Items, Part, Properties, Some, kind
from gen.constraints.schema.references import References


@dataclass(frozen=True)
class Negated:
    """One way not to meet a schema: a part, and schemas that must be met beside it."""

    part: Part
    schemas: tuple[Any, ...] = ()


def negated(schema: Any, path: str, references: References, depth: int = 0) -> list[Negated]:
    """All ways not to meet a schema. Raises Unsupported for keywords whose opposite cannot be said."""
    if depth > 20:
        raise Unsupported(f"the opposite of the schema at {path}, which is nested too deeply")
    if schema is True or schema == {}:
        return []
    if schema is False:
        return [Negated(ANYTHING)]
    if not isinstance(schema, dict):
        raise Unsupported(f"the schema at {path} must be an object, true or false")
    if "$ref" in schema and references.alone:
        return negated(references.resolve(schema, path), path, references, depth + 1)
    known = references.own(schema)
    own = own_part(known, path)
    out: list[Negated] = []
    for word, said in known.items():
        here = f"{path}/{word}"
        if word == "$ref":
            out += negated(references.resolve(schema, path), here, references, depth + 1)
        elif word == "allOf" and isinstance(said, list):
            for number, one in enumerate(said):
                out += negated(one, f"{here}/{number}", references, depth + 1)
        elif word == "anyOf" and isinstance(said, list):
            out.append(Negated(ANYTHING, tuple(map(references.opposite, said))))
        elif word == "oneOf" and isinstance(said, list):
            out.append(Negated(ANYTHING, tuple(map(references.opposite, said))))
            out += (Negated(ANYTHING, pair) for pair in combinations(said, 2))
        elif word == "not":
            out.append(Negated(ANYTHING, (said,)))
        elif word == "if":
            out.append(Negated(ANYTHING, (said, references.opposite(schema.get("then", True)))))
            out.append(Negated(ANYTHING, tuple(map(references.opposite, (said, schema.get("else", True))))))
        elif word in ("dependencies", "dependentSchemas", "dependentRequired") and isinstance(said, dict):
            for name, needed in said.items():
                present = Part(types=_OBJECT, required=(name,))
                if isinstance(needed, list):
                    out += (Negated(replace(present, absent=frozenset((one,)))) for one in needed)
                else:
                    out.append(Negated(present, (references.opposite(needed),)))
        elif word in ("enum", "const"):
            out += _other_values(own.values or (), references)
        elif word in SAYS_SOMETHING:
            out += map(Negated, _opposite(word, own, path, references))
    return out


_OBJECT, _ARRAY, _STRING = (frozenset((name,)) for name in ("object", "array", "string"))
_NUMBERS = frozenset(("integer", "number"))


def _opposite(word: str, own: Part, path: str, references: References) -> list[Part]:
    """The ways not to meet one plain keyword."""
    if word == "type":
        return [Part(types=EVERY_TYPE - own.types)]  # the opposite of integers has the other numbers
    if word == "required":
        return [Part(types=_OBJECT, absent=frozenset((name,))) for name in own.required]
    if word in ("properties", "patternProperties", "additionalProperties"):
        return _other_properties(word, own.properties[0], references)
    if word == "propertyNames":
        return [Part(types=_OBJECT, some=(Some(names=references.opposite(name), value=True),)) for name in own.names]
    if word in ("items", "prefixItems", "additionalItems"):
        return _other_items(word, own.items, path, references)
    if word == "pattern":
        return [Part(types=_STRING, unmatched=own.patterns)]
    if word == "minLength":
        return [Part(types=_STRING, max_length=own.min_length - 1)] if own.min_length else []
    if word == "maxLength" and own.max_length is not None:
        return [Part(types=_STRING, min_length=own.max_length + 1)]
    if word == "minItems":
        return [Part(types=_ARRAY, max_items=own.min_items - 1)] if own.min_items else []
    if word == "maxItems" and own.max_items is not None:
        return [Part(types=_ARRAY, min_items=own.max_items + 1)]
    if word == "contains":
        [contains] = own.contains
        if contains.least == 1 and contains.most is None:
            return [Part(types=_ARRAY, items=(Items(rest=references.opposite(contains.schema)),))]
        others = [replace(contains, least=0, most=contains.least - 1)] * bool(contains.least)
        others += [] if contains.most is None else [replace(contains, least=contains.most + 1, most=None)]
        return [Part(types=_ARRAY, contains=(one,)) for one in others]
    if word == "minProperties":
        return [Part(types=_OBJECT, max_properties=own.min_properties - 1)] if own.min_properties else []
    if word == "maxProperties" and own.max_properties is not None:
        return [Part(types=_OBJECT, min_properties=own.max_properties + 1)]
    if word in ("minimum", "exclusiveMinimum") and own.low is not None:
        return [Part(types=_NUMBERS, high=(own.low[0], not own.low[1]))]
    if word in ("maximum", "exclusiveMaximum") and own.high is not None:
        return [Part(types=_NUMBERS, low=(own.high[0], not own.high[1]))]
    if word == "multipleOf" and own.multiples[0].denominator == 1 and own.multiples[0] > 0:
        return [Part(types=frozenset(("number",))), Part(types=frozenset(("integer",)), no_multiples=own.multiples)]
    raise Unsupported(f"the opposite of {word} at {path}")


def _other_properties(word: str, own: Properties, references: References) -> list[Part]:
    """The ways for a property to fail its schema under this keyword."""
    out = []
    for name, schema in own.named.items() if word == "properties" else ():
        if schema is not True and schema != {}:
            other = Properties(named={name: references.opposite(schema)}, matching={}, lists=False)
            out.append(Part(types=_OBJECT, required=(name,), properties=(other,)))
    for pattern, schema in own.matching.items() if word == "patternProperties" else ():
        some = Some(names=references.made(id(schema), {"pattern": pattern}), value=references.opposite(schema))
        out.append(Part(types=_OBJECT, some=(some,)))
    if word == "additionalProperties" and own.additional not in (True, {}):
        known = [{"enum": list(own.named)}, *({"pattern": pattern} for pattern in own.matching)]
        names = references.made(id(own.named), {"not": {"anyOf": known}})
        out.append(Part(types=_OBJECT, some=(Some(names=names, value=references.opposite(own.additional)),)))
    return out


def _other_items(word: str, own: tuple[Items, ...], path: str, references: References) -> list[Part]:
    """The ways for an item to fail its schema under this keyword."""
    if not own:
        return []
    [items] = own
    out = []
    for place, schema in enumerate(items.first):
        if schema is not True and schema != {} and word != "additionalItems":
            other = Items(first=(*(True,) * place, references.opposite(schema)))
            out.append(Part(types=_ARRAY, min_items=place + 1, items=(other,)))
    if items.rest not in (True, {}) and word != "prefixItems":
        if items.first:
            raise Unsupported(f"the opposite of {word} after the first ones at {path}")
        contains = Contains(schema=references.opposite(items.rest), least=1, most=None)
        out.append(Part(types=_ARRAY, contains=(contains,)))
    return out


def _other_values(values: tuple[Any, ...], references: References) -> list[Negated]:
    """Everything but these values, by type."""
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault("number" if kind(value) == "integer" else kind(value), []).append(value)
    out = []
    for name in ("array", "object"):
        others = [references.made(id(value), {"not": _as_schema(value)}) for value in by_kind.get(name, ())]
        out.append(Negated(Part(types=frozenset((name,))), tuple(others)))
    if "null" not in by_kind:
        out.append(Negated(Part(types=frozenset(("null",)))))
    truths = tuple(one for one in (True, False) if one not in by_kind.get("boolean", ()))
    if truths:
        out.append(Negated(Part(types=frozenset(("boolean",)), values=truths)))
    out.append(Negated(Part(types=_STRING, excluded=frozenset(by_kind.get("string", ())))))
    numbers = sorted({Fraction(str(one)) for one in by_kind.get("number", ())})
    lows = [None, *((one, True) for one in numbers)]
    highs = [*((one, True) for one in numbers), None]
    for low, high in zip(lows, highs, strict=True):
        out.append(Negated(Part(types=_NUMBERS, low=low, high=high)))
    return out


def _as_schema(value: Any) -> dict[str, Any]:
    """A schema that only this array or object meets, without `const` for the whole of it."""
    if isinstance(value, dict):
        named = {name: {"const": one} for name, one in value.items()}
        return {"type": "object", "properties": named, "required": list(named), "additionalProperties": False}
    first = [{"const": one} for one in value]
    return {"type": "array", "prefixItems": first, "minItems": len(first), "maxItems": len(first)}
