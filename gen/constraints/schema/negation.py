"""What a value must meet in order not to meet a schema, for schemas of few keywords; for `not`, `if` and oneOf.

Example: not {"required": ["a"], "properties": {"kind": {"const": "x"}}} is an object without "a", or one with a "kind"
that is not "x".
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.keywords import SAYS_SOMETHING, own_part
from gen.constraints.schema.parts import ANYTHING, EVERY_TYPE, Items, Part, Properties, kind
from gen.constraints.schema.references import References

_HOLD_SCHEMAS = ("oneOf", "if", "dependencies", "dependentSchemas", "dependentRequired", "unevaluatedProperties")


@dataclass(frozen=True)
class Negated:
    """One way not to meet a schema: a part, and schemas that must be met beside it."""

    part: Part
    schemas: tuple[Any, ...] = ()


def negated(schema: Any, path: str, references: References, depth: int = 0) -> list[Negated]:
    """All ways not to meet a schema. Raises Unsupported for keywords whose opposite cannot be said."""
    if depth > 20:
        raise Unsupported(f"the opposite of the schema at {path}, which is nested too deeply,")
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
        elif word == "not":
            out.append(Negated(ANYTHING, (said,)))
        elif word == "properties":
            for name, one in said.items():
                if one is not True and one != {}:
                    other = Properties(named={name: references.opposite(one)}, matching={}, lists=False)
                    part = Part(types=frozenset(("object",)), required=(name,), properties=(other,))
                    out.append(Negated(part))
        elif word in SAYS_SOMETHING or word in _HOLD_SCHEMAS:
            out += map(Negated, _opposite(word, own, path, references))
    return out


def _opposite(word: str, own: Part, path: str, references: References) -> list[Part]:
    """The ways not to meet one plain keyword."""
    if word == "type":
        if "integer" in own.types and "number" not in own.types:
            raise Unsupported(f"not with the type integer at {path}")
        return [Part(types=EVERY_TYPE - own.types)]
    if word in ("enum", "const"):
        return _other_values(own.values or (), path)
    if word == "required":
        return [Part(types=frozenset(("object",)), absent=frozenset((name,))) for name in own.required]
    strings, arrays, objects = (frozenset((name,)) for name in ("string", "array", "object"))
    numbers = frozenset(("integer", "number"))
    if word == "pattern":
        return [Part(types=strings, unmatched=own.patterns)]
    if word == "minLength":
        return [Part(types=strings, max_length=own.min_length - 1)] if own.min_length else []
    if word == "maxLength" and own.max_length is not None:
        return [Part(types=strings, min_length=own.max_length + 1)]
    if word == "minItems":
        return [Part(types=arrays, max_items=own.min_items - 1)] if own.min_items else []
    if word == "maxItems" and own.max_items is not None:
        return [Part(types=arrays, min_items=own.max_items + 1)]
    if word == "contains":
        [contains] = own.contains
        if contains.least == 1 and contains.most is None:
            return [Part(types=arrays, items=(Items(rest=references.opposite(contains.schema)),))]
    if word == "minProperties":
        return [Part(types=objects, max_properties=own.min_properties - 1)] if own.min_properties else []
    if word in ("minimum", "exclusiveMinimum") and own.low is not None:
        return [Part(types=numbers, high=(own.low[0], not own.low[1]))]
    if word in ("maximum", "exclusiveMaximum") and own.high is not None:
        return [Part(types=numbers, low=(own.high[0], not own.high[1]))]
    raise Unsupported(f"the opposite of {word} at {path}")


def _other_values(values: tuple[Any, ...], path: str) -> list[Part]:
    """Everything but these values, by type."""
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault("number" if kind(value) == "integer" else kind(value), []).append(value)
    if "array" in by_kind or "object" in by_kind:
        raise Unsupported(f"not with listed arrays or objects at {path}")
    out = [Part(types=frozenset((name,))) for name in ("array", "object")]
    if "null" not in by_kind:
        out.append(Part(types=frozenset(("null",))))
    truths = tuple(one for one in (True, False) if one not in by_kind.get("boolean", ()))
    if truths:
        out.append(Part(types=frozenset(("boolean",)), values=truths))
    out.append(Part(types=frozenset(("string",)), excluded=frozenset(by_kind.get("string", ()))))
    numbers = sorted({Fraction(str(one)) for one in by_kind.get("number", ())})
    lows = [None, *((one, True) for one in numbers)]
    highs = [*((one, True) for one in numbers), None]
    for low, high in zip(lows, highs, strict=True):
        out.append(Part(types=frozenset(("integer", "number")), low=low, high=high))
    return out
