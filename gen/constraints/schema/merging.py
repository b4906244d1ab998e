"""Schemas into parts: references, allOf, anyOf, oneOf, not, if and dependencies, merged before any text is made."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.limits import Budget, TooLarge, Unsupported
from gen.constraints.schema.keywords import own_part
from gen.constraints.schema.negation import negated
from gen.constraints.schema.parts import ANYTHING, EVERY_TYPE, TYPES, Part, Properties, merge
from gen.constraints.schema.references import References

if TYPE_CHECKING:
    from gen.constraints.schema.values import Disjoint

_MOST_PARTS = 2048
_WORK = 50  # of merging two parts
_OBJECT = frozenset(("object",))
_SAME_VALUE = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependencies", "dependentSchemas", "dependentRequired")

Parts = tuple[Part, ...]


class Merger:
    """Makes the parts of schemas, once for each schema.

    Args:
        disjoint: tells whether no value that is written for a part meets another one.

    Attributes:
        references: of the root.
    """

    def __init__(self, root: Any, budget: Budget, disjoint: "Disjoint") -> None:
        self.references, self._budget, self._disjoint = References(root), budget, disjoint
        self._known: dict[int, tuple[Any, Parts]] = {}
        self._open: list[int] = []
        self._met: dict[frozenset[int], tuple[list[Any], bool]] = {}
        self._looking = False

    def all_of(self, schemas: Sequence[Any], path: str) -> Parts:
        """The parts of values that meet all of the schemas."""
        out: Parts = (ANYTHING,)
        for schema in schemas:
            out = self._cross(out, self.parts(schema, path), path)
        return out

    def parts(self, schema: Any, path: str) -> Parts:
        """The parts of a schema, overlapping or not. Raises Unsupported, TooLarge."""
        if schema is True or schema == {}:
            return (ANYTHING,)
        if schema is False:
            return ()
        if not isinstance(schema, dict):
            raise Unsupported(f"the schema at {path} must be an object, true or false")
        known = self._known.get(id(schema))
        if known is None:
            self._budget.spend(_WORK, f"merging the schemas at {path[:80]}")
            known = (schema, self._merge(schema, path))  # the schema is kept, so that no other one gets its id
            self._known[id(schema)] = known
        return known[1]

    def _merge(self, schema: dict[str, Any], path: str) -> Parts:
        if "$ref" in schema and self.references.alone:
            # up to draft 7 keywords beside a $ref are ignored; gen reads properties, which closed objects may then have
            named = schema.get("properties", {})
            own = Part(properties=(Properties(named=named, matching={}),)) if isinstance(named, dict) else ANYTHING
            return self._cross((own,), self._referred(schema, path), path)
        out: Parts = (own_part(self.references.own(schema), path),)
        for word in _SAME_VALUE:
            if word in schema:
                out = self._keyword(out, word, schema[word], schema, path)
        return out

    def _keyword(self, out: Parts, word: str, said: Any, schema: dict[str, Any], path: str) -> Parts:
        """The parts that were merged so far, with one more keyword."""
        here = f"{path}/{word}"
        if word.endswith("Of") and not isinstance(said, list):
            raise Unsupported(f"{word} at {path} must be a list of schemas")
        if word.startswith("depend") and not isinstance(said, dict):
            raise Unsupported(f"{word} at {path} must be an object")
        if word == "$ref":
            return self._cross(out, self._referred(schema, path), path)
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
            without = (Part(absent=frozenset((name,))),)
            names = [needed] if isinstance(needed, str) else needed
            if isinstance(names, list) and not all(isinstance(one, str) for one in names):
                raise Unsupported(f"{word} at {path} must be an object of schemas or lists of names")
            has: Parts = (Part(types=_OBJECT, required=(name,)),)
            if isinstance(names, list):
                then: Parts = (Part(required=tuple(names)),)
            else:
                then = self.parts(needed, f"{here}/{name}")
            then = self._cross(has, then, path)
            out = self._cross(out, _any([without, then]), path)
        return out

    def _referred(self, schema: dict[str, Any], path: str) -> Parts:
        target = self.references.resolve(schema, path)
        if id(target) in self._open:
            raise Unsupported(f"$ref {schema['$ref'][:80]!r} at {path} refers to itself")
        self._open.append(id(target))
        try:
            return self.parts(target, f"{path}/$ref")
        finally:
            self._open.pop()

    def _not(self, schema: Any, path: str) -> Parts:
        ways = negated(schema, path, self.references)
        return _any([self._cross((one.part,), self.all_of(one.schemas, path), path) for one in ways])

    def _exclusive(self, out: Parts, each: list[Parts], schemas: list[Any], path: str) -> list[Parts]:
        """The alternatives of a oneOf, without values that two of them share."""
        beside = [self._cross(out, one, path) for one in each]
        exclusive = list(each)
        for number in range(len(each)):
            one = beside[number]
            for other, another in enumerate(beside):
                self._budget.spend(
                    _WORK * len(one) * len(another), f"comparing the alternatives of oneOf at {path[:80]}"
                )
                if other == number:
                    continue
                whole = self._apart(one, another)
                apart = frozenset(name for name in TYPES if whole or self._apart(one, another, frozenset((name,))))
                if "object" in apart:
                    exclusive[number] = tuple(self._closed(part, out, another) for part in exclusive[number])
                if whole:
                    continue
                try:
                    away = self._not(schemas[other], f"{path}/oneOf/{other}")
                except Unsupported:
                    raise Unsupported(f"oneOf at {path}: alternatives {number} and {other} may overlap") from None
                away = (Part(types=apart), *(replace(part, types=part.types - apart) for part in away))
                exclusive[number] = self._cross(exclusive[number], away, path)
                one = self._cross(out, exclusive[number], path)  # what does not meet the other may have more properties
        return exclusive

    def _closed(self, part: Part, out: Parts, another: Parts) -> Part:
        """A part that stays apart from others beside whatever further schemas list."""
        lacking = [self._disjoint.lacking(merge(beside, part), other) for beside in out for other in another]
        names = frozenset[str]().union(*lacking)
        return merge(part, Part(absent=names)) if names else part

    def _apart(self, one: Parts, another: Parts, types: frozenset[str] = EVERY_TYPE) -> bool:
        """Whether it is proven that no value of these types meets a part of both."""
        mine = [replace(x, types=x.types & types) for x in one] if types < EVERY_TYPE else one
        return all(self._disjoint(x, y) for x in mine for y in another)

    def _cross(self, one: Parts, other: Parts, path: str) -> Parts:
        self._budget.spend(_WORK * (1 + len(one) * len(other)), f"merging the schemas at {path[:80]}")
        merged = [merge(mine, theirs) for mine in one for theirs in other]
        out = tuple(part for part in merged if part.types and part.values != () and self._possible(part))
        if len(out) > _MOST_PARTS:
            raise TooLarge(f"more than {_MOST_PARTS} alternatives at {path[:80]}")
        return out

    def _possible(self, part: Part) -> bool:
        """False if the part has only objects, and these cannot have a property that they must have."""
        if part.types != _OBJECT or part.values is not None or self._looking:
            return True
        if part.absent.intersection(part.required):
            return False
        for name in part.required:
            schemas = [one.named[name] for one in part.properties if name in one.named]
            if len(schemas) > 1 and not self._meet(schemas):
                return False
        return True

    def _meet(self, schemas: list[Any]) -> bool:
        """Whether a value may meet all of the schemas; True if this cannot be told."""
        key = frozenset(map(id, schemas))
        if key not in self._met:
            self._looking = True
            try:
                self._met[key] = (schemas, bool(self.all_of(schemas, "#")))
            except (Unsupported, TooLarge):
                self._met[key] = (schemas, True)
            finally:
                self._looking = False
        return self._met[key][1]


def _any(each: Sequence[Parts]) -> Parts:
    return tuple(dict.fromkeys(part for parts in each for part in parts))
