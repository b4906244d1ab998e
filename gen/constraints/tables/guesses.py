"""Guesses for drafts: in each state, the token that best spells what is forced, or what ends a part of the text.

Example: after `{"name": "Ada"` only `, "age": ` can come. The tokenizer would write `,` as its first token and ` "` as
the next one. After `{"name": "Ad` much can come, but only a quotation mark ends the name; then `", "age": ` would come,
whose first token is `",`. They are guesses, since other tokens can spell the same.
"""

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gen.constraints.automata.arrays import Ints

if TYPE_CHECKING:
    from gen.constraints.tables.token_automaton import TokenAutomaton
    from gen.constraints.tables.vocabulary import Vocabulary

_MOST_BYTES = 48  # of what must come, at most this many are looked at
_SIGNS = b"\"'`,;:.!?()[]{}<>|/ \t\n"  # signs that end a part of a text; after a letter or a digit, it likely goes on


class Guess(NamedTuple):
    """What may come in a state.

    Attributes:
        token: -1 for none.
        after: the state after it.
        forced: whether no other bytes can come; otherwise the token ends a part of the text.
    """

    token: int
    after: int
    forced: bool


_NOTHING = Guess(-1, 0, False)


class Guesses:
    """The guesses in the states of an automaton, each made when it is first needed."""

    def __init__(self, automaton: "TokenAutomaton") -> None:
        self._automaton, table = automaton, automaton.table
        of_class: list[list[int]] = [[] for _ in range(table.next.shape[1])]
        for byte, number in enumerate(table.classes.tolist()):
            of_class[number].append(byte)
        live = table.next > 0
        forced = ((live * np.array([*map(len, of_class)])).sum(1) == 1) & ~table.final
        forced[0] = False
        self._forced: list[bool] = forced.tolist()
        ends = forced | (table.final & ~live.any(1))
        signs = np.array([sum(byte in _SIGNS for byte in bytes_) for bytes_ in of_class])
        ending = live & ends[table.next] & (signs > 0)
        one_ends = ((ending * signs).sum(1) == 1) & ~forced
        class_on = np.where(forced, live.argmax(1), np.where(one_ends, ending.argmax(1), -1))
        self._class_on: list[int] = class_on.tolist()
        self._byte = [bytes_[0] if bytes_ else 0 for bytes_ in of_class]
        self._sign = [next((byte for byte in bytes_ if byte in _SIGNS), 0) for bytes_ in of_class]
        self._first_tokens: dict[bytes, int] = {}
        self._known: dict[int, Guess] = {}

    def of(self, state: int) -> Guess:
        """What may come in a state."""
        known = self._known.get(state)
        if known is None:
            known = self._known[state] = self._of(state)
        return known

    def set(self, state: int, guess: Guess) -> None:
        """Let this be what comes in a state."""
        self._known[state] = guess

    def first_token(self, text: bytes) -> int:
        """The token that best spells the beginning of some bytes; -1 for none."""
        token = self._first_tokens.get(text)
        if token is None:
            token = self._first_tokens[text] = self._first_token(text, self._automaton.vocabulary)
        return token

    def forced_tokens(self) -> tuple[Ints, Ints]:
        """For each state, the dead one first, the forced token, -1 for none, and the state after it."""
        found = [self.of(state) if forced else _NOTHING for state, forced in enumerate(self._forced)]
        return np.array([one.token for one in found], np.int32), np.array([one.after for one in found], np.int32)

    def _of(self, state: int) -> Guess:
        if not state or self._class_on[state] < 0:
            return _NOTHING
        forced, after, chain, at = self._forced[state], self._automaton.table.next, bytearray(), state
        if not forced:
            chain.append(self._sign[self._class_on[at]])
            at = int(after[at, self._class_on[at]])
        while self._forced[at] and len(chain) < _MOST_BYTES:
            chain.append(self._byte[self._class_on[at]])
            at = int(after[at, self._class_on[at]])
        token = self.first_token(bytes(chain))
        return _NOTHING if token < 0 else Guess(token, self._automaton.next_state(state, token), forced)

    def _first_token(self, text: bytes, vocabulary: "Vocabulary") -> int:
        """The tokenizer's own first token if it spells a beginning, else the longest token that does; -1 for none."""
        encode, tokens = vocabulary.encoder(), vocabulary.tokens
        if encode is not None:
            first = encode(text.decode(errors="ignore"))[:1]
            if first and first[0] < len(tokens) and tokens[first[0]] and text.startswith(tokens[first[0]]):
                return first[0]
        spelled = self._spelled
        return next(
            (spelled[text[:n]] for n in range(min(vocabulary.longest, len(text)), 0, -1) if text[:n] in spelled), -1
        )

    @cached_property
    def _spelled(self) -> dict[bytes, int]:
        """The first token of each spelling."""
        tokens = self._automaton.vocabulary.tokens
        return {text: number for number, text in reversed([*enumerate(tokens)]) if text}
