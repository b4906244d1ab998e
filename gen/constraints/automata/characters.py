"""Sets of characters as ranges of code points, and what `\\d`, `\\w`, `\\s` and case mean in them.

Python, with and without re.ASCII, JSON Schema (ECMA 262) and pydantic (Rust) read the categories differently: "é" is in
`\\w` in Python and not in ECMA 262. A constraint must hold in every reading: "é" is neither in `\\w` nor in `\\W`, but
it is in `[\\w\\W]`.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby
from typing import Literal

import numpy as np

LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]
"""First and last code point of each range, both inclusive; sorted, with gaps between."""

EVERY: Ranges = ((0, LAST),)
NEWLINE: Ranges = ((10, 10),)
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges, sorted; those that overlap or touch become one."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """All other code points."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), LAST]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


@lru_cache(1024)
def intersection(one: Ranges, other: Ranges) -> Ranges:
    """The code points in both."""
    out = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            out.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


Reading = Literal["unicode", "ascii", "ecma", "rust"]
"""Python's own, Python's with re.ASCII, that of ECMA 262, and the most that any Unicode may have in Rust's."""

READINGS: tuple[Reading, ...] = ("unicode", "ascii", "ecma")

_ASCII: dict[str, Ranges] = {
    "d": ((48, 57),),
    "s": ((9, 13), (32, 32)),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
}


@cache
def category(letter: str, reading: Reading) -> Ranges:
    """The characters of `\\d`, `\\s` or `\\w`; a capital letter complements them."""
    if letter.isupper():
        return complement(category(letter.lower(), reading))
    if reading == "ascii" or (reading == "ecma" and letter != "s"):
        return _ASCII[letter]
    found = [(match.start(), match.end() - 1) for match in re.finditer(rf"\{letter}+", _all_characters())]
    more = {"ecma": [(0xFEFF, 0xFEFF)], "rust": [pair for name in _OF_RUST[letter] for pair in unicode_category(name)]}
    return union([*found, *more.get(reading, ())])


_OF_RUST = {"d": ("Cn",), "s": (), "w": ("M", "Pc", "Cf", "So", "Cn")}
"""Categories that `\\d` and `\\w` have some of there, beside Python's; unassigned characters may join them later."""


@lru_cache(64)
def unicode_category(name: str) -> Ranges:
    """The characters of a general category of Unicode, "Lu" or "L" say. Raises KeyError for other names."""
    name = name.removeprefix("gc=").removeprefix("General_Category=")
    wanted = ("Lu", "Ll", "Lt") if name == "LC" else name
    found = [pair for one, pairs in _by_category().items() if one.startswith(wanted) for pair in pairs]
    if not found or not name:
        raise KeyError(name)
    return union(found)


@cache
def _by_category() -> dict[str, list[tuple[int, int]]]:
    out: dict[str, list[tuple[int, int]]] = {}
    first = 0
    for name, run in groupby(map(unicodedata.category, _all_characters())):
        beyond = first + len([*run])
        out.setdefault(name, []).append((first, beyond - 1))
        first = beyond
    return out


def dot(flags: int, ecma: bool, certain: bool | None) -> Ranges:
    """What "." matches: all but a newline, in ECMA 262 all but four line ends; everything with DOTALL."""
    if flags & re.DOTALL:
        return EVERY
    return complement(_LINE_ENDS if ecma and certain else NEWLINE)


def any_case(ranges: Ranges, flags: int) -> Ranges:
    """The characters, with IGNORECASE also in other cases, as Python's re matches them; with ASCII, in ASCII only."""
    if not flags & re.IGNORECASE or not ranges:
        return ranges
    members = "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in ranges)
    found = re.findall(f"[{members}]", _cased(), flags & (re.IGNORECASE | re.ASCII))
    return union([*ranges, *((ord(one), ord(one)) for one in found)])


@cache
def _all_characters() -> str:
    return np.arange(LAST + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@cache
def _cased() -> str:
    """Every character that has another case; all of them are in the first two planes."""
    return "".join(one for one in _all_characters()[:0x20000] if one.lower() != one or one.upper() != one)
