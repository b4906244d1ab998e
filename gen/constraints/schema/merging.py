"""Schemas into parts: references, allOf, anyOf, oneOf, not, if and dependencies, merged before any text is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gen.constraints.automaton import TooLarge, Unsupported, check_deadline
from gen.constraints.schema.keywords import own_part
from gen.constraints.schema.negation import negated
from gen.constraints.schema.parts import ANYTHING, Part, Properties, merge
from gen.constraints.schema.references import References

_MOST_PARTS = 512
_SAME_VALUE = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependencies", "dependentSchemas", "dependentRequired")


@dataclass(frozen=True)
class Merged:
    """A schema's parts and the references that were followed to make them."""

    parts: tuple[Part, ...]
    followed: frozenset[str] = frozenset()


class Merger:
    """Makes parts of schemas, once of each.

    Args:
        disjoint: whether no value that is written for the first part meets the second one.
    """

    def __init__(self, root: Any, deadline: float, disjoint: Callable[[Part, Part], bool]) -> None:
        self._references, self._deadline, self._disjoint = References(root), deadline, disjoint
        self._known: dict[int, tuple[Any, Merged]] = {}
        self._open: list[str] = []

    def all_of(self, schemas: Sequence[Any], path: str) -> Merged:
        """The parts of values that meet all of the schemas."""
        merged = Merged((ANYTHING,))
        for schema in schemas:
            merged = self._cross(merged, self.parts(schema, path), path)
        return merged

    def parts(self, schema: Any, path: str) -> Merged:
        """The parts of a schema, overlapping or not. Raises Unsupported, TooLarge."""
        if schema is True or schema == {}:
            return Merged((ANYTHING,))
        if schema is False:
            return Merged(())
        if not isinstance(schema, dict):
            raise Unsupported(f"the schema at {path} must be an object, true or false")
        known = self._known.get(id(schema))
        if known is None:
            check_deadline(self._deadline, f"merging the schemas at {path[:80]}")
            known = (schema, self._merge(schema, path))  # the schema is kept, so that no other one gets its id
            self._known[id(schema)] = known
        return known[1]

    def _merge(self, schema: dict[str, Any], path: str) -> Merged:
        if "$ref" in schema and self._references.alone:
            return self._referred(schema["$ref"], path)
        out = Merged((own_part(schema, path),))
        for word in _SAME_VALUE:
            if word in schema:
                out = self._keyword(out, word, schema[word], schema, path)
        if "unevaluatedProperties" in schema:
            out = replace(out, parts=tuple(_evaluated(part, schema["unevaluatedProperties"]) for part in out.parts))
        return out

    def _keyword(self, out: Merged, word: str, said: Any, schema: dict[str, Any], path: str) -> Merged:
        """What was merged so far, with one more keyword."""
        here = f"{path}/{word}"
        if word.endswith("Of") and not isinstance(said, list):
            raise Unsupported(f"{word} at {path} must be a list of schemas")
        if word.startswith("depend") and not isinstance(said, dict):
            raise Unsupported(f"{word} at {path} must be an object")
        if word == "$ref":
            return self._cross(out, self._referred(said, path), path)
        if word == "allOf":
            for number, one in enumerate(said):
                out = self._cross(out, self.parts(one, f"{here}/{number}"), path)
            return out
        if word in ("anyOf", "oneOf"):
            each = [self.parts(one, f"{here}/{number}") for number, one in enumerate(said)]
            if word == "oneOf":
                each = self._exclusive(out, each, said, path)
            return self._cross(out, _any(each), path)
        if word == "not":
            return self._cross(out, self._not(said, here), path)
        if word == "if":
            yes = self._cross(self.parts(said, here), self.parts(schema.get("then", True), f"{path}/then"), path)
            otherwise = self.parts(schema.get("else", True), f"{path}/else")
            if "then" not in schema and "else" not in schema:
                return out
            return self._cross(out, _any([yes, self._cross(self._not(said, here), otherwise, path)]), path)
        for name, needed in said.items():
            without = Merged((Part(absent=frozenset((name,))),))
            names = [needed] if isinstance(needed, str) else needed
            if isinstance(names, list):
                then = Merged((Part(required=tuple(names)),))
            else:
                then = self.parts(needed, f"{here}/{name}")
            out = self._cross(out, _any([without, then]), path)
        return out

    def _referred(self, ref: Any, path: str) -> Merged:
        schema = self._references.resolve(ref, path)
        if ref in self._open:
            raise Unsupported(f"$ref {ref[:80]!r} at {path} refers to itself")
        self._open.append(ref)
        try:
            merged = self.parts(schema, f"{path}/$ref")
        finally:
            self._open.pop()
        return Merged(merged.parts, merged.followed | {ref})

    def _not(self, schema: Any, path: str) -> Merged:
        parts = negated(schema, path, self._references)
        return _any([self._cross(Merged((one.part,)), self.all_of(one.schemas, path), path) for one in parts])

    def _exclusive(self, out: Merged, each: list[Merged], schemas: list[Any], path: str) -> list[Merged]:
        """The alternatives of a oneOf, without what two of them share."""
        beside = [self._cross(out, one, path) for one in each]
        exclusive = list(each)
        for number, one in enumerate(beside):
            for other, another in enumerate(beside):
                check_deadline(self._deadline, f"comparing the alternatives of oneOf at {path[:80]}")
                if other == number or all(self._disjoint(x, y) for x in one.parts for y in another.parts):
                    continue
                try:
                    away = self._not(schemas[other], f"{path}/oneOf/{other}")
                except Unsupported:
                    raise Unsupported(f"oneOf at {path}: alternatives {number} and {other} may overlap") from None
                exclusive[number] = self._cross(exclusive[number], away, path)
        return exclusive

    def _cross(self, one: Merged, other: Merged, path: str) -> Merged:
        if len(one.parts) * len(other.parts) > 16 * _MOST_PARTS:
            raise TooLarge(f"more than {_MOST_PARTS} alternatives at {path[:80]}")
        parts = [merge(mine, theirs) for mine in one.parts for theirs in other.parts]
        parts = [part for part in parts if part.types and part.values != ()]
        if len(parts) > _MOST_PARTS:
            raise TooLarge(f"more than {_MOST_PARTS} alternatives at {path[:80]}")
        check_deadline(self._deadline, f"merging the schemas at {path[:80]}")
        return Merged(tuple(parts), one.followed | other.followed)


def _any(each: Sequence[Merged]) -> Merged:
    followed = frozenset[str]().union(*(one.followed for one in each))
    return Merged(tuple(dict.fromkeys(part for one in each for part in one.parts)), followed)


def _evaluated(part: Part, schema: Any) -> Part:
    """The part with `unevaluatedProperties`: what no schema merged into it speaks of has this schema."""
    if any(one.additional is not None for one in part.properties):
        return part
    named = {name: True for one in part.properties for name in one.named}
    matching = {pattern: True for one in part.properties for pattern in one.matching}
    new = Properties(named=named, matching=matching, additional=schema)
    return replace(part, properties=(*part.properties, new))
