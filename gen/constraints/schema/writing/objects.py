"""Objects: the listed properties in their order, then others by the patterns that their names match.

There is a state between properties for each number of properties so far that matters: none or some (then a comma
follows), or every number up to a limit, if there is one. If there must be several properties that are not listed, the
first ones have names of different kinds, told apart by the last character, so that none of them is the same as another.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.parts import Part, merge
from gen.constraints.schema.views import is_closed, listed_names, property_schemas, simple
from gen.constraints.schema.writing.needed import ANY_NAME, Listed, Others, Way, ways

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

_MOST_KINDS = 24  # of names, by which patterns they match
_MOST_NAMES = 64  # of those that are written one by one
_LAST_CHARACTERS = {2: 16, 3: 8, 4: 6}  # kinds of names, for so many properties that are not listed and must be there


def write_object(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any object of a part after `state`; returns the state after it, or None if there is no such object."""
    allowed = _names(writer, part, place)
    if allowed is None:
        listed_ones: list[Listed] = []
        others: list[Others] = []
    else:
        listed_ones = [
            (name, schemas)
            for name in listed_names(part)
            if (schemas := property_schemas(part, name, writer.patterns, place.path, closed=writer.closed)) is not None
            and _can_write(writer, name, place)
            and (allowed is ANY_NAME or writer.checker.meets(allowed, name, place.path))
        ]
        others, few_ones = _others(writer, part, allowed, place)
        listed_ones += few_ones
    end = None
    for way in ways(writer, part, listed_ones, others, place):
        if len({name for name, _ in way.listed}.intersection(way.required)) == len(way.required):
            counts = _Counts(part, way, bool(others))
            one = _Object(writer, way, place, counts).write(writer.nfa.after(state) if part.some else state, others)
            if one is not None and part.some:
                end = writer.nfa.state() if end is None else end
                writer.nfa.join(one, end)
            elif one is not None:
                end = one
    return end


class _Counts:
    """The numbers of properties that have states of their own."""

    def __init__(self, part: Part, way: Way, others: bool) -> None:
        self.least, self.limit = part.min_properties, part.max_properties
        if self.least <= len(way.required) + len(way.needed):
            self.least = 0
        if self.limit is not None and not others and self.limit >= len(way.listed):
            self.limit = None
        self.top = max(self.least, 1) if self.limit is None else max(self.limit, 1)

    def after(self, count: int) -> int | None:
        """The count after one more property; None if there may be none."""
        if self.limit is not None and count >= self.limit:
            return None
        return min(count + 1, self.top)


class _Object:
    def __init__(self, writer: "Writer", way: Way, place: "Place", counts: _Counts) -> None:
        self._writer, self._way, self._place, self._counts = writer, way, place, counts
        self._opened, self._between, self._closing = writer.layout.around(place.level)
        self._fields = writer.layout.at(place.level)
        self._brackets = "{}" if self._fields is None else ("", "")

    def write(self, state: int, others: list[Others]) -> int | None:
        writer, nfa, way = self._writer, self._writer.nfa, self._way
        here = {0: writer.text(state, self._brackets[0])}  # the state after this many properties
        keys: dict[int, int] = {}  # where a property's name begins, by the count of properties with it
        last_required = max((place for place, (name, _) in enumerate(way.listed) if name in way.required), default=-1)
        closing: dict[bool, int] = {}  # where an object may end, with no property or with some
        for place, (name, schemas) in enumerate(way.listed):
            if place > last_required and not way.needed:
                self._may_close(here, closing)
            self._separate(here, keys)
            here = {}
            for count, start in keys.items():
                key = self._listed(name, schemas, start)
                end = writer.value(schemas, key, self._place.within(f"properties/{name}"))
                if end is not None:
                    nfa.join(end, here.setdefault(count, nfa.state()))
            if name in way.required and not here:
                writer.because[self._place.path] = f"{self._place.path}/properties/{name}"
            keys = {} if name in way.required else {count: nfa.after(start) for count, start in keys.items()}
        if others:
            self._separate(here, keys)
            if 1 < self._counts.least <= self._counts.top:
                self._write_missing(here, keys, others)
            self._write_others(here, keys, others)
        for needed in way.needed:  # last, so that no other property of the same name comes after it
            self._separate(here, keys)
            here = {}
            for count, start in keys.items():
                for end in self._properties(start, needed):
                    nfa.join(end, here.setdefault(count, nfa.state()))
            keys = {}
        self._may_close(here, closing)
        if not closing:
            return None
        end = nfa.state()
        for some, one in closing.items():
            nfa.join(writer.text(one, (self._closing if some else "") + self._brackets[1]), end)
        return end

    def _listed(self, name: str, schemas: tuple[Any, ...], state: int) -> int:
        """Write a listed name, and what stands before its value."""
        writer, fields = self._writer, self._fields
        if fields is None:
            return writer.text(writer.text(state, writer.layout.dumps(name, 0).decode()), writer.layout.name)
        if fields.raw:
            writer.types(name, schemas, self._place.path)
        return writer.text(state, f"{fields.before}{name}{fields.after}")

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

    def _write_others(self, here: dict[int, int], keys: dict[int, int], others: list[Others]) -> None:
        """Write any number of properties that are not listed, after those that are, as many as must be there.

        Args:
            keys: where the name of the first one begins.
        """
        counts = self._counts
        for count in range(max(counts.least, 1), counts.top + 1):
            ends = self._properties(keys[count], others) if count in keys else []
            if ends and count not in here:
                here[count] = self._writer.nfa.state()
                self._separate({count: here[count]}, keys)
            for end in ends:
                self._writer.nfa.join(end, here[count])

    def _write_missing(self, here: dict[int, int], keys: dict[int, int], others: list[Others]) -> None:
        """Write properties that are not listed until there are enough, each name of another kind. Kinds that came are
        bits of a whole number.
        """
        nfa, least = self._writer.nfa, self._counts.least
        missing = least - min(keys, default=least) + 1
        if missing > 1 and (missing not in _LAST_CHARACTERS or self._way.needed):
            raise Unsupported(f"minProperties at {self._place.path} with {missing} properties that are not listed")
        kinds = _LAST_CHARACTERS.get(missing, 1)
        came: dict[int, int] = {}  # the state after the properties so far, by the kinds of their names
        for count in range(least - missing + 1, least + 1):
            starts = {0: keys[count]} if count in keys and count < least else {}
            for before, state in came.items():
                starts[before] = self._writer.text(state, self._between)
            found: dict[tuple[int, int], list[int]] = {}  # the states after names, by the kinds with them and the place
            for before, start in starts.items():
                left = [kind for kind in range(kinds) if not before >> kind & 1]
                for chosen in [left] if count == least else [[kind] for kind in left]:
                    after = before if count == least else before | 1 << chosen[0]
                    for place, (names, _) in enumerate(others):
                        some = merge(names, Part(types=ANY_NAME.types, patterns=(_of_kinds(chosen, kinds),)))
                        end = self._named(some, nfa.after(start))
                        if end is not None:
                            found.setdefault((0 if count == least else after, place), []).append(end)
            came = {}
            for (after, place), named in found.items():
                key = nfa.state()
                for one in named:
                    nfa.join(one, key)
                end = self._value_of_other(others[place].schemas, key)
                if end is not None:
                    nfa.join(end, came.setdefault(after, nfa.state()))
        if came and least not in here:
            here[least] = nfa.state()
            self._separate({least: here[least]}, keys)
        for end in came.values():
            nfa.join(end, here[least])

    def _properties(self, state: int, others: list[Others]) -> list[int]:
        """Write one property that is not listed; returns the states after it."""
        ends = []
        for names, schemas in others:
            key = self._named(names, state)
            if key is not None and (end := self._value_of_other(schemas, key)) is not None:
                ends.append(end)
        return ends

    def _named(self, names: Part, state: int) -> int | None:
        """Write any of some names, and what stands before the value; None if there is no name."""
        writer, fields, path = self._writer, self._fields, f"{self._place.path}/propertyNames"
        names = merge(names, writer.writable)
        if fields is not None:
            some = Part(types=ANY_NAME.types, patterns=(f"^{fields.names}$",))
            return writer.string(merge(names, some), state, path, (fields.before, fields.after))
        name = writer.string(names, state, path)
        return None if name is None else writer.text(name, writer.layout.name)

    def _value_of_other(self, schemas: tuple[Any, ...], state: int) -> int | None:
        """Write the value of a property that is not listed; None if there is none."""
        place = self._place.within("additionalProperties", "" if schemas else "object")
        return self._writer.value(schemas, state, place)


