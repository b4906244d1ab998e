"""Patterns in the syntax of Rust, as llguidance reads them, for texts or for the content of JSON strings.

Every character is written out, since Rust reads classes, case and anchors differently: "\\d$" is "[\\x{30}-\\x{39}]".
In JSON, a character that must be escaped is written as json.dumps escapes it: "." is (?:[...]|\\x{5C}...) there.
"""

import json as json_text
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from gen.constraints.automata.characters import EVERY, NEWLINE, Ranges, complement, intersection
from gen.constraints.automata.limits import Unsupported
from gen.constraints.automata.parsing import parsed
from gen.constraints.automata.regexes import characters_of, is_begin, look_aheads, within_group

_ENDS = (op.AT_END, op.AT_END_STRING)
_TEXT: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_ESCAPED: Ranges = ((0, 31), (34, 34), (92, 92))  # in JSON strings
# The model chooses the tokens where one text alone may come. Else llguidance writes that in tokens of its own choice,
# and writes for ever where a text cannot end: under `start: /a+/ "ab"`, the first part takes each a.
NO_FORCING = '\n%llguidance {"no_forcing": true}'
ONE_TERMINAL = "start: T\nT: "  # begins a grammar that has the name "regex"


def choice_grammar(texts: Iterable[str]) -> str:
    """One of the texts, as a pattern: llguidance takes few alternatives in a rule, and many in a pattern."""
    return grammar_of(terminal_of("|".join(literal(text) or "(?:)" for text in texts)))


def regex_grammar(pattern: str) -> str:
    """Texts that a pattern matches as a whole. Raises Unsupported, TooLarge."""
    return grammar_of(terminal(conditions(pattern, search=False, json=False)))


def text_grammar(without: Sequence[str], most: int | None) -> str:
    """All texts without these strings, of at most this many characters."""
    anything = lengths(0, None, json=False)
    named = "|".join(map(literal, without))
    less = f" & ~{terminal_of(f'{anything}(?:{named}){anything}')}" if without else ""
    return grammar_of(terminal_of(lengths(0, most, json=False)) + less)


def grammar_of(written: str) -> str:
    """A grammar of llguidance's whose texts are those of one terminal."""
    return json_text.dumps({"grammars": [{"name": "regex", "lark_grammar": f"{ONE_TERMINAL}{written}"}]})


class Conditions(NamedTuple):
    """Patterns that a whole text matches, and patterns that it does not match."""

    all: tuple[str, ...]
    none: tuple[str, ...]


def conditions(pattern: str, *, search: bool, json: bool, certain: bool = True) -> Conditions:
    """A pattern of Python's as conditions on the whole text.

    Args:
        search: whether it may match anywhere in a text, and is read as JSON Schema reads its `pattern`.
        json: for the content of JSON strings.
        certain: whether a text must match in every reading; otherwise in any.
    Raises:
        Unsupported, TooLarge: it is no pattern, or Rust's syntax cannot express it.
    """
    tree = parsed(pattern)
    items, flags = list(tree), tree.state.flags
    aheads, rest = look_aheads(items, flags, search)
    try:
        if not aheads:
            return Conditions((_Writer(search, search, json, certain).sequence(items, True, True, flags),), ())
        every = [_Writer(search, search, json, certain).sequence(rest, False, True, flags)]
        none: list[str] = []
        for kind, (_, ahead) in aheads:
            wanted = kind is op.ASSERT
            writer = _Writer(True, search, json, certain is wanted)
            (every if wanted else none).append(writer.sequence(list(ahead), False, True, flags))
    except RecursionError:
        raise Unsupported("a regex nested too deeply") from None
    return Conditions(tuple(every), tuple(none))


def terminal(asked: Conditions) -> str:
    """A Lark terminal for the texts that meet the conditions."""
    return f"({' & '.join([*map(terminal_of, asked.all), *(f'~{terminal_of(one)}' for one in asked.none)])})"


def terminal_of(pattern: str) -> str:
    """A Lark terminal for the texts that a pattern matches."""
    return f"/{pattern or '(?:)'}/"


def lengths(low: int, high: int | None, *, json: bool) -> str:
    """The pattern of any text of `low` to `high` characters."""
    return f"{characters(EVERY, json=json)}{{{low},{'' if high is None else high}}}"


@lru_cache(4096)
def literal(text: str) -> str:
    """The pattern of one text."""
    return "".join(one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):X}}}" for one in text)


@lru_cache(256)
def characters(ranges: Ranges, *, json: bool) -> str:
    """The pattern of one character of a set."""
    plain = intersection(ranges, _TEXT)
    escaped = intersection(plain, _ESCAPED) if json else ()
    if json:
        plain = intersection(plain, complement(_ESCAPED))
    ways = [f"[{''.join(map(_range, plain))}]"] if plain else []
    ways += [literal(json_text.dumps(chr(code))[1:-1]) for low, high in escaped for code in range(low, high + 1)]
    if not ways:
        raise Unsupported("a pattern with half of a pair of surrogates, which no text has")
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _range(pair: tuple[int, int]) -> str:
    low, high = pair
    return f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}"


class _Writer:
    """Writes items of Python's parse tree.

    Args:
        around: whether any text may stand before and after.
        ecma: whether the items are read as JSON Schema reads them.
    """

    def __init__(self, around: bool, ecma: bool, json: bool, certain: bool) -> None:
        self._ecma, self._json, self._certain = ecma, json, certain
        self._around = f"{characters(EVERY, json=json)}*" if around else ""

    def sequence(self, items: Sequence[Any], first: bool, last: bool, flags: int) -> str:
        """Items, with what may stand around them if they are first or last in the text."""
        after = ""
        if first and items and is_begin(items[0], flags):
            items, first = items[1:], False
        if last and items and items[-1][0] is op.AT and items[-1][1] in _ENDS and not flags & re.MULTILINE:
            if items[-1][1] is op.AT_END and not (self._certain and self._ecma):
                after = f"(?:{characters(NEWLINE, json=self._json)})?" if self._ecma else ""
            items, last = items[:-1], False
        if not items:
            return self._around * (first or last) + after
        end = len(items) - 1
        return (
            "".join(self._item(item, first and n == 0, last and n == end, flags) for n, item in enumerate(items))
            + after
        )

    def _item(self, item: tuple[Any, Any], first: bool, last: bool, flags: int) -> str:
        kind, value = item
        if kind is op.BRANCH:
            return f"(?:{'|'.join(self.sequence(list(one), first, last, flags) for one in value[1])})"
        if kind is op.SUBPATTERN:
            _, more, less, items = value
            return f"(?:{self.sequence(list(items), first, last, within_group(flags, more, less))})"
        return self._around * first + self._plain(kind, value, flags) + self._around * last

    def _plain(self, kind: Any, value: Any, flags: int) -> str:
        ranges = characters_of(kind, value, flags, ecma=self._ecma, certain=self._certain)
        if ranges is not None:
            return characters(ranges, json=self._json)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, items = value
            most = "" if high is op.MAXREPEAT else high
            return f"(?:{self.sequence(list(items), False, False, flags)}){{{low},{most}}}"
        what = "an anchor inside of a regex" if kind is op.AT else f"{str(kind).lower().replace('_', ' ')} in a regex"
        raise Unsupported(f"{what}, which llguidance does not support")
