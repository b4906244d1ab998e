"""Whether a value that a schema lists, or a property's value, meets a part, for enum, const, oneOf and names; and
whether two parts are proven to have no value in common, for oneOf.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.automata.texts import both, holds
from gen.constraints.schema.parts import Contains, Part, identity, kind, merge
from gen.constraints.schema.views import Patterns, item_schemas, property_schemas, string_texts
from gen.constraints.schema.writing.formats import format_texts

_DEEP = 3  # levels of properties that a proof looks at
_FIRST_ITEMS = 4

PartsOf = Callable[[Sequence[Any], str], Sequence[Part]]
"""Gives the parts of values that meet all of the schemas, which stand at a path."""


class Checker:
    """Tells whether values meet parts, as the specification reads them."""

    def __init__(self, parts_of: PartsOf, patterns: Patterns) -> None:
        self.parts_of = parts_of
        self.patterns = patterns

    def allowed(self, part: Part, path: str) -> list[Any]:
        """The values that the part lists and that meet the rest of it."""
        return [value for value in part.values or () if self.meets(part, value, path, listed=True)]

    def meets(self, part: Part, value: Any, path: str, *, listed: bool = False, certain: bool = True) -> bool:
        """Whether a value meets a part in every reading, or (not `certain`) in any, where formats check nothing.

        Args:
            listed: the value is known to be one that the part lists.
        Raises:
            Unsupported: the part has keywords about this type that gen does not support.
        """
        name = kind(value)
        if name not in part.types:
            return False
        if not listed and part.values is not None and identity(value) not in map(identity, part.values):
            return False
        if refusal := part.refusal(name):
            raise Unsupported(refusal)
        if name in ("integer", "number"):
            return _number(part, Fraction(str(value)))
        if name == "string":
            return self._string(part, value, path, certain)
        if name == "array":
            return self._array(part, value, path, certain)
        return name != "object" or self._object(part, value, path, certain)

    def _valid(self, schemas: Sequence[Any], value: Any, path: str, certain: bool) -> bool:
        """Whether a value meets all of the schemas."""
        return any(self.meets(one, value, path, certain=certain) for one in self.parts_of(schemas, path))

    def _array(self, part: Part, value: Any, path: str, certain: bool) -> bool:
        if not part.min_items <= len(value) <= _top(part.max_items, value):
            return False
        if part.unique and len(set(map(identity, value))) < len(value):
            return False
        if not all(self._contains(one, value, path, certain) for one in part.contains):
            return False
        return all(self._valid(item_schemas(part, number), one, path, certain) for number, one in enumerate(value))

    def _object(self, part: Part, value: Any, path: str, certain: bool) -> bool:
        if not part.min_properties <= len(value) <= _top(part.max_properties, value):
            return False
        if not all(one in value for one in part.required):
            return False
        for key, one in value.items():
            schemas = property_schemas(part, key, self.patterns, path, closed=False)
            if schemas is None or not self._valid(schemas, one, path, certain):
                return False
            if not all(self._valid((names,), key, path, certain) for names in part.names):
                return False
        return all(
            any(
                self._valid((one.names,), key, path, certain) and self._valid((one.value,), said, path, certain)
                for key, said in value.items()
            )
            for one in part.some
        )

    def _contains(self, asked: Contains, items: Sequence[Any], path: str, certain: bool) -> bool:
        """Whether as many items as asked meet a schema, in every reading or in any."""
        surely, perhaps = (
            sum(self._valid((asked.schema,), one, path, sure) for one in items) for sure in (True, False)
        )
        fewest, most = (surely, perhaps) if certain else (perhaps, surely)
        return fewest >= asked.least and (asked.most is None or most <= asked.most)

    def _string(self, part: Part, value: str, path: str, certain: bool) -> bool:
        texts = self.patterns.texts
        if not part.min_length <= len(value) <= _top(part.max_length, value) or value in part.excluded:
            return False
        if not all(holds(texts(one, path, certain=certain), value) for one in part.patterns):
            return False
        if certain and not all(holds(format_texts(name), value) for name in part.formats):
            return False
        return not any(holds(texts(one, path, certain=not certain), value) for one in part.unmatched)


def _top(limit: int | None, value: Any) -> int:
    return len(value) if limit is None else limit


def _number(part: Part, value: Fraction) -> bool:
    if part.low is not None and (value < part.low[0] or (value == part.low[0] and part.low[1])):
        return False
    if part.high is not None and (value > part.high[0] or (value == part.high[0] and part.high[1])):
        return False
    if any((value / one).denominator == 1 for one in part.no_multiples):
        return False
    return all(one != 0 and (value / one).denominator == 1 for one in part.multiples)


class Disjoint:
    """Proves that no value written for one part meets another part.

    Objects written for the first part may be closed, but the second part is read as the specification reads it: open,
    and with formats that check nothing. So is what is in the first part's properties and items, since further schemas
    may list more there. Without a proof, the answer is no.
    """

    def __init__(self, checker: Checker, closed: bool) -> None:
        self._checker = checker
        self._closed = closed
        self._open: Disjoint = Disjoint(checker, False) if closed else self
        self._parts_of = checker.parts_of
        self._patterns = checker.patterns

    def __call__(self, written: Part, other: Part, depth: int = _DEEP) -> bool:
        """Whether no value written for the first part meets the other one."""
        try:
            return self._apart(written, other, depth)
        except Unsupported:
            return False

    def lacking(self, written: Part, other: Part) -> frozenset[str]:
        """The properties without which objects of the first part stay apart from the other one where a further schema
        lists them; none if they are apart in the open reading, too.
        """
        names = frozenset(
            name
            for name in other.required
            if self._property(written, name, self._closed) is None and self._property(written, name, False) is not None
        )
        return names if names and not self._open(written, other) else frozenset()

    def _property(self, part: Part, name: str, closed: bool) -> tuple[object, ...] | None:
        return property_schemas(part, name, self._patterns, "oneOf", closed=closed)

    def _apart(self, written: Part, other: Part, depth: int) -> bool:
        if not written.types & other.types:
            return True
        for values, against in ((written, other), (other, written)):
            listed = values.values
            if listed is not None and not any(
                self._meets(values, value, True) and self._meets(against, value) for value in listed
            ):
                return True
        if written.values is not None or other.values is not None:
            return False
        shared = written.types & other.types
        return all(self._type(name, written, other, depth) for name in shared)

    def _meets(self, part: Part, value: object, listed: bool = False) -> bool:
        return self._checker.meets(part, value, "oneOf", listed=listed, certain=False)

    def _type(self, name: str, written: Part, other: Part, depth: int) -> bool:
        joint = merge(written, other)
        if name in ("integer", "number"):
            low, high = joint.low, joint.high
            if low is None or high is None:
                return False
            return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))
        if name == "string":
            if joint.max_length is not None and joint.min_length > joint.max_length:
                return True
            texts = string_texts(written, self._patterns, "oneOf")
            perhaps = string_texts(other, self._patterns, "oneOf", certain=False)
            return both(texts, perhaps, self._patterns.budget) is None
        if name == "array":
            if joint.max_items is not None and joint.min_items > joint.max_items:
                return True
            surely = range(min(joint.min_items, _FIRST_ITEMS))
            return any(self._none(item_schemas(written, place), item_schemas(other, place), depth) for place in surely)
        return name == "object" and self._objects(written, other, depth)

    def _objects(self, written: Part, other: Part, depth: int) -> bool:
        if other.max_properties is not None and other.max_properties < len(written.required):
            return True
        for name in merge(written, other).required:
            mine, theirs = self._property(written, name, self._closed), self._property(other, name, False)
            if mine is None or theirs is None or self._none(mine, theirs, depth):
                return True
        return False

    def _none(self, mine: tuple[object, ...], theirs: tuple[object, ...], depth: int) -> bool:
        """Whether no value of the schemas `mine` meets `theirs`."""
        if depth <= 0:
            return False
        ours, others = self._parts_of(mine, "oneOf"), self._parts_of(theirs, "oneOf")
        return all(self._open(one, other, depth - 1) for one in ours for other in others)
