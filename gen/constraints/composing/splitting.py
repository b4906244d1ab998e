"""Splits a whole text into the pieces of a tree's parts, as a greedy reader with backtracking would.

Ways are tried depth first, the best one first, and none goes on twice from one place in one way: so the time grows with
the text's length, however ambiguous the text is. Source: RE2's BitState (Cox, "Regular Expression Matching in the
Wild", 2010).

Example: gen.sequence(gen.text(), ",", gen.text()) with "a,b,c". The first text takes all, then less and less, until
the last comma follows it: the pieces are "a,b", "," and "c".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
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
        self._further: dict[int, list[tuple[int, int]]] = {}

    def start(self, place: int) -> int:
        """The state before the first byte; `place` is the place of this byte in a longer text."""
        return 1

    def after(self, state: Any, byte: int) -> int | None:
        """The state after one more byte; None if the byte cannot follow. Do not use `state` again."""
        return self._next[state * self._width + self._classes[byte]] or None

    def further(self, state: Any) -> list[tuple[int, Any]]:
        """The bytes that may follow, each with the state after it. You may use `state` again."""
        if state not in self._further:
            every = ((byte, self.after(state, byte)) for byte in range(256))
            self._further[state] = [(byte, after) for byte, after in every if after is not None]
        return self._further[state]

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

    def further(self, state: Any) -> list[tuple[int, _Begun]]:
        every = ((byte, self.after(_Begun(state.place, state.matcher.deep_copy()), byte)) for byte in range(256))
        return [(byte, after) for byte, after in every if after is not None]

    def whole(self, state: Any) -> bool:
        return bool(state.matcher.is_accepting())

    def first_bytes(self) -> frozenset[int]:
        """The bytes that a text may begin with; all bytes where it may be empty."""
        start = self.start(0)
        return frozenset(range(256) if self.whole(start) else (byte for byte, _ in self.further(start)))

    def in_numbers(self) -> frozenset[int]:
        """The bytes that a JSON text may go on with where it is a number: digits, and what may follow its first one."""
        every, found = range(256), frozenset[int]()
        for digit in _DIGITS & self.first_bytes():
            begun = self.after(self.start(0), digit)
            found |= _DIGITS.union(one for one in every if begun and begun.matcher.validate_tokens([one]))
        return found


_DIGITS = frozenset(b"0123456789")
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
        notes = next(self._ways(data, self._tree, None, []), None)
        return None if notes is None else _pieces(data, notes)[0][0][0]

    def certain(self, data: bytes, count: int) -> tuple[list[Any], int]:
        """The pieces of a repeat's parts that stay the same however a text goes on, and where the last one ends.

        Args:
            data: the text's beginning, behind so many parts.
        """
        assert isinstance(self._tree, Repeat)  # tells mypy
        begun = list[Any]()
        whole = self._ways(data, _Turn(self._tree, _counted(self._tree, count)), (None, _OPEN), begun)
        notes = [*(one for one, _ in whole), *begun]  # without the note that the repeat ends
        parts = slice(int(count > 0), None, 2) if self._tree.separator else slice(None)
        ways = [_pieces(data, one)[1][parts] for one in notes]
        same = [ones[0] for ones in takewhile(lambda ones: ones.count(ones[0]) == len(ones), zip(*ways, strict=False))]
        return [piece for piece, _ in same], same[-1][1] if same else 0

    def _ways(self, data: bytes, item: Any, notes: Any, begun: list[Any]) -> Iterator[Any]:
        """The notes of each way to read the whole of a text as an item, the best way first.

        Args:
            notes: those so far.
            begun: receives the notes of ways in which more must come.
        """
        seen = set[Any]()
        todo: list[_Way] = [(0, (item, None), notes)]  # the best way last
        while todo:
            place, to_come, notes = todo.pop()
            if to_come is None:
                if place == len(data):
                    yield notes
            elif (place, to_come) not in seen:
                seen.add((place, to_come))
                todo += self._further(place, to_come, notes, data, seen, begun)

    def _further(
        self, place: int, to_come: Any, notes: Any, data: bytes, seen: set[Any], begun: list[Any]
    ) -> list[_Way]:
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
            return self._read(item, place, then, notes, data, seen, begun)
        again, count = item
        end = _SEPARATED if again.separator else _LIST
        ways: list[_Way] = [(place, (end, then), notes)] if count >= again.least else []
        if again.most is None or count < again.most:
            further = (again.part, (_Turn(again, _counted(again, count + 1)), then))
            separated = count and again.separator
            ways.append((place, (Word(again.separator), further) if separated else further, notes))
        return ways

    def _read(
        self, item: Any, place: int, then: Any, notes: Any, data: bytes, seen: set[Any], begun: list[Any]
    ) -> list[_Way]:
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
                begun += [notes] if reader.further(state) else []
                break
            state, end = reader.after(state, data[end]), end + 1
        return ways


def _counted(tree: Repeat, count: int) -> int:
    """The times of a `_Turn`."""
    return min(count, max(tree.least, 1) if tree.most is None else tree.most)


def _pieces(data: bytes, notes: Any) -> list[list[tuple[Any, int]]]:
    """The pieces, each with the place where it ends, from the notes of a way, the last one first; and those of each
    part in it that has not ended."""
    ordered = []
    while notes is not None:
        notes, note = notes
        ordered.append(note)
    stack: list[list[tuple[Any, int]]] = [[]]
    end = 0
    for note in reversed(ordered):
        if isinstance(note, tuple):
            end = note[1]
            stack[-1].append((data[slice(*note)], end))
        elif note == _OPEN:
            stack.append([])
        elif note < 0:
            made = [piece for piece, _ in stack.pop()[:: 2 if note == _SEPARATED else 1]]
            stack[-1].append((tuple(made) if note == _TUPLE else made, end))
        else:
            stack[-1].append(((note, stack[-1].pop()[0]), end))
    return stack
