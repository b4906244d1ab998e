"""Grammars in llguidance's variant of Lark, for types whose automaton would be too large: they allow the same texts.

A grammar of one terminal has the name "regex" and begins with `ONE_TERMINAL`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.automata.rust_syntax import conditions, lengths, literal, terminal, terminal_of
from gen.constraints.schema import Whitespace, schema_grammar, string_terminal
from gen.errors import ConstraintError

P = ParamSpec("P")
ONE_TERMINAL = "start: T\nT: "


def _refusing(write: Callable[P, str]) -> Callable[P, str]:
    """Make a function that writes a grammar raise a ConstraintError for what it cannot write."""

    @wraps(write)
    def written(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return write(*args, **kwargs)
        except (Unsupported, TooLarge) as error:
            raise ConstraintError(str(error)) from error

    return written


def of_lark(lark: str) -> str:
    """A Lark grammar in the form that llguidance takes."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(lark)


def of_choice(texts: Iterable[str]) -> str:
    """One of the texts, as a pattern: llguidance takes few alternatives in a rule, and many in a pattern."""
    return _of_terminal(terminal_of("|".join(literal(text) or "(?:)" for text in texts)))


@_refusing
def of_regex(pattern: str) -> str:
    """Texts that a pattern matches as a whole. Raises ConstraintError."""
    return _of_terminal(terminal(conditions(pattern, search=False, json=False)))


def of_any_text(without: Sequence[str], most: int | None) -> str:
    """All texts without these strings, of at most this many characters."""
    anything = lengths(0, None, json=False)
    named = "|".join(map(literal, without))
    less = f" & ~{terminal_of(f'{anything}(?:{named}){anything}')}" if without else ""
    return _of_terminal(terminal_of(lengths(0, most, json=False)) + less)


@_refusing
def of_text(schema: Any) -> str:
    """The strings of a schema, without their quotes. Raises ConstraintError, Empty."""
    return _of_terminal(string_terminal(schema))


@_refusing
def of_schema(schema: Any, *, closed: bool, whitespace: Whitespace, ecma: bool = True) -> str:
    """JSON that meets a schema; see `schema_table`. Raises ConstraintError, Empty."""
    return of_lark(schema_grammar(schema, closed=closed, whitespace=whitespace, ecma=ecma))


def _of_terminal(written: str) -> str:
    return json.dumps({"grammars": [{"name": "regex", "lark_grammar": f"{ONE_TERMINAL}{written}"}]})
