"""Splits a whole text into the pieces of a tree's parts, as a greedy reader with backtracking would.

Ways are tried depth first, the best one first, and none goes on twice from one place in one way: so the time grows with
the text's length, however ambiguous the text is. Source: RE2's BitState (Cox, "Regular Expression Matching in the
Wild", 2010).

Example: gen.sequence(gen.text(), ",", gen.text()) with "a,b,c". The first text takes all, then less and less, until
the last comma follows it: the pieces are "a,b", "," and "c".
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gen.constraints.composing.recognisers import Recogniser
from gen.constraints.composing.trees import Tree, Word
from gen.constraints.output_types import Either, Repeat, Sequence

_OPEN, _TUPLE, _LIST = -1, -2, -3  # notes of a way, beside pieces and the numbers of branches
_Way = tuple[int, Any, Any]  # a place, what is to come there, and notes so far, both as linked pairs


class _Turn(NamedTuple):
    """A repeat whose part has come so often, or at least so often if more makes no difference."""

    tree: Repeat
    times: int


class _Skipped(NamedTuple):
    """A separator, which is no piece."""

    word: Word


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
        ways: list[_Way] = [(place, (_LIST, then), notes)] if count >= again.least else []
        if again.most is None or count < again.most:
            highest = max(again.least, 1) if again.most is None else again.most
            further = (again.part, (_Turn(again, min(count + 1, highest)), then))
            skips = count and again.separator
            ways.append((place, (_Skipped(Word(again.separator)), further) if skips else further, notes))
        return ways

    def _read(self, item: Any, place: int, then: Any, notes: Any, data: bytes, seen: set[Any]) -> list[_Way]:
        """The ways on after a piece, the longest one last."""
        skipped = isinstance(item, _Skipped)
        reader = self._readers[(item.word if skipped else item).key]
        ways: list[_Way] = []
        state, end = reader.start(place), place
        while state is not None and (item, state, end, then) not in seen:
            seen.add((item, state, end, then))
            if reader.whole(state):
                ways.append((end, then, notes if skipped else (notes, (place, end))))
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
        elif note in (_TUPLE, _LIST):
            made = stack.pop()
            stack[-1].append(tuple(made) if note == _TUPLE else made)
        else:
            stack[-1][-1] = (note, stack[-1][-1])
    return stack[0][0]
