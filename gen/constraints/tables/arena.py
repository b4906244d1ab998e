"""The automata that constrain the rows of a batch, side by side in memory whose address stays the same.

A state is a record of whole numbers. Its number is the place in the table where its record begins:

    0 1 2     the rows of allowed tokens: all, those that do not raise the tokens needed, those that lower them
    3         how many tokens suffice to end a text
    4         how many tokens suffice after any token of the first row
    5         the record itself, which comes again after what is no byte
    6         the forced token, which spells what must come, plus 1; 0 for none, and until `force` is called
    7         the record after that token
    8         how many tokens suffice to end a text after a token that leads here; 0 where that is one of a thought
    9 ...     the records after the bytes of each class
    last two  for an automaton of thoughts, the records that replace this one near to the bound, and at the bound

The record at 0 is for rows without a constraint: all of it is 0, and row 0 allows all tokens.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gen.constraints.tables.device_rows import KINDS
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import put
from gen.devices import to_device

NEEDED, WORST, ITSELF, FORCED, FORCED_NEXT, LEADS, FIRST_CLASS = range(3, 10)
ALL, NOTHING = 0, 1
"""Rows that are always there: one allows all tokens, one allows none."""

_RECORDS, _ROWS = 2**14, 2**7  # room at first: whole numbers in the table, and rows
_MORE_ROWS = 2**9  # on a CPU, where rows come while texts are made: more room later would end all recordings of steps


@dataclass
class _Place:
    """Where an automaton is.

    Attributes:
        start, width, size: where the record of state 1 begins, the length of one record, the length of all together.
        rows: where its rows are.
        filled: on a CPU, the groups whose rows are there.
        row_at: on a CPU, where each of these rows is, by its id.
        forced: whether the forced tokens are there.
    """

    start: int
    width: int
    size: int
    rows: list[int]
    filled: set[int] = field(default_factory=set)
    row_at: dict[int, int] = field(default_factory=dict)
    forced: bool = False


class Arena:
    """Room for automata; a tensor is replaced when more room is needed, and `version` changes.

    An automaton stays until its room is needed and it constrains no row.

    Attributes:
        table: (numbers,) int32.
        rows: (rows, bytes) uint8: tokens that are allowed, the lowest bit first.
        version: changes when one of them is replaced.
    """

    def __init__(self, row_bytes: int, device: torch.device) -> None:
        self.device = device
        self.table = torch.zeros(_RECORDS, dtype=torch.int32, device=device)
        count = _MORE_ROWS if device.type == "cpu" else _ROWS
        self.rows = torch.zeros((count, row_bytes), dtype=torch.uint8, device=device)
        self.rows[ALL] = 255
        self.version = 0
        self._places: dict[TokenAutomaton, _Place] = {}
        self._seen: dict[int, tuple[int, int]] = {}  # on a CPU, what `fill` gives, of records whose rows are there
        self._free = [*range(NOTHING + 1, count)]

    def place(self, automaton: TokenAutomaton, held: Collection[TokenAutomaton | None]) -> int:
        """Where the record of an automaton's start is; the automaton is copied if it is not there yet.

        Args:
            held: automata that constrain rows: these stay.
        """
        place = self._places.get(automaton)
        if place is None:
            place = self._copy(automaton, held)
        return place.start

    def record(self, automaton: TokenAutomaton, state: int) -> int:
        """Where the record of a state is; the automaton must be there."""
        return self._record(self._places[automaton], state)

    def state(self, automaton: TokenAutomaton, record: int) -> int:
        """The state whose record this is, 0 for none; the automaton must be there."""
        place = self._places[automaton]
        return (record - place.start) // place.width + 1 if record else 0

    def after(self, automaton: TokenAutomaton, record: int, token_id: int) -> int:
        """Where the record of the state after a token is; a token that spells nothing does not change the record."""
        tokens, place = automaton.vocabulary.tokens, self._places[automaton]
        if not record or token_id >= len(tokens) or not (spelled := tokens[token_id]):
            return record
        return self._record(place, automaton.walk((record - place.start) // place.width + 1, spelled))

    def fill(self, automaton: TokenAutomaton, record: int, held: Collection[TokenAutomaton | None]) -> tuple[int, int]:
        """On a CPU: make the rows of a state's whole group, unless they are there.

        Returns:
            Where the first of them is, all tokens that the state allows; and how many tokens suffice to end a text.
        """
        if record not in self._seen:
            self._fill(automaton, record, held)
            self._seen[record] = int(self.table[record]), int(self.table[record + NEEDED])
        return self._seen[record]

    def _fill(self, automaton: TokenAutomaton, record: int, held: Collection[TokenAutomaton | None]) -> None:
        """`fill` for a record that was not seen before."""
        place = self._places[automaton]
        group = int(automaton.group_of[(record - place.start) // place.width + 1])
        if group in place.filled:
            return
        rows, raised = automaton.rows(group)
        at = []
        for row in rows:
            if row.max() in (0, 255) and row.min() == row.max():
                at.append(ALL if row[0] else NOTHING)
                continue
            if id(row) not in place.row_at:
                place.row_at[id(row)] = where = self._take_rows(1, held)[0]
                place.rows.append(where)
                self.rows[where] = torch.from_numpy(row)
            at.append(place.row_at[id(row)])
        states = torch.from_numpy((automaton.group_of[1:] == group).nonzero()[0])
        records = self._records(place)
        records[states, :KINDS] = torch.tensor(at, dtype=torch.int32, device=self.device)
        records[states, WORST] = records[states, NEEDED] + raised
        place.filled.add(group)

    def force(self, automaton: TokenAutomaton) -> None:
        """Make an automaton's forced tokens, unless they are there. Host sync: none."""
        place = self._places[automaton]
        if place.forced:
            return
        place.forced = True
        tokens, after = (put(one[1:], self.device) for one in automaton.guesses.forced_tokens())
        records = self._records(place)
        records[:, FORCED] = tokens + 1
        records[:, FORCED_NEXT] = torch.where(after > 0, (after - 1) * place.width + place.start, 0)

    @staticmethod
    def _record(place: _Place, state: int) -> int:
        return place.start + (state - 1) * place.width if state else 0

    def memory(self) -> int:
        """How many bytes both tensors have."""
        return self.table.nbytes + self.rows.nbytes

    def _copy(self, automaton: TokenAutomaton, held: Collection[TokenAutomaton | None]) -> _Place:
        """Copy an automaton to a free place."""
        placed = automaton.place(self.device)
        after = placed.after
        if automaton.jumps is not None:
            after = torch.cat((after, put(automaton.jumps[1:], self.device)), 1)
        states, classes = after.shape
        width = FIRST_CLASS + classes
        size = states * width
        rows = self._take_rows(len(placed.rows), held)
        place = _Place(self._find(size, held), width, size, rows)
        self._places[automaton] = place
        records = self._records(place)
        starts = torch.arange(states, dtype=torch.int32, device=self.device) * width + place.start
        records[:, FIRST_CLASS:] = torch.where(after > 0, (after - 1) * width + place.start, 0)
        records[:, ITSELF] = starts
        records[:, FORCED:LEADS] = 0
        records[:, NEEDED] = placed.needed
        records[:, LEADS] = put(automaton.leads[1:], self.device)
        records[:, WORST] = placed.worst
        for state, token in automaton.only.items():
            records[state - 1, FORCED] = token + 1
            records[state - 1, FORCED_NEXT] = self._record(place, automaton.next_state(state, token))
        if rows:
            where = to_device(torch.tensor(rows, dtype=torch.int64, device="cpu"), self.device)
            self.rows.index_copy_(0, where, placed.rows)
            # a row that allows no token has the number NOTHING
            where = torch.where((placed.rows != 0).any(1), where, NOTHING)
            records[:, :KINDS] = where.index_select(0, placed.row_of.view(-1)).view(states, KINDS)
        else:
            records[:, :KINDS] = ALL
        return place

    def _records(self, place: _Place) -> Tensor:
        """(states, width), a view of the table."""
        return self.table[place.start : place.start + place.size].view(-1, place.width)

    def _find(self, size: int, held: Collection[TokenAutomaton | None]) -> int:
        """Where this many numbers are free."""
        start = self._gap(size)
        if start + size > len(self.table):
            self._drop(held)
            start = self._gap(size)
        if start + size > len(self.table):
            wider = torch.zeros(1 << (start + size - 1).bit_length(), dtype=torch.int32, device=self.device)
            wider[: len(self.table)] = self.table
            self.table = wider
            self.version += 1
        return start

    def _gap(self, size: int) -> int:
        """The first gap that is wide enough; without one, the end of the used part."""
        start = FIRST_CLASS + 258  # behind the record of rows without a constraint, as long as any record
        for place in sorted(self._places.values(), key=lambda place: place.start):
            if place.start - start >= size:
                break
            start = place.start + place.size
        return start

    def _take_rows(self, count: int, held: Collection[TokenAutomaton | None]) -> list[int]:
        """This many free rows."""
        if count > len(self._free):
            self._drop(held)
        if count > len(self._free):
            old = len(self.rows)
            new = 1 << (old + count - len(self._free) - 1).bit_length()
            wider = torch.zeros((new, self.rows.shape[1]), dtype=torch.uint8, device=self.device)
            wider[:old] = self.rows
            self.rows = wider
            self._free += range(old, new)
            self.version += 1
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _drop(self, held: Collection[TokenAutomaton | None]) -> None:
        """Forget the automata that constrain no row."""
        for automaton in [one for one in self._places if one not in held]:
            self._free += self._places.pop(automaton).rows
        self._seen.clear()
