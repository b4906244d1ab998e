"""Splits a whole text into the pieces of a tree's parts, as a greedy reader with backtracking would.

All ways are followed at once, byte by byte, best first: if two come to the same place, only the better one goes on. So
the time grows with the text's length, however ambiguous the text is. Source: Pike's virtual machine, as Cox describes
it ("Regular Expression Matching: the Virtual Machine Approach", 2009).

Example: gen.sequence(gen.text(), ",", gen.text()) with "a,b,c". After "a," there are three ways: still in the first
text, which is the best; at the end of the ","; and at the start of the second text. The last comma ends the first text,
since all better ways lack a part when the text ends: the pieces are "a,b", "," and "c".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gen.constraints.composing.recognisers import Recogniser
from gen.constraints.composing.trees import Again, OneOf, Row, Tree

_OPEN, _TUPLE, _LIST = -1, -2, -3  # notes of a way, beside pieces and the numbers of branches
_Story = tuple[Any, Any] | None  # the notes of one way, the last one first
_Counts = tuple[int, ...]  # for each repeat around a place, how often its part has come


@dataclass(frozen=True)
class _Read:
    """Read a piece."""

    reader: Recogniser
    kept: bool
    then: int


@dataclass(frozen=True)
class _Fork:
    """Go on at several places, best first."""

    then: tuple[int, ...]


@dataclass(frozen=True)
class _Note:
    note: int
    then: int


@dataclass(frozen=True)
class _Turn:
    """Repeat the part once more if that is allowed, or go on after it."""

    least: int
    most: int | None
    first: int
    further: int
    done: int


@dataclass(frozen=True)
class _Zero:
    """A repeat begins."""

    then: int


@dataclass(frozen=True)
class _Counted:
    """Count that the part has come once more, up to `highest`."""

    highest: int
    then: int


_Step = _Read | _Fork | _Note | _Turn | _Zero | _Counted
_END = 0


class Splitter:
    """Splits texts by a tree.

    Args:
        readers: of each plan and word, by key.
    """

    def __init__(self, tree: Tree, readers: Mapping[Any, Recogniser]) -> None:
        self._readers = readers
        self._program: list[_Step] = [_Fork(())]  # where a text ends
        self._start = self._write(tree, _END)

    def split(self, data: bytes) -> Any:
        """The pieces of a whole text, as `gen.constraints.composing.trees` has them; None if it is no full match."""
        found = _Ways(self._program, 0, len(data))
        found.follow(self._start, (), None)
        for place, byte in enumerate(data):
            if not found.ways:
                return None
            ways, found = found.ways, _Ways(self._program, place + 1, len(data))
            for at, counts, state, begin, story in ways:
                step = self._program[at]
                assert isinstance(step, _Read)  # tells mypy
                after = step.reader.after(state, byte)
                if after is not None:
                    found.go_on(at, counts, after, begin, story)
        return None if found.end is None else _pieces(data, found.end)

    def _write(self, tree: Tree, then: int) -> int:
        """Write the program of a tree; returns where it begins."""
        if isinstance(tree, Row):
            then = self._add(_Note(_TUPLE, then))
            for part in reversed(tree.parts):
                then = self._write(part, then)
            return self._add(_Note(_OPEN, then))
        if isinstance(tree, OneOf):
            branches = enumerate(tree.branches)
            return self._add(_Fork(tuple(self._write(one, self._add(_Note(number, then))) for number, one in branches)))
        if isinstance(tree, Again):
            done = self._add(_Note(_LIST, then))
            turn = self._add(_Fork(()))
            highest = max(tree.least, 1) if tree.most is None else tree.most
            first = self._write(tree.part, self._add(_Counted(highest, turn)))
            further = (
                self._add(_Read(self._readers[tree.separator.key], False, first)) if tree.separator.text else first
            )
            self._program[turn] = _Turn(tree.least, tree.most, first, further, done)
            return self._add(_Note(_OPEN, self._add(_Zero(turn))))
        return self._add(_Read(self._readers[tree.key], True, then))

    def _add(self, step: _Step) -> int:
        self._program.append(step)
        return len(self._program) - 1


class _Ways:
    """The ways that have come to a place of the text, best first, and at its end the best one that is complete."""

    def __init__(self, program: list[_Step], place: int, length: int) -> None:
        self._program, self._place, self._last = program, place, place == length
        self._seen: set[Any] = set()
        self.ways: list[tuple[int, _Counts, Any, int, _Story]] = []
        self.end: tuple[Any, Any] | None = None

    def go_on(self, at: int, counts: _Counts, state: Any, begin: int, story: _Story) -> None:
        """Add a way that is within a piece, or at its end."""
        key = (at, counts, state)
        if key in self._seen:
            return
        self._seen.add(key)
        self.ways.append((at, counts, state, begin, story))
        step = self._program[at]
        assert isinstance(step, _Read)  # tells mypy
        if step.reader.whole(state):
            self.follow(step.then, counts, (story, (begin, self._place)) if step.kept else story)

    def follow(self, at: int, counts: _Counts, story: _Story) -> None:
        """Follow a way as far as it leads without reading a byte, the best way first."""
        todo: list[tuple[int, _Counts, _Story]] = [(at, counts, story)]
        while todo:
            at, counts, story = todo.pop()
            if at == _END:
                if self._last and self.end is None:
                    self.end = (story, None)
                continue
            step = self._program[at]
            if isinstance(step, _Read):
                self.go_on(at, counts, step.reader.start(self._place), self._place, story)
                continue
            if (at, counts) in self._seen:
                continue
            self._seen.add((at, counts))
            if isinstance(step, _Fork):
                todo += [(one, counts, story) for one in reversed(step.then)]
            elif isinstance(step, _Note):
                todo.append((step.then, counts, (story, step.note)))
            elif isinstance(step, _Zero):
                todo.append((step.then, (*counts, 0), story))
            elif isinstance(step, _Counted):
                todo.append((step.then, (*counts[:-1], min(counts[-1] + 1, step.highest)), story))
            else:
                count = counts[-1]
                if count >= step.least:
                    todo.append((step.done, counts[:-1], story))
                if step.most is None or count < step.most:
                    todo.append((step.further if count else step.first, counts, story))


def _pieces(data: bytes, end: tuple[Any, Any]) -> Any:
    """The pieces, from the notes of a way."""
    notes = []
    story = end[0]
    while story is not None:
        story, note = story
        notes.append(note)
    stack: list[list[Any]] = [[]]
    for note in reversed(notes):
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