def _can_write(writer: "Writer", name: str, place: "Place") -> bool:
    """Whether a property's name can be written, as all can in JSON without forbidden strings."""
    fields = writer.layout.at(place.level)
    if writer.layout.holds(name.encode()) and (fields is None or re.fullmatch(fields.names, name)):
        return True
    writer.left_out = f"the property {name!r} at {place.path}, whose name cannot be written"
    return False


def _of_kinds(chosen: Collection[int], kinds: int) -> str:
    """The pattern of names whose last character is of one of some kinds; the first kind has all but ASCII, and ""."""
    named = "".join(f"\\x{code:02x}" for code in range(32, 127) if (code % kinds in chosen) != (0 in chosen))
    return f"^$|[^{named}]$" if 0 in chosen else f"[{named}]$"


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


def _others(writer: "Writer", part: Part, allowed: Part, place: "Place") -> tuple[list[Others], list[Listed]]:
    """The names that are not listed, grouped by the patterns that they match; few names become listed ones, so that
    none comes twice."""
    closed = writer.closed and is_closed(part)
    rest = merge(allowed, Part(types=ANY_NAME.types, excluded=frozenset({*listed_names(part), *part.absent})))
    out, few_ones = [], []
    for names, matching in _by_patterns(writer, part, rest, place):
        if not matching and closed:
            continue
        schemas: list[Any] = []
        for one in part.properties:
            mine = [one.matching[pattern] for pattern in matching if pattern in one.matching]
            schemas += mine or ([] if one.additional is None else [one.additional])
        if simple(schemas) == (False,):
            continue
        known = writer.few_strings(names, _MOST_NAMES, f"{place.path}/patternProperties")
        if known is None:
            out.append(Others(names, simple(schemas)))
        else:
            few_ones += [(name, simple(schemas)) for name in known]
    return out, few_ones


def _by_patterns(writer: "Writer", part: Part, names: Part, place: "Place") -> list[tuple[Part, tuple[str, ...]]]:
    """The names, grouped by the patterns of properties that they match. Raises Unsupported for too many groups."""
    out: list[tuple[Part, tuple[str, ...]]] = [(names, ())]
    for pattern in dict.fromkeys(pattern for one in part.properties for pattern in one.matching):
        yes, no = Part(types=ANY_NAME.types, patterns=(pattern,)), Part(types=ANY_NAME.types, unmatched=(pattern,))
        both = [(merge(one, yes), (*matching, pattern)) for one, matching in out]
        both = [(one, matching) for one, matching in both if writer.texts(one, place.path) is not None]
        out = [(merge(one, no), matching) for one, matching in out] + both
        if len(out) > _MOST_KINDS:
            raise Unsupported(f"patternProperties at {place.path}: names of more than {_MOST_KINDS} kinds")
    return out
