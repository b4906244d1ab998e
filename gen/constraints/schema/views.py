"""What a part says about one property, one item or a string: the schemas and patterns that apply to it."""

from typing import Any

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import Budget, Unsupported
from gen.constraints.automata.parsing import read_otherwise
from gen.constraints.automata.regexes import matched
from gen.constraints.automata.texts import ANY, both, holds, listed, of_length
from gen.constraints.schema.parts import Part
from gen.constraints.schema.writing.formats import format_texts


class Patterns:
    """The patterns of one schema, read once each.

    Args:
        ecma: whether they may be those of other programs, which read them as ECMA 262 does.
    """

    def __init__(self, budget: Budget, ecma: bool) -> None:
        self.budget, self._ecma = budget, ecma
        self._known: dict[tuple[str, bool], Dfa | None] = {}

    def texts(self, pattern: str, path: str, *, certain: bool = True) -> Dfa | None:
        """The strings in which a pattern matches in every reading, or in any. Raises Unsupported, TooLarge."""
        key = (pattern, certain)
        if key not in self._known:
            if self._ecma and (said := read_otherwise(pattern)):
                raise Unsupported(
                    f"pattern at {path}: Python and ECMA 262 read {said!r} in {pattern[:80]!r} differently"
                )
            try:
                self._known[key] = matched(pattern, self.budget, search=True, ecma=True, certain=certain)
            except Unsupported as error:
                raise Unsupported(f"pattern at {path}: {error}") from None
        return self._known[key]

    def applies(self, pattern: str, text: str, path: str) -> bool:
        """Whether a pattern matches in a text. Raises Unsupported where readings differ."""
        if not holds(self.texts(pattern, path, certain=False), text):
            return False
        if not holds(self.texts(pattern, path), text):
            raise Unsupported(f"pattern at {path}: {pattern[:80]!r} matches {text[:80]!r} in Python, not in ECMA 262")
        return True


def is_closed(part: Part) -> bool:
    """Whether objects of the part have only listed properties when objects are closed."""
    return any(one.lists for one in part.properties) and all(one.additional is None for one in part.properties)


def listed_names(part: Part) -> list[str]:
    """The names of properties in the order in which they are written."""
    named = [name for one in part.properties for name in one.named]
    return list(dict.fromkeys([*named, *part.required]))


def property_schemas(part: Part, name: str, patterns: Patterns, path: str, *, closed: bool) -> tuple[Any, ...] | None:
    """The schemas that a property must meet, all of them; None if an object has no such property."""
    if name in part.absent:
        return None
    out: list[Any] = []
    spoken_of = name in part.required
    for one in part.properties:
        mine = [one.named[name]] if name in one.named else []
        mine += [schema for pattern, schema in one.matching.items() if patterns.applies(pattern, name, path)]
        spoken_of |= bool(mine)
        out += mine or ([] if one.additional is None else [one.additional])
    if closed and not spoken_of and is_closed(part):
        return None
    return simple(out)


def item_schemas(part: Part, number: int) -> tuple[Any, ...]:
    """The schemas that an item must meet, all of them."""
    return simple([one.first[number] if number < len(one.first) else one.rest for one in part.items])


def simple(schemas: list[Any]) -> tuple[Any, ...]:
    """The schemas without those that allow anything and without repeats; (False,) if one is False."""
    if any(schema is False for schema in schemas):
        return (False,)
    out: list[Any] = []
    for schema in schemas:
        if schema is not True and schema != {} and not any(schema is known for known in out):
            out.append(schema)
    return tuple(out)


def string_texts(part: Part, patterns: Patterns, path: str, *, certain: bool = True) -> Dfa | None:
    """The strings that meet a part in every reading, or (not `certain`) in any, where formats check nothing; None if
    there is none.
    """
    texts: Dfa | None = ANY
    for one in [format_texts(name) for name in part.formats] if certain else ():
        texts = both(texts, one, patterns.budget)
    for pattern in part.patterns:
        texts = both(texts, patterns.texts(pattern, path, certain=certain), patterns.budget)
    for pattern in part.unmatched:
        texts = both(texts, patterns.texts(pattern, path, certain=not certain), patterns.budget, without=True)
    if part.excluded:
        texts = both(texts, listed(sorted(part.excluded)), patterns.budget, without=True)
    if part.values is not None:
        texts = both(texts, listed(one for one in part.values if isinstance(one, str)), patterns.budget)
    return of_length(texts, part.min_length, part.max_length)
