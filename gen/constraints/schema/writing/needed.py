"""Objects in which some property must have a name and a value of some kind: the ways to have such properties.

Example: an object lists "a" and may have other properties; some name must contain "x", and some name "y". It needs one
other name with both letters, or one with "x" only and one with "y" only: names of different kinds are never equal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.parts import Part, Some, merge
from gen.constraints.schema.views import simple

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer

_MOST_WAYS = 256
_MOST_ASKED = 4  # of properties that are not listed

ANY_NAME = Part(types=frozenset(("string",)))

Listed = tuple[str, tuple[Any, ...]]
"""The name of a property, and the schemas that its value must meet."""


class Others(NamedTuple):
    """Names that are not listed, as strings of a part, and the schemas that their values must meet."""

    names: Part
    schemas: tuple[Any, ...]


class Way(NamedTuple):
    """Properties of an object: those that are listed, which of them are required, and what others it needs: one of each
    list in `needed`, no two with the same name."""

    listed: Sequence[Listed]
    required: frozenset[str]
    needed: tuple[list[Others], ...] = ()


def ways(
    writer: "Writer", part: Part, listed_ones: Sequence[Listed], others: list[Others], place: "Place"
) -> Iterator[Way]:
    """The ways to have the properties that `part.some` asks for. Raises Unsupported for more than a few."""
    required = frozenset(part.required)
    names = {id(one): writer.parts_of((one.names,), place.path) for one in part.some}

    def named(asked: Some) -> list[str | None]:
        return [
            name
            for name, _ in listed_ones
            if any(writer.checker.meets(one, name, place.path) for one in names[id(asked)])
        ]

    open_ones = [(one, named(one)) for one in part.some]
    open_ones = [(one, by) for one, by in open_ones if not _says_nothing(one) or required.isdisjoint(by)]
    choices = [[*by, None] if others else by for _, by in open_ones]
    found = set()
    for number, chosen in enumerate(product(*choices)):
        if number >= _MOST_WAYS:
            raise Unsupported(f"not at {place.path} with more than {_MOST_WAYS} ways not to meet it")
        asked = [(name, one) for name, (one, _) in zip(chosen, open_ones, strict=True)]
        now = required.union(name for name in chosen if name is not None)
        key = (now, frozenset((name, id(one)) for name, one in asked if name is None or not _says_nothing(one)))
        if key in found:
            continue
        found.add(key)
        listed = [
            (name, simple([*schemas, *(one.value for by, one in asked if by == name)])) for name, schemas in listed_ones
        ]
        for needed in _covers(writer, [one for name, one in asked if name is None], others, place):
            yield Way(listed, now, needed)


def _covers(
    writer: "Writer", asked: list[Some], others: list[Others], place: "Place"
) -> Iterator[tuple[list[Others], ...]]:
    """Sets of properties that are not listed, with names of different kinds, in which one meets each condition.

    Two names of one kind might be equal, so no set has two of them: where two conditions could be met by two such
    names, only objects in which one property meets both are written.
    """
    if len(asked) > _MOST_ASKED:
        raise Unsupported(f"not with more than {_MOST_ASKED} properties that are not listed at {place.path}")
    every = range(len(asked))
    free = [number for number in every if not _says_nothing(asked[number])]
    found: list[tuple[frozenset[int], frozenset[int], list[Others]]] = []  # a kind, what it meets, the properties
    for kind in _subsets(every):
        names = _names_of_kind(writer, asked, kind, place) if kind else []
        if names and len(kind.intersection(free)) > 1:
            writer.left_out = f"not with two properties of like names at {place.path}"
        for left in _subsets([number for number in free if number in kind]) if names else []:
            values = [asked[number].value for number in kind - left]
            ones = [
                Others(merged, simple([*other.schemas, *values]))
                for other in others
                for one in names
                if writer.texts(merged := merge(other.names, one), place.path) is not None
            ]
            if ones := [one for one in ones if one.schemas != (False,)]:
                found.append((kind, kind - left, ones))
    known = set()

    def covers(open_ones: frozenset[int], chosen: frozenset[int]) -> Iterator[frozenset[int]]:
        if not open_ones and chosen not in known:
            known.add(chosen)
            yield chosen
        for number, (kind, met, _) in enumerate(found if open_ones else ()):
            if min(open_ones) in met and all(kind != found[other][0] for other in chosen):
                yield from covers(open_ones - met, chosen | {number})

    for chosen in covers(frozenset(every), frozenset()):
        yield tuple(found[number][2] for number in sorted(chosen))


def _names_of_kind(writer: "Writer", asked: list[Some], kind: frozenset[int], place: "Place") -> list[Part]:
    """The names that meet the conditions of a kind, and none of the others."""
    schemas = [one.names if number in kind else writer.opposite(one.names) for number, one in enumerate(asked)]
    parts = [one for one in writer.parts_of(schemas, place.path) if "string" in one.types]
    if refusal := next((refusal for one in parts if (refusal := one.refusal("string"))), None):
        raise Unsupported(refusal)
    return [replace(one, types=ANY_NAME.types) for one in parts]


def _subsets(numbers: Sequence[int]) -> list[frozenset[int]]:
    return [frozenset(one) for count in range(len(numbers) + 1) for one in combinations(numbers, count)]


def _says_nothing(asked: Some) -> bool:
    """Whether any value will do."""
    return asked.value is True or asked.value == {}
