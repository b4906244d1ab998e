"""Holds each row to its constraint: an automaton's state masks tokens, and the chosen token leads to the next state.

Everything is on the device and has static shapes; on a CPU the host walks between two steps, which is faster there. A
state has three rows of allowed tokens, packed as bits. The first has all tokens that the type allows, and is the only
one that counts while there is room. If a text may be short of room, the other two say which tokens surely leave enough,
so that the text can always be ended in time.

A thought before an answer is a part of the automaton. Its states come first, so a row knows by its state whether its
thought goes on: then its limit moves on with it, and at the bound of the thought another state replaces its state.

Example: the text so far is `{"ok": tr`, and 2 tokens are left. If `ue}` and `ue` are tokens, they may follow, because
at most 1 more token ends the text. If `e}` is no token, `u` may not follow: it would need both `e` and `}`.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gen.constraints.composing.thoughts import bounds_of
from gen.constraints.tables.arena import ALL, FIRST_CLASS, FORCED, ITSELF, LEADS, NEEDED, NOTHING, WORST, Arena
from gen.constraints.tables.masks import allow, bias_table
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.devices import to_device
from gen.requests.request import Request, Thinking
from gen.stages.ahead import Ahead
from gen.stages.stage import Here, Room, Stage, lines

_FAR = 2**62  # more tokens than any row has
_STAYS = 256  # the column of the state itself; behind it those of the states that end a thought, see `Arena`


class DeviceConstraints(Stage):
    """The last of the stages, so that no stage allows again what it forbids.

    If only the end of the text can come, only the first of the tokens that end it is allowed, with probability 1,
    whatever earlier stages did to its logit. Rows without a constraint are left as they are.
    """

    takes_places = goes_ahead = True

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._held: list[TokenAutomaton | None] = [None] * count
        self._used = self._thinks = self._idle = self._marks = False
        self._version = 0
        self._arena: Arena | None = None  # made with the first constraint, like `_bytes` and the tensors beside it
        self._on_cpu = device.type == "cpu"
        self._bytes = self._bias = self._numbers = self._forced = torch.empty(0, device=device)

        def row(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, width), dtype=dtype, device=device)

        self._state, self._columns = row(1, torch.int32), row(0, torch.int32)
        self._taken = row(1, torch.int64)  # on a CPU: the token that a state has still to walk; -1 for none
        self._ahead = row(0, torch.int32)  # the states before each place; made with the first draft, like `_drafts`
        self._drafts = torch.empty(0, dtype=torch.int64, device=device)
        self._lasts, self._ends = row(1, torch.int64), row(1, torch.int64)  # how many tokens may come before the last
        self._may_end = row(1, torch.bool)
        # of rows whose texts may have a thought: where the records end of states in which the answer may begin, and of
        # those within the thought; at which tokens the thought ends; how many the answer may have, 0 if the limit is
        # that of both together; on a CPU, how many tokens a state has walked
        self._thoughts, self._bounds = row(2, torch.int32), row(2, torch.int64)
        self._rooms, self._made = row(1, torch.int64), row(1, torch.int64)
        self._views = self._views_of_rows() if self._on_cpu else None

    def _views_of_rows(self) -> "_Views":
        columns = self._state, self._taken, self._may_end, self._lasts, self._made, self._rooms
        return _Views(*(one.numpy().ravel().data for one in (*columns, self._thoughts, self._bounds)))

    def begin(self) -> None:
        self._used = self._thinks = self._idle = self._marks = False
        self._held = [None] * self._count

    def key(self) -> Hashable:
        if not self._used or self._arena is None:
            return None
        return self._version, self._arena.version, self._thinks, self._idle, self._marks

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        """See `gen.stages.stage.Stage.admit`. Host sync: none for constraints that have been placed."""
        asked = [request.automaton for request in requests]
        constrained = [automaton for automaton in asked if automaton is not None]
        if not self._used and not constrained:
            return
        arena = self._arena or self._make_tables(constrained[0])
        if not self._used:
            self._used = True
            self._state.zero_()
            self._ahead.zero_()  # free rows may have states there of automata that are gone
            self._may_end.fill_(True)
            self._lasts.fill_(_FAR)  # rows without a constraint are never short of room
        self._widen(max(len(request.ends) for request in requests))
        if self._on_cpu:
            self._ahead[rows] = 0  # these were states of another automaton
        each = (rows.stop - rows.start) // len(requests)
        self._held[rows] = [automaton for automaton in asked for _ in range(each)]
        if not self._thinks and any(request.thinking is not None for request in requests):
            self._thinks = True
            self._thoughts.zero_()  # the rows that run have none
        states, begun = [], [_Begun() for _ in requests]
        for place, (request, automaton, read) in enumerate(zip(requests, asked, tokens, strict=True)):
            if automaton is None:
                states.append(0)
            else:
                arena.place(automaton, self._held)
                if self.forces and not self._on_cpu:  # on a CPU the host finds the tokens that must come
                    arena.force(automaton)
                made = read[len(request.prompt_ids) :]
                if request.thinking is None:
                    state = automaton.follow(made)
                else:
                    state, begun[place] = _begun(arena, request.thinking, request.limit, made)
                states.append(arena.record(automaton, state))
        width = self._ends.shape[1]
        held = [one.automaton is not None and one.constraint is not None for one in requests]
        may_end = [[not typed or bool(one.eos_token_ids)] for one, typed in zip(requests, held, strict=True)]
        given = list(zip(requests, begun, strict=True))
        tables: list[tuple[Tensor, object]] = [
            (self._state, [[state] for state in states]),
            (self._taken, [[-1] for _ in requests]),
            (self._lasts, [[request.limit - 1 if one.last is None else one.last] for request, one in given]),
            (self._may_end, may_end),
            (self._ends, [_repeated(request.ends or (0,), width) for request in requests]),
            (self._columns, np.stack([_columns(automaton) for automaton in asked])),
        ]
        if self._thinks:
            tables += [
                (self._thoughts, [one.thoughts for one in begun]),
                (self._bounds, [one.bounds for one in begun]),
                (self._rooms, [[one.room] for one in begun]),
                (self._made, [[len(read) - len(one.prompt_ids)] for one, read in zip(requests, tokens, strict=True)]),
            ]
        for table, values in tables:
            on_host = torch.as_tensor(values, dtype=table.dtype, device="cpu")
            table[rows] = to_device(on_host, self._device).repeat_interleave(each, 0)

    def prepare(self, here: slice, width: int = 1) -> None:
        """See `gen.stages.stage.Stage.prepare`: on a CPU the host walks to the next states, in a tenth of the time that
        torch would take, and makes rows of allowed tokens when they are needed. Where all rows may take any token, as
        in a thought before any text, the step leaves the logits as they are."""
        arena, views, held = self._arena, self._views, self._held
        if views is None or arena is None:
            return
        idle, marks = True, False
        ahead = self._ahead[here, :width].tolist() if width > 1 else []
        for row, automaton in enumerate(held[here], here.start):
            if automaton is None:
                continue
            for state in ahead[row - here.start] if ahead else (self._walk_on(row, automaton, arena, views),):
                if state:
                    allowed, needed = arena.fill(automaton, state, held)
                    idle = idle and allowed == ALL and not needed and views.may_end[row] != 0
                    marks = marks or (allowed == NOTHING and arena.state(automaton, state) in automaton.only)
        self._idle, self._marks = idle, marks

    @staticmethod
    def _walk_on(row: int, automaton: TokenAutomaton, arena: Arena, views: "_Views") -> int:
        """On a CPU: let the host walk with the token that a row has taken, if it has not yet; the state of the row."""
        state, token_id = views.state[row], views.taken[row]
        if token_id < 0:
            return state
        views.taken[row] = -1
        state = arena.after(automaton, state, token_id)
        if automaton.jumps is not None:
            views.made[row] = made = views.made[row] + 1
            if made >= (near := views.bounds[2 * row]):
                state = _closed(arena, automaton, state, made, near, views.bounds[2 * row + 1])
            if state < views.thoughts[2 * row + 1]:  # the limit moves on with the thought
                entry = state < views.thoughts[2 * row]
                views.lasts[row] = max(views.lasts[row], made + views.rooms[row] - entry)
        views.state[row] = state
        return state

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """See `gen.stages.stage.Stage`; (n, vocab), float32 for logits in half precision. Host sync: none."""
        assert self._arena is not None  # tells mypy
        if self._thinks and not self._on_cpu and isinstance(here, slice):  # on a CPU the host has done this
            state = self._state[here]
            state.copy_(self._close(here, state, generated))
            self._lasts[here] = self._lasts_at(here, state, generated)
        if self._idle:
            return logits
        record = self._records(here)
        may_end = lines(self._may_end, here) & (record[:, NEEDED : NEEDED + 1] == 0)
        own = torch.where(may_end, logits.gather(1, lines(self._ends, here)), -math.inf)
        return self._masked(logits, record[:, :1], here, own)

    def room(self, masked: Tensor, here: Here, generated: Tensor, squeezed: Tensor) -> Room:
        """See `gen.stages.stage.Stage.room`. Host sync: none."""
        if self._thinks and not isinstance(here, slice):
            states = self._ahead[here.rows, : here.width]
            lasts = self._lasts_at(here.rows, states, generated.view(-1, here.width)).view(-1, 1)
        else:
            lasts = lines(self._lasts, here)
        after = lasts - generated  # how many tokens may come after the next one
        record = self._records(here)
        kind = (after < record[:, WORST : WORST + 1]).long() + (after < record[:, NEEDED : NEEDED + 1])
        row = record.gather(1, kind)

        def narrow(wanted: Tensor | None) -> Tensor:
            return self._masked(masked, row, here, masked.gather(1, lines(self._ends, here)), wanted)

        def fits(token_ids: Tensor, rows: Tensor | None) -> Tensor:
            assert self._arena is not None  # tells mypy
            needed = self._arena.table.index_select(0, self._after(here, token_ids, rows) + LEADS)
            return needed <= (after if rows is None else after.index_select(0, rows)).squeeze(1)

        return Room(narrow, squeezed, fits)

    def advance(
        self,
        here: slice,
        newest: Tensor,
        ancestors: Tensor | None = None,
        counts: Tensor | None = None,
        made: Tensor | None = None,
    ) -> None:
        """See `gen.stages.stage.Stage.advance`. Host sync: none."""
        if counts is not None and made is not None:
            self._take_drafts(here, counts, made)
        if ancestors is not None and self._thinks:  # rows of one request, whose thoughts end at different tokens
            self._lasts[here] = self._lasts[here].index_select(0, ancestors)
        if self._on_cpu:
            if ancestors is not None:
                self._state[here] = self._state[here].index_select(0, ancestors)
            self._taken[here].copy_(newest)
            return
        self._state[here] = self._after(here, newest.squeeze(1), ancestors).unsqueeze(1)

    def _take_drafts(self, here: slice, counts: Tensor, made: Tensor) -> None:
        """Rows go on with their first drafts; their newest token, after these, is still to be walked."""
        if self._thinks:
            numbers = torch.arange(self._ahead.shape[1], device=self._device)
            lasts = self._lasts_at(here, self._ahead[here], made[:, :1] + numbers)
            self._lasts[here] = lasts.gather(1, counts - 1)
            torch.gather(made, 1, counts - 1, out=self._made[here])
        torch.gather(self._ahead[here], 1, counts - 1, out=self._state[here])

    def ahead(self, row: int, drafts: int) -> Ahead | None:
        assert self._arena is not None and self._views is not None  # tells mypy
        arena, views = self._arena, self._views
        automaton, records = self._held[row], self._records_ahead(1 + drafts).numpy()[row]
        records[0] = 0 if automaton is None else self._walk_on(row, automaton, arena, views)
        if automaton is None or not records[0]:
            records[1:] = 0
            return None
        made, near, bound = views.made[row], views.bounds[2 * row], views.bounds[2 * row + 1]

        def closed(state: int, place: int) -> int:
            return _closed(arena, automaton, state, made + place, near, bound)

        return Ahead(arena, automaton, records, closed)

    def _records_ahead(self, places: int) -> Tensor:
        """The states before each place, (rows, places); made when they are first needed."""
        if not self._ahead.shape[1]:
            self._ahead = torch.zeros((self._count, places), dtype=torch.int32, device=self._device)
            self._drafts = torch.arange(places - 1, device=self._device)
        return self._ahead

    def draft(
        self, here: slice, feed: Tensor, real: Tensor, generated: Tensor, *, walks: bool
    ) -> tuple[Tensor, Tensor]:
        """See `gen.stages.stage.Stage.draft`: a token that the automaton forces replaces the draft that was found."""
        assert self._arena is not None  # tells mypy
        table, columns, drafts = self._arena.table, self._columns[here], feed[:, 1:]
        ahead, known = self._records_ahead(feed.shape[1])[here], list[Tensor]()
        ahead[:, :1] = self._close(here, self._state[here], generated) if self._thinks else self._state[here]
        nowhere = torch.zeros_like(ahead[:, :1])
        for place in range(drafts.shape[1]):  # states after the first draft that cannot come mean nothing
            state, after = ahead[:, place : place + 1], ahead[:, place + 1 : place + 2]
            walked = self._walk(state.squeeze(1), columns, drafts[:, place]).unsqueeze(1) if walks else nowhere
            if self.forces:
                known.append(table.index_select(0, (state + self._forced).view(-1)).view(-1, 2))
                torch.where(known[-1][:, :1] > 0, known[-1][:, 1:], walked, out=after)
            else:
                after.copy_(walked)
            if self._thinks:
                after.copy_(self._close(here, after, generated + place + 1))
        forced, tokens = torch.zeros_like(drafts, dtype=torch.bool), drafts
        if known:
            must = torch.cat([one[:, :1] for one in known], 1)
            forced, tokens = must > 0, torch.where(must > 0, must - 1, drafts)
        as_found = (tokens == drafts).to(torch.int64).cumprod(1) > 0
        there = forced | (as_found & (real > self._drafts))
        may_come = (ahead[:, 1:] > 0) | (ahead[:, :1] == 0)
        going = (there & may_come).to(torch.int64).cumprod(1)
        ahead[:, 1:].mul_(going)
        drafts.copy_(tokens)
        return going.sum(1, keepdim=True), forced

    def move(self, source: int, target: int) -> None:
        self._held[target] = self._held[source]

    def tensors(self) -> Iterable[Tensor]:
        own = self._state, self._taken, self._columns, self._lasts, self._ends, self._may_end
        return (*own, self._ahead, self._thoughts, self._bounds, self._rooms, self._made)

    def memory(self) -> int:
        return 0 if self._arena is None else self._arena.memory()

    def _close(self, here: slice, state: Tensor, made: Tensor) -> Tensor:
        """The states (n, 1) that replace others, after so many tokens, at the bounds of thoughts. Host sync: none."""
        assert self._arena is not None  # tells mypy
        column = self._columns[here].gather(1, _STAYS + (made >= self._bounds[here]).sum(1, keepdim=True))
        return self._arena.table.index_select(0, (state + column).view(-1)).view(-1, 1)

    def _lasts_at(self, rows: slice, states: Tensor, made: Tensor) -> Tensor:
        """How many tokens may come before the last one, at places (n, places) after so many tokens.

        The limit of an answer moves on with its thought. Host sync: none.
        """
        entries, bodies = self._thoughts[rows].tensor_split(2, 1)
        moved = made + self._rooms[rows] - (states < entries).to(torch.int64)
        lasts = torch.maximum(self._lasts[rows], moved * (states < bodies))
        return lasts if states.shape[1] == 1 else lasts.cummax(1).values

    def _states(self, here: Here) -> Tensor:
        """The states of the rows or places `here`: (n, 1)."""
        return self._state[here] if isinstance(here, slice) else self._ahead[here.rows, : here.width].reshape(-1, 1)

    def _records(self, here: Here) -> Tensor:
        """The first numbers of the states' records, without their next states: (n, numbers)."""
        assert self._arena is not None  # tells mypy
        state = self._states(here)
        return self._arena.table.index_select(0, (state + self._numbers).view(-1)).view(len(state), -1)

    def _masked(self, logits: Tensor, row: Tensor, here: Here, own: Tensor, wanted: Tensor | None = None) -> Tensor:
        """The logits (n, vocab) of tokens that the arena's rows `row` (n, 1) allow, see `allow`.

        The tokens that end a text get the logits `own`, (n, ends); if no other token is allowed, only the first of them
        is.
        """
        assert self._arena is not None and self._bias is not None  # tells mypy
        masked = allow(logits, self._arena.rows.index_select(0, row.view(-1)), self._bias, wanted)
        ends = lines(self._ends, here)
        if self._marks or (self._thinks and not self._on_cpu):
            mark = self._arena.table.index_select(0, (self._states(here) + FORCED).view(-1)).view(-1, 1)
            ends = torch.where((row == NOTHING) & (mark > 0), mark.to(torch.int64) - 1, ends)
        only = 0.0 if ends.shape[1] == 1 else torch.where(ends == ends[:, :1], 0.0, -math.inf)
        return masked.scatter_(1, ends, torch.where(row == NOTHING, only, own).to(masked.dtype))

    def _after(self, here: Here, token_ids: Tensor, rows: Tensor | None) -> Tensor:
        """The states (m,) after tokens (m,), each from the state of its row."""
        state, columns = self._states(here).squeeze(1), lines(self._columns, here)
        if rows is not None:
            state, columns = state.index_select(0, rows), columns.index_select(0, rows)
        return self._walk(state, columns, token_ids)

    def _walk(self, state: Tensor, columns: Tensor, token_ids: Tensor) -> Tensor:
        """The states (m,) after tokens (m,): their bytes are walked, with the columns (m, 257) of their rows."""
        assert self._arena is not None  # tells mypy
        table = self._arena.table
        spelled = self._bytes.index_select(0, token_ids.clamp(0, len(self._bytes) - 1)).long()
        for column in columns.gather(1, spelled).unbind(1):
            state = table.index_select(0, state + column)
        return state

    def _make_tables(self, automaton: TokenAutomaton) -> Arena:
        """Make the tensors that all constraints share; they are made for the first, and all have one vocabulary."""
        self._arena = Arena(automaton.row_bytes, self._device)
        self._bytes = automaton.vocabulary.on(self._device).bytes
        self._bias = bias_table(self._device)
        self._numbers = torch.arange(WORST + 1, dtype=torch.int32, device=self._device)
        self._forced = torch.arange(FORCED, LEADS, dtype=torch.int32, device=self._device)
        self._columns = torch.zeros((self._count, 259), dtype=torch.int32, device=self._device)
        return self._arena

    def _widen(self, ends: int) -> None:
        """Make room for this many tokens that end a text, in powers of two; rows with fewer repeat their first one."""
        if ends > self._ends.shape[1]:
            wider = 1 << (ends - 1).bit_length()
            self._ends = torch.cat((self._ends, self._ends[:, :1].expand(-1, wider - self._ends.shape[1])), 1)
            self._version += 1


