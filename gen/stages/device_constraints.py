"""Holds each row to its constraint: an automaton's state masks tokens, and the chosen token leads to the next state.

Everything is on the device and has static shapes; on a CPU the host walks between two steps, which is faster there. A
state has three rows of allowed tokens, packed as bits. The first has all tokens that the type allows, and is the only
one that counts while there is room. If a text may be short of room, the other two say which tokens surely leave enough,
so that the text can always be ended in time.

Example: the text so far is `{"ok": tr`, and 2 tokens are left. If `ue}` and `ue` are tokens, they may follow, because
at most 1 more token ends the text. If `e}` is no token, `u` may not follow: it would need both `e` and `}`.
"""

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from gen.constraints.tables.arena import FIRST_CLASS, FORCED, FORCED_NEXT, ITSELF, NEEDED, NOTHING, WORST, Arena
from gen.constraints.tables.masks import allow, bias_table
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.devices import to_device
from gen.requests.processors import LogitsProcessor
from gen.requests.request import Request
from gen.stages.ahead import Ahead
from gen.stages.places import Here, lines
from gen.stages.room import Room

_FAR = 2**62  # more tokens than any row has


class DeviceConstraints:
    """The last of the stages, so that no stage allows again what it forbids.

    If only the end of the text can come, only the first of the tokens that end it is allowed, with probability 1,
    whatever earlier stages did to its logit. Rows without a constraint, and rows whose text has ended, are left as they
    are.
    """

    failing: Sequence[LogitsProcessor] = ()  # no functions of users run here
    replayable = takes_places = True
    looks_back = False

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device, self.forces = count, device, False
        self._held: list[TokenAutomaton | None] = [None] * count
        self._used = False
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
        self._may_end, self._goes_on = row(1, torch.bool), row(1, torch.bool)

    def begin(self) -> None:
        self._used = False
        self._held = [None] * self._count

    def key(self) -> Hashable:
        return (self._version, self._arena.version) if self._used and self._arena is not None else None

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        """See `gen.stages.stage.Stage.admit`. Host sync: none for constraints that have been placed."""
        asked = [None if request.constraint is None else request.constraint.automaton for request in requests]
        constrained = [automaton for automaton in asked if automaton is not None]
        if not self._used and not constrained:
            return
        arena = self._arena or self._make_tables(constrained[0])
        if not self._used:
            self._used = True
            self._state.zero_()
            self._may_end.fill_(True)
            self._lasts.fill_(_FAR)  # rows without a constraint are never short of room
        self._widen(max(len(request.ends) for request in requests))
        if self._on_cpu:
            self._ahead[rows] = 0  # these were states of another automaton
        each = (rows.stop - rows.start) // len(requests)
        self._held[rows] = [automaton for automaton in asked for _ in range(each)]
        states = []
        for request, automaton, read in zip(requests, asked, tokens, strict=True):
            if automaton is None:
                states.append(0)
            else:
                arena.place(automaton, self._held)
                if self.forces and not self._on_cpu:  # on a CPU the host finds the tokens that must come
                    arena.force(automaton)
                states.append(arena.record(automaton, automaton.follow(read[len(request.prompt_ids) :])))
        width = self._ends.shape[1]
        may_end = [[not held or bool(request.eos_token_ids)] for request, held in zip(requests, asked, strict=True)]
        tables = (
            (self._state, [[state] for state in states]),
            (self._taken, [[-1] for _ in requests]),
            (self._lasts, [[request.limit - 1] for request in requests]),
            (self._may_end, may_end),
            (self._ends, [_repeated(request.ends or (0,), width) for request in requests]),
            (self._columns, np.stack([_columns(automaton) for automaton in asked])),
        )
        for table, values in tables:
            given = torch.as_tensor(values, dtype=table.dtype, device="cpu")
            table[rows] = to_device(given, self._device).repeat_interleave(each, 0)

    def prepare(self, here: slice) -> None:
        """See `gen.stages.stage.Follower.prepare`: on a CPU the host walks to the next states, in a tenth of the time
        that torch would take, and makes rows of allowed tokens when they are needed."""
        if not self._on_cpu or self._arena is None:
            return
        for automaton, state in zip(self._held[here], self._walk_on(here, self._arena), strict=True):
            if automaton is not None and state:
                self._arena.fill(automaton, state, self._held)

    def _walk_on(self, here: slice, arena: Arena) -> list[int]:
        """On a CPU: let the host walk with the tokens that the rows have taken; return the states of the rows."""
        there = self._state[here], self._taken[here], self._goes_on[here]
        states, taken, goes_on = (one.flatten().tolist() for one in there)
        for row, automaton in enumerate(self._held[here]):
            if automaton is not None and states[row] and taken[row] >= 0:
                states[row] = arena.after(automaton, states[row], taken[row]) if goes_on[row] else 0
        there[0].numpy()[:, 0] = states
        there[1].fill_(-1)
        return states

    def prepare_places(self, here: slice, width: int) -> None:
        if not self._on_cpu or self._arena is None:
            return
        for automaton, states in zip(self._held[here], self._ahead[here, :width].tolist(), strict=True):
            for state in states:
                if automaton is not None and state:
                    self._arena.fill(automaton, state, self._held)

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """See `gen.stages.stage.Stage`; (n, vocab), float32 for logits in half precision. Host sync: none."""
        assert self._arena is not None  # tells mypy
        if isinstance(here, slice):
            torch.lt(generated, self._lasts[here], out=self._goes_on[here])
        record = self._records(here)
        may_end = lines(self._may_end, here) & (record[:, NEEDED : NEEDED + 1] == 0)
        own = torch.where(may_end, logits.gather(1, lines(self._ends, here)), -math.inf)
        return self._masked(logits, record[:, :1], here, own)

    def room(self, masked: Tensor, here: Here, generated: Tensor, squeezed: Tensor) -> Room:
        """See `gen.stages.stage.Limiter.room`. Host sync: none."""
        after = lines(self._lasts, here) - generated  # how many tokens may come after the next one
        record = self._records(here)
        kind = (after < record[:, WORST : WORST + 1]).long() + (after < record[:, NEEDED : NEEDED + 1])
        row = record.gather(1, kind)

        def narrow(wanted: Tensor | None) -> Tensor:
            return self._masked(masked, row, here, masked.gather(1, lines(self._ends, here)), wanted)

        def fits(token_ids: Tensor, rows: Tensor | None) -> Tensor:
            assert self._arena is not None  # tells mypy
            needed = self._arena.table.index_select(0, self._after(here, token_ids, rows) + NEEDED)
            return needed <= (after if rows is None else after.index_select(0, rows)).squeeze(1)

        return Room(narrow, squeezed, fits)

    def chosen(self, here: slice, token_ids: Tensor, ancestors: Tensor | None) -> None:
        """See `gen.stages.stage.Follower.chosen`. Host sync: none."""
        if self._on_cpu:
            if ancestors is not None:
                self._state[here] = self._state[here].index_select(0, ancestors)
            self._taken[here] = token_ids
            return
        state = self._after(here, token_ids.squeeze(1), ancestors)
        self._state[here] = state.unsqueeze(1) * self._goes_on[here]

    def ahead(self, row: int, drafts: int) -> Ahead | None:
        assert self._arena is not None  # tells mypy
        self._walk_on(slice(row, row + 1), self._arena)
        automaton, records = self._held[row], self._records_ahead(1 + drafts).numpy()[row]
        records[0] = self._state.numpy()[row, 0]
        if automaton is None or not records[0]:
            records[1:] = 0
            return None
        return Ahead(self._arena, automaton, records)

    def _records_ahead(self, places: int) -> Tensor:
        """The states before each place, (rows, places); made when they are first needed."""
        if not self._ahead.shape[1]:
            self._ahead = torch.zeros((self._count, places), dtype=torch.int32, device=self._device)
            self._drafts = torch.arange(places - 1, device=self._device)
        return self._ahead

    def draft(self, here: slice, feed: Tensor, real: Tensor, *, walks: bool) -> tuple[Tensor, Tensor]:
        """See `gen.stages.stage.Drafter.draft`: a token that the automaton forces replaces the draft that was found."""
        assert self._arena is not None  # tells mypy
        table, columns, drafts = self._arena.table, self._columns[here], feed[:, 1:]
        ahead, known = self._records_ahead(feed.shape[1])[here], list[Tensor]()
        ahead[:, :1] = self._state[here]
        nowhere = torch.zeros_like(ahead[:, :1])
        for place in range(drafts.shape[1]):  # states after the first draft that cannot come mean nothing
            state, after = ahead[:, place : place + 1], ahead[:, place + 1 : place + 2]
            walked = self._walk(state.squeeze(1), columns, drafts[:, place]).unsqueeze(1) if walks else nowhere
            if self.forces:
                known.append(table.index_select(0, (state + self._forced).view(-1)).view(-1, 2))
                torch.where(known[-1][:, :1] > 0, known[-1][:, 1:], walked, out=after)
            else:
                after.copy_(walked)
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

    def go_on(self, here: slice, token_ids: Tensor, counts: Tensor, generated: Tensor) -> None:
        """See `gen.stages.stage.Drafter.go_on`. Host sync: none."""
        before, goes_on = self._ahead[here].gather(1, counts - 1), generated < self._lasts[here]
        if self._on_cpu:
            self._state[here], self._taken[here], self._goes_on[here] = before, token_ids, goes_on
            return
        state = self._walk(before.squeeze(1), self._columns[here], token_ids.squeeze(1)).unsqueeze(1)
        self._state[here] = state * goes_on

    def move(self, source: int, target: int) -> None:
        self._held[target] = self._held[source]

    def tensors(self) -> Iterable[Tensor]:
        own = self._state, self._taken, self._columns, self._lasts, self._ends, self._may_end, self._goes_on
        return (*own, self._ahead)

    def memory(self) -> int:
        return 0 if self._arena is None else self._arena.memory()

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
        self._forced = torch.arange(FORCED, FORCED_NEXT + 1, dtype=torch.int32, device=self._device)
        self._columns = torch.zeros((self._count, 257), dtype=torch.int32, device=self._device)
        return self._arena

    def _widen(self, ends: int) -> None:
        """Make room for this many tokens that end a text, in powers of two; rows with fewer repeat their first one."""
        if ends > self._ends.shape[1]:
            wider = 1 << (ends - 1).bit_length()
            self._ends = torch.cat((self._ends, self._ends[:, :1].expand(-1, wider - self._ends.shape[1])), 1)
            self._version += 1


def _repeated(ends: Sequence[int], width: int) -> list[int]:
    return [*ends, *[ends[0]] * (width - len(ends))]


def _columns(automaton: TokenAutomaton | None) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """The places in a record of the next state after each byte, and last of the state after no byte: (257,)."""
    if automaton is None:
        return np.zeros(257, np.int32)
    return np.append(automaton.table.classes.astype(np.int32) + FIRST_CLASS, np.int32(ITSELF))
