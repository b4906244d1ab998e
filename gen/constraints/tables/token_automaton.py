"""An automaton with a vocabulary: which tokens each state allows, and which of them leave enough tokens to end.

Example, the texts "yes" and "no, never"; the tokens are single letters, and "es". The automaton has 11 states, and 2
tokens certainly suffice; after "y" the tokens "e" and "es" are allowed, with one token left only "es".
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from gen.constraints.automata.arrays import Ints
from gen.constraints.automata.dfa import FAR, Table
from gen.constraints.automata.limits import Empty
from gen.constraints.tables.device_rows import Placed, placed
from gen.constraints.tables.groups import groups_of
from gen.constraints.tables.guesses import Guesses
from gen.constraints.tables.host_rows import HostRows
from gen.constraints.tables.tokens_needed import closable, most_needed
from gen.constraints.tables.vocabulary import Vocabulary
from gen.runtime.forking import new_lock


@dataclass(frozen=True)
class Found:
    """The costly part of making an automaton, as arrays that one process can send to another.

    Attributes:
        table, needed, group_of: as in `TokenAutomaton`.
        examples: (groups,), a state of each group.
    """

    table: Table
    needed: Ints
    group_of: Ints
    examples: Ints


class TokenAutomaton:
    """An automaton that reads tokens, for any number of texts, threads and devices.

    On a CPU rows are made when they are first needed, one group of states at a time; elsewhere all of them at once, on
    the device.

    Attributes:
        table: the automaton, without what the vocabulary cannot spell.
        needed: (states + 1,), how many tokens certainly suffice from each state.
        states: how many there are, without the dead one.
        least_tokens: how many tokens certainly suffice for a text.
        most_tokens: how many tokens certainly suffice from any state.
        group_of: (states + 1,), the group of each state, whose states share their rows.
        start: the state at the beginning of a text.
        jumps: (states + 1, 2), for an automaton of thoughts, see `ThoughtAutomaton`; None for others.
        only: the token that alone may come in a state, for an automaton of thoughts.
        bodies: how many of the first states are within a thought.
        leads: (states + 1,), as `needed`, but 0 for these: a token that leads there takes none of the text's room.
        nbytes: how many bytes it holds now, on all devices.

    Args:
        table: the automaton; or what was found before, for the same vocabulary.
    Raises:
        Empty: no text can be spelled.
    """

    start = 1
    bodies = 0
    jumps: Ints | None = None
    only: Mapping[int, int] = MappingProxyType({})

    def __init__(self, table: Table | Found, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.found = table if isinstance(table, Found) else _found(table, vocabulary)
        self.table, self.needed = self.found.table, self.found.needed
        self.group_of, self._examples = self.found.group_of, self.found.examples
        self.leads = self.needed.copy()
        self.leads[: 1 + self.bodies] = 0
        self.row_bytes = -(-vocabulary.size // 8)
        self.nbytes = self.table.next.nbytes + self.needed.nbytes + self.group_of.nbytes
        self.states = len(self.table.next) - 1
        self.least_tokens = int(self.needed[1])
        self.most_tokens = int(self.needed[self.needed < FAR].max())
        self._next = np.ascontiguousarray(self.table.next).ravel().data
        self._classes = self.table.classes.tolist()
        complete = self.table.final.copy()
        complete[self.table.edges[:, 0] + 1] = False
        self._complete = complete.tobytes()
        self._lock = new_lock()  # for what is made when it is first needed:
        self._rows: dict[int, tuple[list[npt.NDArray[np.uint8]], int]] = {}
        self._known_rows: dict[bytes, npt.NDArray[np.uint8]] = {}
        self._host_rows: HostRows | None = None
        self._placed: dict[torch.device, Placed] = {}
        self._most: Ints | None = None
        self.after_thoughts: dict[Hashable, TokenAutomaton] = {}
        """Its texts after thoughts, see `ThoughtAutomaton`, by how these are marked."""

    def next_state(self, state: int, token_id: int) -> int:
        """The state after a token; 0 where it is not allowed. A token that spells nothing is never allowed."""
        spelled = self.vocabulary.tokens[token_id]
        return self.walk(state, spelled) if spelled else 0

    def follow(self, token_ids: Iterable[int]) -> int:
        """The state after tokens from the start; 0 where one of them is not allowed."""
        state = 1
        for token_id in token_ids:
            state = self.next_state(state, token_id)
        return state

    def closed(self, state: int, made: int, near: int, bound: int) -> int:
        """The state that replaces another one after `made` tokens, at the bound of a thought or near to it."""
        return state if made < near or self.jumps is None else int(self.jumps[state, int(made >= bound)])

    def most_after(self, state: int) -> int:
        """How many tokens certainly suffice from a state, and from all that can be reached from it."""
        if self._most is None:
            with self._lock:
                self._most = most_needed(self.table, self.needed)
        return int(self._most[state])

    def worst(self, state: int) -> int:
        """How many tokens certainly suffice after any token that a state allows; computed on the CPU, like `rows`."""
        return int(self.needed[state]) + self.rows(int(self.group_of[state]))[1]

    def is_complete(self, state: int) -> bool:
        """Whether a text is whole in a state and nothing can follow."""
        return self._complete[state] != 0

    @cached_property
    def guesses(self) -> Guesses:
        """The guesses of what may come in each state."""
        return Guesses(self)

    def accepts(self, text: bytes) -> bool:
        """Whether the automaton accepts a whole text."""
        return bool(self.table.final[self.walk(1, text)])

    def walk(self, state: int, data: bytes) -> int:
        """The state after some bytes; 0 where they cannot follow."""
        width = self.table.next.shape[1]
        for byte in data:
            state = self._next[state * width + self._classes[byte]]
        return state

    def rows(self, group: int) -> tuple[list[npt.NDArray[np.uint8]], int]:
        """The three rows of a group's states, each (bytes,) uint8, equal ones kept once, and by how much an allowed
        token may raise the tokens needed; made on the CPU at the first call, which goes through all tokens.
        """
        with self._lock:
            made = self._rows.get(group)
            if made is None:
                if self._host_rows is None:
                    self._host_rows = HostRows(self.table, self.needed, self.leads, self.vocabulary)
                    self.nbytes += self._host_rows.nbytes
                kinds, raised = self._host_rows.of(int(self._examples[group]))
                known = len(self._known_rows)
                rows = [self._known_rows.setdefault(row.tobytes(), row) for row in kinds]
                self.nbytes += (len(self._known_rows) - known) * self.row_bytes
                made = self._rows[group] = rows, raised
            return made

    def place(self, device: torch.device) -> Placed:
        """The automaton on a device, made once; on a CPU without its rows.

        Raises:
            TooLarge: on another device, its distinct rows have more than 64 MB.
        Host sync: one when it is made on another device, to count the distinct rows.
        """
        with self._lock:
            if device not in self._placed:
                with torch.inference_mode(False):
                    needed = self.needed, self.leads
                    self._placed[device] = placed(
                        self.table, *needed, self.group_of, self._examples, self.vocabulary, device
                    )
                self.nbytes += sum(tensor.nbytes for tensor in vars(self._placed[device]).values())
            return self._placed[device]


def _found(table: Table, vocabulary: Vocabulary) -> Found:
    table, needed = closable(table, vocabulary)
    if needed[1] >= FAR:
        raise Empty("the vocabulary has no tokens that spell such a text")
    return Found(table, needed, *groups_of(table, needed, vocabulary.longest))
