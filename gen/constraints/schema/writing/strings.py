"""The strings that a part allows, as texts over code points."""

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.texts import ANY, both, listed, of_length
from gen.constraints.schema.parts import Part
from gen.constraints.schema.views import Patterns
from gen.constraints.schema.writing.formats import format_texts


def string_texts(part: Part, patterns: Patterns, path: str) -> Dfa | None:
    """The strings of the part's formats, patterns, lengths and values that it does not exclude, or None."""
    texts: Dfa | None = ANY
    for one in [format_texts(name) for name in part.formats] + [patterns.texts(one, path) for one in part.patterns]:
        texts = one if texts is ANY else texts if one is ANY else both(texts, one, patterns.budget)
    for pattern in part.unmatched:
        texts = both(texts, patterns.texts(pattern, path, certain=False), patterns.budget, without=True)
    if part.excluded:
        texts = both(texts, listed(sorted(part.excluded)), patterns.budget, without=True)
    if part.values is not None:
        texts = both(texts, listed(one for one in part.values if isinstance(one, str)), patterns.budget)
    return of_length(texts, part.min_length, part.max_length)


def perhaps_texts(part: Part, patterns: Patterns, path: str) -> Dfa | None:
    """The strings that meet the part in some reading: the widest of its patterns; formats check nothing."""
    texts: Dfa | None = ANY
    for pattern in part.patterns:
        texts = both(texts, patterns.texts(pattern, path, certain=False), patterns.budget)
    for pattern in part.unmatched:
        texts = both(texts, patterns.texts(pattern, path), patterns.budget, without=True)
    return of_length(texts, part.min_length, part.max_length)
