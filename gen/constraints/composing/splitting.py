"""Splits a whole text into the pieces of a tree's parts, as a greedy reader with backtracking would.

Ways are tried depth first, the best one first, and none goes on twice from one place in one way: so the time grows with
the text's length, however ambiguous the text is. Source: RE2's BitState (Cox, "Regular Expression Matching in the
Wild", 2010).

Example: gen.sequence(gen.text(), ",", gen.text()) with "a,b,c". The first text takes all, then less and less, until
the last comma follows it: the pieces are "a,b", "," and "c".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.composing.trees import Plan, Tree, Word
from gen.constraints.host_engine import Grammar
from gen.constraints.output_types import Either, Repeat, Sequence
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError

if TYPE_CHECKING:
    from llguidance import LLMatcher


class TableRecogniser:
    """Reads a text byte by byte, by a table. States are hashable; after equal states the same bytes may follow."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._next = np.ascontiguousarray(table.next).ravel().data
        self._width = table.next.shape[1]
        self._classes, self._final = table.classes.tolist(), table.final.data

    def start(self, place: int) -> int:
        """The state before the first byte; `place` is the place of this byte in a longer text."""
        return 1

    def after(self, state: Any, byte: int) -> int | None:
        """The state after one more byte; None if the byte cannot follow. Do not use `state` again."""
        return self._next[state * self._width + self._classes[byte]] or None

    def whole(self, state: Any) -> bool:
        """Whether a text may end there."""
        return bool(self._final[state])


@dataclass(frozen=True)
class _Begun:
    """A text that llguidance follows, identified by the place where it began."""

    place: int
    matcher: "LLMatcher" = field(compare=False)


class HostRecogniser:
    """Reads as `TableRecogniser` does, by a grammar of llguidance's over single bytes.

    Attributes:
        reason: why there is no table.
    """

    def __init__(self, grammar: Grammar, reason: str) -> None:
        self._grammar, self.reason = grammar, reason

    def start(self, place: int) -> _Begun:
        return _Begun(place, self._grammar.matcher())

    def after(self, state: Any, byte: int) -> _Begun | None:
        return state if state.matcher.validate_tokens([byte]) and state.matcher.consume_token(byte) else None

    def whole(self, state: Any) -> bool:
        return bool(state.matcher.is_accepting())

    def first_bytes(self) -> frozenset[int]:
        """The bytes that a text may begin with; all bytes where it may be empty."""
        matcher = self._grammar.matcher()
        every = range(256)
        return frozenset(every if matcher.is_accepting() else (one for one in every if matcher.validate_tokens([one])))


Recogniser = TableRecogniser | HostRecogniser


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


_OPEN, _TUPLE, _LIST, _SEPARATED = -1, -2, -3, -4  # notes of a way, beside pieces and the numbers of branches
_Way = tuple[int, Any, Any]  # a place, what is to come there, and notes so far, both as linked pairs


class _Turn(NamedTuple):
    """A repeat whose part has come so often, or at least so often if more makes no difference."""

    tree: Repeat
    times: int


class Splitter:
    """Splits texts by a tree.

    Args:
        readers: of each plan and word, by key.
    """

    def __init__(self, tree: Tree, readers: Mapping[Any, Recogniser]) -> None:
        self._tree, self._readers = tree, readers

    def split(self, data: bytes) -> Any:
        """The pieces of a whole text, as `gen.constraints.composing.trees` has them; None if it is no full match."""
        seen = set[Any]()
        todo: list[_Way] = [(0, (self._tree, None), None)]  # the best way last
        while todo:
            place, to_come, notes = todo.pop()
            if to_come is None:
                if place == len(data):
                    return _pieces(data, notes)
            elif (place, to_come) not in seen:
                seen.add((place, to_come))
                todo += self._further(place, to_come, notes, data, seen)
        return None

    def _further(self, place: int, to_come: Any, notes: Any, data: bytes, seen: set[Any]) -> list[_Way]:
        """The ways on from a place, the best one last."""
        item, then = to_come
        if isinstance(item, int):
            return [(place, then, (notes, item))]
        if isinstance(item, Sequence):
            for part in reversed((_OPEN, *item.parts, _TUPLE)):
                then = (part, then)
            return [(place, then, notes)]
        if isinstance(item, Either):
            return [(place, (one, (number, then)), notes) for number, one in enumerate(item.branches)][::-1]
        if isinstance(item, Repeat):
            return [(place, (_OPEN, (_Turn(item, 0), then)), notes)]
        if not isinstance(item, _Turn):
            return self._read(item, place, then, notes, data, seen)
        again, count = item
        end = _SEPARATED if again.separator else _LIST
        ways: list[_Way] = [(place, (end, then), notes)] if count >= again.least else []
        if again.most is None or count < again.most:
            highest = max(again.least, 1) if again.most is None else again.most
            further = (again.part, (_Turn(again, min(count + 1, highest)), then))
            separated = count and again.separator
            ways.append((place, (Word(again.separator), further) if separated else further, notes))
        return ways

    def _read(self, item: Any, place: int, then: Any, notes: Any, data: bytes, seen: set[Any]) -> list[_Way]:
        """The ways on after a piece, the longest one last."""
        reader = self._readers[item.key]
        ways: list[_Way] = []
        state: Any = reader.start(place)
        end = place
        while state is not None and (item, state, end, then) not in seen:
            seen.add((item, state, end, then))
            if reader.whole(state):
                ways.append((end, then, (notes, (place, end))))
            if end == len(data):
                break
            state, end = reader.after(state, data[end]), end + 1
        return ways


def _pieces(data: bytes, notes: Any) -> Any:
    """The pieces, from the notes of a way, the last one first."""
    ordered = []
    while notes is not None:
        notes, note = notes
        ordered.append(note)
    stack: list[list[Any]] = [[]]
    for note in reversed(ordered):
        if isinstance(note, tuple):
            stack[-1].append(data[slice(*note)])
        elif note == _OPEN:
            stack.append([])
        elif note < 0:
            made = stack.pop()[:: 2 if note == _SEPARATED else 1]
            stack[-1].append(tuple(made) if note == _TUPLE else made)
        else:
            stack[-1][-1] = (note, stack[-1][-1])
    return stack[0][0]
