"""Parses patterns with Python's own parser, after a rewrite of what ECMA 262 writes differently."""

import re
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from gen.constraints.automata.characters import complement, intersection, unicode_category, union
from gen.constraints.automata.limits import TooLarge, Unsupported

_LONGEST = 100_000  # characters of a pattern
_OF_PYTHON = r"\(\?(?:P|#|[a-zA-Z]+\)|[a-zA-Z-]*[aLux][a-zA-Z-]*:)"  # groups that ECMA 262 cannot read


def parsed(pattern: str) -> Any:
    """The parse tree of a pattern, of Python's private type: pairs of an operator and what it holds.

    Raises:
        Unsupported: Python does not accept it as a regular expression.
        TooLarge: it is too long, or nested too deeply.
    """
    if len(pattern) > _LONGEST:
        raise TooLarge(f"a regex of {len(pattern)} characters")
    try:
        return parser.parse(_python_syntax(pattern))
    except (re.error, OverflowError, ValueError) as error:
        raise Unsupported(f"the regex {pattern[:80]!r}: {error}") from None
    except RecursionError:
        raise TooLarge("a regex nested too deeply") from None


def with_flags(pattern: re.Pattern[str]) -> str:
    """A compiled pattern with its flags written in it."""
    flags = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
    plain = re.sub(r"^\(\?[aimsux]+\)", "", pattern.pattern)  # they are among its flags
    return f"(?{flags}){plain}" if flags else plain


_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def read_otherwise(pattern: str) -> str | None:
    """What ECMA 262 reads otherwise than Python does, or cannot read, in a pattern that Python reads; None for nothing.

    Example: "]" after "[" is a member of the brackets to Python, and their end to ECMA 262.
    """
    inside = False  # of brackets
    for found in re.finditer(rf"(?s)\\.|\[\^?\]?|\]|\{{,[0-9]+\}}|{_OF_PYTHON}", pattern):
        said = found[0]
        if said[0] == "\\":
            if said[1] in "AZaUN":
                return said
        elif said[0] in "{(":
            if not inside:
                return said
        elif said[0] == "[" and not inside and said[-1] == "]":
            return said
        else:
            inside = said[-1] != "]"
    return None


def _python_syntax(pattern: str) -> str:
    """Write ECMA 262's named groups and \\p{...} as Python does; in brackets, escape what Python warns about."""
    out: list[str] = []
    at = 0
    verbose = [False]  # whether "#" begins a comment, in each group that is open
    while found := _PIECES[verbose[-1]].search(pattern, at):
        piece = found[0]
        out.append(pattern[at : found.start()])
        at = found.end()
        if piece[:3] in (r"\p{", r"\P{"):
            piece = f"[{_characters(piece, False)}]"
        elif found["end"]:
            piece = _brackets(piece)
        elif piece[0] == "(" and piece[:3] != "(?#":
            on, _, off = piece.partition("-")
            verbose.append(("x" in on or verbose[-1]) and "x" not in off)
            if piece[-1] == ")":  # holds for the rest of the pattern
                verbose[-2:] = verbose[-1:]
        elif piece == ")" and len(verbose) > 1:
            verbose.pop()
        out.append("(?P<" if piece == "(?<" else piece)
    return "".join([*out, pattern[at:]])


_PIECES = [
    re.compile(
        rf"(?s)\\[pP]\{{[^}}]{{,60}}\}}|\\.|\[\^?\]?(?:\\.|[^\]\\])*(?P<end>\]?)|{comment}\(\?\#(?:\\.|[^)\\])*|"
        r"\(\?<(?=[A-Za-z_])|\(\?[a-zA-Z-]*[:)]|[()]"
    )
    for comment in ("", r"\#(?:\\.|[^\n\\])*|")
]
"""What is read as one in a pattern, without "#" as the begin of a comment and with it."""


def _brackets(piece: str) -> str:
    """What stands from a "[" to its "]", as Python writes it."""
    negated = piece[1] == "^"
    pieces = re.findall(r"(?s)\\[pP]\{[^}]*\}|\\.|.", piece[1 + negated : -1])
    out = [piece[: 1 + negated]]
    at = 0
    while at < len(pieces):
        if pieces[at][:3] in (r"\p{", r"\P{"):
            out.append(_characters(pieces[at], negated))
            at += 1
            continue
        out.append(_escaped(pieces[at]))
        at += 1
        if pieces[at : at + 1] == ["-"] and at + 1 < len(pieces):
            out += ["-", _escaped(pieces[at + 1])]
            at += 2
    return "".join([*out, "]"])


def _characters(piece: str, negated: bool) -> str:
    """The members of \\p{...} or \\P{...}. Unassigned ones may join any category later, so neither matches them."""
    name = piece[3:-1]
    try:
        found, unassigned = unicode_category(name), unicode_category("Cn")
    except KeyError:
        raise Unsupported(f"\\p{{{name[:40]}}} in a regex: only general categories of Unicode are known") from None
    if piece[1] == "P":
        found = complement(found)
    found = union([*found, *unassigned]) if negated else intersection(found, complement(unassigned))
    return "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in found)


def _escaped(piece: str) -> str:
    return f"\\{piece}" if piece in "[]-&~|" else piece
