"""Objects: the listed properties in their order, then others by the patterns that their names match.

The states between properties are told apart by how many there were so far, as far as this matters: whether there was
one (then a comma follows), or how many if there is a limit. The count stops at the largest that matters.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.parts import Part, Properties, Some, merge
from gen.constraints.schema.values import meets
from gen.constraints.schema.views import is_closed, listed_names, property_schemas, simple

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

_MOST_PATTERNS = 3
_MOST_NAMES = 64  # of those that are written one by one


class _Others(NamedTuple):
    """Names that are not listed, as strings of a part, and the schemas that their values must meet."""

    names: Part
    schemas: tuple[Any, ...]


def write_object(writer: "Writer", part: Part, state: int, place: "Place", must: tuple[Some, ...] = ()) -> int | None:
    """Write any object of a part after `state`; returns the state after it, or None if there is no such object.

    Args:
        must: what a property that is not listed must be, the first of these.
    """
    if part.absent.intersection(part.required):
        return None
    if part.some:
        return _with_some(writer, part, state, place, must)
    if len(must) > 1:
        raise Unsupported(f"not with two properties that are not listed at {place.path}")
    allowed = _names(writer, part, place)
    if allowed is None:
        listed_ones: list[tuple[str, tuple[Any, ...]]] = []
        others: list[_Others] = []
    else:
        listed_ones = [
            (name, schemas)
            for name in listed_names(part)
            if (schemas := property_schemas(part, name, writer.patterns, place.path, closed=writer.closed)) is not None
            and (allowed is ANY_NAME or meets(allowed, name, writer.parts_of, writer.patterns, place.path))
        ]
        others, few_ones = _others(writer, part, allowed, place)
        listed_ones += few_ones
    if len({name for name, _ in listed_ones}.intersection(part.required)) < len(part.required):
        return None
    counts = _Counts(part, len(listed_ones), bool(others), place)
    needed = [one for asked in must for one in _needed(writer, asked, others, place)]
    return _Object(writer, part, place, counts).write(state, listed_ones, others, needed if must else None)


def _with_some(writer: "Writer", part: Part, state: int, place: "Place", must: tuple[Some, ...]) -> int | None:
    """Objects of which some property is as the part asks: one of those that are listed, or another one."""
    asked, part = part.some[0], replace(part, some=part.some[1:])
    names = writer.parts_of((asked.names,), place.path)
    ends = []
    for name in listed_names(part):
        if any(meets(one, name, writer.parts_of, writer.patterns, place.path) for one in names):
            mine = Properties(named={name: asked.value}, matching={}, lists=False, holds=False)
            more = merge(part, Part(required=(name,), properties=(mine,)))
            ends.append(write_object(writer, more, writer.nfa.after(state), place, must))
    ends.append(write_object(writer, part, writer.nfa.after(state), place, (*must, asked)))
    found = [one for one in ends if one is not None]
    if not found:
        return None
    end = writer.nfa.state()
    for one in found:
        writer.nfa.join(one, end)
    return end


def _needed(writer: "Writer", asked: Some, others: list[_Others], place: "Place") -> list[_Others]:
    """Those properties that are not listed which are as some property must be."""
    out = []
    for one in writer.parts_of((asked.names,), place.path):
        if "string" in one.types:
            if one.refusal("string"):
                raise Unsupported(f"{one.refusal('string')}")
            named = replace(one, types=ANY_NAME.types)
            out += [_Others(merge(other.names, named), simple([*other.schemas, asked.value])) for other in others]
    return [one for one in out if one.names.values != () and one.schemas != (False,)]


class _Counts:
    """Which numbers of properties are told apart."""

    def __init__(self, part: Part, listed_ones: int, others: bool, place: "Place") -> None:
        self.least, self.limit = part.min_properties, part.max_properties
        if self.least <= len(part.required):
            self.least = 0
        if self.limit is not None and not others and self.limit >= listed_ones:
            self.limit = None
        if others and self.least > 1:  # two properties that are not listed may have one name
            raise Unsupported(f"minProperties at {place.path} with properties that are not listed")
        self.top = max(self.least, 1) if self.limit is None else max(self.limit, 1)

    def after(self, count: int) -> int | None:
        """The count after one more property; None if there may be none."""
        if self.limit is not None and count >= self.limit:
            return None
        return min(count + 1, self.top)


class _Object:
    def __init__(self, writer: "Writer", part: Part, place: "Place", counts: _Counts) -> None:
        self._writer, self._part, self._place, self._counts = writer, part, place, counts
        self._opened, self._between, self._closing = writer.layout.around(place.level)

    def write(
        self,
        state: int,
        listed_ones: list[tuple[str, tuple[Any, ...]]],
        others: list[_Others],
        needed: list[_Others] | None,
    ) -> int | None:
        writer, nfa, required = self._writer, self._writer.nfa, self._part.required
        here = {0: writer.text(state, "{")}  # the state after so many properties
        keys: dict[int, int] = {}  # where the name of one more begins, that has so many with it
        last_required = max((place for place, (name, _) in enumerate(listed_ones) if name in required), default=-1)
        if needed is not None:
            last_required = len(listed_ones)
        closing: dict[bool, int] = {}  # where an object may end, with no property or with some
        for place, (name, schemas) in enumerate(listed_ones):
            if place > last_required:
                self._may_close(here, closing)
            self._separate(here, keys)
            here = {}
            for count, start in keys.items():
                key = writer.text(writer.text(start, writer.layout.dumps(name, 0).decode()), writer.layout.name)
                end = writer.value(schemas, key, self._place.within(f"properties/{name}", self._place.depth))
                if end is not None:
                    nfa.join(end, here.setdefault(count, nfa.state()))
            keys = {} if name in required else {count: nfa.after(start) for count, start in keys.items()}
        if needed is not None:
            self._separate(here, keys)
            here = {}
            for count, start in keys.items():
                for end in self._properties(start, needed):
                    nfa.join(end, here.setdefault(count, nfa.state()))
            keys = {}
        if others:
            self._write_others(here, keys, others)
        self._may_close(here, closing)
        if not closing:
            return None
        end = nfa.state()
        for some, one in closing.items():
            nfa.join(writer.text(one, f"{self._closing}}}" if some else "}"), end)
        return end

    def _may_close(self, here: dict[int, int], closing: dict[bool, int]) -> None:
        """Let objects end at states after enough properties."""
        for count, one in here.items():
            if count >= self._counts.least:
                self._writer.nfa.join(one, closing.setdefault(count > 0, self._writer.nfa.state()))

    def _separate(self, here: dict[int, int], keys: dict[int, int]) -> None:
        """Write what stands before one more property."""
        for count, one in here.items():
            after = self._counts.after(count)
            if after is not None:
                separated = self._writer.text(one, self._between if count else self._opened)
                self._writer.nfa.join(separated, keys.setdefault(after, self._writer.nfa.state()))

    def _write_others(self, here: dict[int, int], keys: dict[int, int], others: list[_Others]) -> None:
        """Any number of properties that are not listed, at the states after those that are."""
        nfa, limit = self._writer.nfa, self._counts.limit
        if limit is None:  # any number more; one alone is counted
            here.setdefault(1, nfa.state())
        for count in range(limit or 1):
            self._separate(here if limit is None else {count: here[count]} if count in here else {}, keys)
            if count + 1 in keys:
                for end in self._properties(keys[count + 1], others):
                    nfa.join(end, here.setdefault(count + 1, nfa.state()))

    def _properties(self, state: int, others: list[_Others]) -> list[int]:
        """One property that is not listed; the states after it."""
        writer = self._writer
        ends = []
        for names, schemas in others:
            name = writer.string(names, state, f"{self._place.path}/propertyNames")
            if name is None:
                continue
            key = writer.text(name, writer.layout.name)
            depth = self._place.depth if schemas else self._place.depth - 1
            end = writer.value(schemas, key, self._place.within("additionalProperties", depth))
            if end is not None:
                ends.append(end)
        return ends


ANY_NAME = Part(types=frozenset(("string",)))


def _names(writer: "Writer", part: Part, place: "Place") -> Part | None:
    """What `propertyNames` asks of all names; None if it allows none."""
    allowed = ANY_NAME
    for schema in part.names:
        path = f"{place.path}/propertyNames"
        parts = [one for one in writer.parts_of((schema,), path) if "string" in one.types]
        if len(parts) > 1:
            raise Unsupported(f"propertyNames at {place.path} with alternatives")
        if not parts:
            return None
        [one] = parts
        if one.refusal("string"):
            raise Unsupported(f"propertyNames at {place.path}: {one.refusal('string')}")
        allowed = merge(allowed, replace(one, types=ANY_NAME.types))
    return allowed


def _others(
    writer: "Writer", part: Part, allowed: Part, place: "Place"
) -> tuple[list[_Others], list[tuple[str, tuple[Any, ...]]]]:
    """The names that are not listed, by which patterns they match; and one by one where they are few, so that none
    comes twice."""
    patterns = list(dict.fromkeys(pattern for one in part.properties for pattern in one.matching))
    if len(patterns) > _MOST_PATTERNS:
        raise Unsupported(f"patternProperties at {place.path}: more than {_MOST_PATTERNS} patterns")
    closed = writer.closed and is_closed(part)
    if closed and not patterns:
        return [], []
    rest = merge(allowed, Part(types=ANY_NAME.types, excluded=frozenset({*listed_names(part), *part.absent})))
    out, few_ones = [], []
    for bits in range(1 << len(patterns)):
        matching = [pattern for number, pattern in enumerate(patterns) if bits >> number & 1]
        if not matching and closed:
            continue
        schemas: list[Any] = []
        for one in part.properties:
            mine = [one.matching[pattern] for pattern in matching if pattern in one.matching]
            schemas += mine or ([] if one.additional is None else [one.additional])
        if simple(schemas) == (False,):
            continue
        unmatched = tuple(pattern for pattern in patterns if pattern not in matching)
        names = merge(rest, Part(types=ANY_NAME.types, patterns=tuple(matching), unmatched=unmatched))
        known = writer.few_strings(names, _MOST_NAMES, f"{place.path}/patternProperties")
        if known is None:
            out.append(_Others(names, simple(schemas)))
        else:
            few_ones += [(name, simple(schemas)) for name in known]
    return out, few_ones
