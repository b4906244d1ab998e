"""Proves, for oneOf, that no value written for one part meets another part.

Objects written for the first part may be closed, but the second part is read as the specification reads it: open, and
with formats that check nothing. Without a proof, the answer is no.
"""

from gen.constraints.automata.limits import Unsupported
from gen.constraints.automata.texts import both
from gen.constraints.schema.parts import Part
from gen.constraints.schema.values import Checker
from gen.constraints.schema.views import item_schemas, property_schemas, string_texts

_DEEP = 3  # levels of properties
_FIRST_ITEMS = 4


class Disjoint:
    """Proves that parts have no value in common."""

    def __init__(self, checker: Checker, closed: bool) -> None:
        self._checker = checker
        self._closed = closed
        self._parts_of = checker.parts_of
        self._patterns = checker.patterns

    def __call__(self, written: Part, other: Part, depth: int = _DEEP) -> bool:
        """Whether no value written for the first part meets the other one."""
        try:
            return self._apart(written, other, depth)
        except Unsupported:
            return False

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
        if name in ("integer", "number"):
            lows = [one.low for one in (written, other) if one.low is not None]
            highs = [one.high for one in (written, other) if one.high is not None]
            return any(
                low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])) for low in lows for high in highs
            )
        if name == "string":
            if _lengths_apart(written.min_length, written.max_length, other.min_length, other.max_length):
                return True
            texts = string_texts(written, self._patterns, "oneOf")
            perhaps = string_texts(other, self._patterns, "oneOf", certain=False)
            return both(texts, perhaps, self._patterns.budget) is None
        if name == "array":
            if _lengths_apart(written.min_items, written.max_items, other.min_items, other.max_items):
                return True
            surely = min(max(written.min_items, other.min_items), _FIRST_ITEMS)
            return any(
                self._none(item_schemas(written, number), item_schemas(other, number), depth)
                for number in range(surely)
            )
        return name == "object" and self._objects(written, other, depth)

    def _objects(self, written: Part, other: Part, depth: int) -> bool:
        if other.max_properties is not None and other.max_properties < len(written.required):
            return True
        for name in dict.fromkeys((*written.required, *other.required)):
            mine = property_schemas(written, name, self._patterns, "oneOf", closed=self._closed)
            theirs = property_schemas(other, name, self._patterns, "oneOf", closed=False)
            if mine is None or theirs is None or self._none(mine, theirs, depth):
                return True
        return False

    def _none(self, mine: tuple[object, ...], theirs: tuple[object, ...], depth: int) -> bool:
        """Whether no value of the schemas `mine` meets `theirs`."""
        if depth <= 0:
            return False
        ours, others = self._parts_of(mine, "oneOf"), self._parts_of(theirs, "oneOf")
        return all(self(one, other, depth - 1) for one in ours for other in others)


def _lengths_apart(low: int, high: int | None, low2: int, high2: int | None) -> bool:
    return (high is not None and low2 > high) or (high2 is not None and low > high2)