class _Views(NamedTuple):
    """On a CPU: the memory of the stage's tensors of the same names, flat, which the host reads and writes far sooner
    so."""

    state: memoryview
    taken: memoryview
    may_end: memoryview
    lasts: memoryview
    made: memoryview
    rooms: memoryview
    thoughts: memoryview
    bounds: memoryview


def _closed(arena: Arena, automaton: TokenAutomaton, record: int, made: int, near: int, bound: int) -> int:
    """On a CPU: the record that replaces another one after so many tokens."""
    if not record or made < near:
        return record
    return arena.record(automaton, automaton.closed(arena.state(automaton, record), made, near, bound))


def _repeated(ends: Sequence[int], width: int) -> list[int]:
    return [*ends, *[ends[0]] * (width - len(ends))]


def _columns(automaton: TokenAutomaton | None) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """The places in a record of the next state after each byte, then of the state after no byte, and of those that
    replace it near to the bound of a thought and at the bound: (259,)."""
    if automaton is None:
        return np.zeros(259, np.int32)
    behind = [ITSELF] * 3
    if automaton.jumps is not None:
        behind[1:] = [FIRST_CLASS + automaton.table.next.shape[1] + place for place in range(2)]
    return np.append(automaton.table.classes.astype(np.int32) + FIRST_CLASS, np.array(behind, np.int32))


@dataclass(frozen=True)
class _Begun:
    """What the stage keeps of a text that may have a thought; the attributes are named as the stage's tables."""

    thoughts: tuple[int, int] = (0, 0)
    bounds: tuple[int, int] = (_FAR, _FAR)
    room: int = 0
    last: int | None = None


def _begun(arena: Arena, thinking: Thinking, limit: int, made: Sequence[int]) -> tuple[int, _Begun]:
    """The state of a text that may have a thought, after the tokens that it has."""
    automaton, walker = thinking.automaton, thinking.walker()
    for token_id in made:
        walker.push(token_id)
    bounds = bounds_of(thinking.most)
    if automaton.free:
        return walker.now, _Begun(bounds=bounds, last=_FAR)
    ends = arena.record(automaton, automaton.entries + 1), arena.record(automaton, automaton.bodies + 1)
    if thinking.room is None:
        return walker.now, _Begun(ends, bounds, last=limit - 1)
    return walker.now, _Begun(ends, bounds, thinking.room, walker.last)
