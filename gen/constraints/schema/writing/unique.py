"""Arrays whose items are all different: of few values, or of items whose places make them different.

A state is the set of values that came so far. If there are too many sets, the items come in the schema's order.
Example: arrays of at most two of ["a", "b", "c"] have the states {}, {a}, {b}, {c}, {a, b}, {a, c}, {b, c}.
"""

from collections.abc import Sequence
from math import ceil, comb, floor
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.schema.parts import TYPES, Part, identity
from gen.constraints.schema.views import item_schemas

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

_MOST_SETS = 1024
_MOST_VALUES = 200
_MOST_PLACES = 8


def always_unique(writer: "Writer", part: Part, place: "Place") -> bool:
    """Whether no two items of an array can be equal, because the schemas of their places are disjoint."""
    each: list[Sequence[Part]] = []
    while part.max_items is None or len(each) < part.max_items:
        here = writer.parts_of(item_schemas(part, len(each)), place.path)
        if not here:  # longer arrays do not exist
            break
        if len(each) == _MOST_PLACES:
            return False
        each.append(here)
    return all(
        writer.disjoint(one, other)
        for number, here in enumerate(each)
        for later in each[number + 1 :]
        for one in here
        for other in later
    )


def write_unique(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any array of different values after `state`; returns the state after it, None if there is no such array.

    Raises:
        Unsupported: the values are not few, or differ from place to place.
    """
    values = None if part.contains or any(one.first for one in part.items) else _values(writer, part, place)
    if values is None:
        raise Unsupported(f"uniqueItems at {place.path}, of items that are not few")
    most = len(values) if part.max_items is None else min(part.max_items, len(values))
    if part.min_items > most:
        return None
    ordered = sum(comb(len(values), count) for count in range(most + 1)) > _MOST_SETS
    nfa, inside = writer.nfa, place.within("items", place.depth)
    opened, between, closing = writer.layout.around(place.level)
    end = nfa.state()
    start = writer.text(state, "[")
    if part.min_items == 0:
        nfa.join(writer.text(start, "]"), end)
    here = {
        0: start
    }  # the state after each set of values, by the set's bits; if ordered, by the number of its last value
    for count in range(most):
        after: dict[int, int] = {}
        for came, one in here.items():
            before = writer.text(one, between if count else opened)
            for number, value in enumerate(values):
                if (number < came) if ordered else (came >> number & 1):
                    continue
                key = number + 1 if ordered else came | 1 << number
                nfa.join(writer.listed([value], before, inside), after.setdefault(key, nfa.state()))
        here = after
        if count + 1 >= part.min_items:
            for one in here.values():
                nfa.join(writer.text(one, f"{closing}]"), end)
    return end


def _values(writer: "Writer", part: Part, place: "Place") -> list[Any] | None:
    """All values that an item may have, each once; None if they are not few."""
    found: dict[Any, Any] = {}
    for one in writer.parts_of(item_schemas(part, 0), place.path):
        values = _of_part(writer, one, place.path)
        if values is None:
            return None
        for value in values:
            found.setdefault(identity(value), value)
    if len(found) > _MOST_VALUES:
        raise TooLarge(f"uniqueItems at {place.path} of {len(found)} values")
    return list(found.values())


def _of_part(writer: "Writer", part: Part, path: str) -> list[Any] | None:
    if part.values is not None:
        return writer.checker.allowed(part, path)
    out: list[Any] = []
    for name in TYPES:
        if name not in part.types or (name == "integer" and "number" in part.types):
            continue
        values: Sequence[Any] | None = None
        if name == "null":
            values = [None]
        elif name == "boolean":
            values = [False, True]
        elif name == "integer" and part.low is not None and part.high is not None:
            values = range(ceil(part.low[0]), floor(part.high[0]) + 1)
        elif name == "string":
            values = writer.few_strings(part, _MOST_VALUES, path)
        if values is None or len(values) > 10 * _MOST_VALUES:
            return None
        out += [one for one in values if writer.checker.meets(part, one, path)]
    return out
