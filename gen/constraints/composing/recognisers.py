"""Tells byte by byte whether a text may be one of a plan's: by its table, or by llguidance over single bytes."""

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.composing.trees import Plan
from gen.constraints.host_engine import Grammar
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Recogniser(Protocol):
    """Reads a text byte by byte. States are hashable; after equal states the same bytes may follow."""

    def start(self, place: int) -> Any:
        """The state before the first byte; `place` is the place of this byte in a longer text."""

    def after(self, state: Any, byte: int) -> Any:
        """The state after one more byte; None if the byte cannot follow. Do not use `state` again."""

    def whole(self, state: Any) -> bool:
        """Whether a text may end there."""


class TableRecogniser:
    """Reads by a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._next = table.next.ravel().tolist()
        self._width = table.next.shape[1]
        self._classes, self._final = table.classes.tolist(), table.final.tolist()

    def start(self, place: int) -> int:
        return 1

    def after(self, state: int, byte: int) -> int | None:
        return self._next[state * self._width + self._classes[byte]] or None

    def whole(self, state: int) -> bool:
        return bool(self._final[state])


@dataclass(frozen=True)
class _Begun:
    """A text that llguidance follows, identified by the place where it began."""

    place: int
    matcher: "LLMatcher" = field(compare=False)


class HostRecogniser:
    """Reads by a grammar of llguidance's.

    Attributes:
        reason: why there is no table.
    """

    def __init__(self, grammar: Grammar, reason: str) -> None:
        self._grammar, self.reason = grammar, reason

    def start(self, place: int) -> _Begun:
        return _Begun(place, self._grammar.matcher())

    def after(self, state: _Begun, byte: int) -> _Begun | None:
        return state if state.matcher.validate_tokens([byte]) and state.matcher.consume_token(byte) else None

    def whole(self, state: _Begun) -> bool:
        return state.matcher.is_accepting()

    def first_bytes(self) -> frozenset[int]:
        """The bytes that a text may begin with; all bytes where it may be empty."""
        matcher = self._grammar.matcher()
        every = range(256)
        return frozenset(every if matcher.is_accepting() else (one for one in every if matcher.validate_tokens([one])))


def recogniser(plan: Plan, known: Table | str | None = None) -> Recogniser:
    """The recogniser of a plan's texts.

    Args:
        known: the plan's table, or why it has none, if that was found out before.
    Raises:
        Empty: the plan has no texts.
        ConstraintError: neither engine can enforce it.
    """
    if isinstance(known, Table):
        return TableRecogniser(known)
    reason = known or "a grammar is not regular"
    if plan.table is not None and known is None:
        try:
            return TableRecogniser(plan.table())
        except Unsupported as error:
            raise ConstraintError(str(error)) from error
        except TooLarge as error:
            reason = str(error)
    return HostRecogniser(Grammar(plan.grammar(), _single_bytes()), reason)


@cache
def _single_bytes() -> Vocabulary:
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b""])
