"""Whether a value that a schema lists, or a property's value, meets a part: for enum, const, oneOf and names."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.automata.texts import holds
from gen.constraints.schema.parts import Contains, Part, identity, kind
from gen.constraints.schema.views import Patterns, item_schemas, property_schemas
from gen.constraints.schema.writing.formats import format_texts

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
