"""Goes ahead of a text on the host, on a CPU: says which tokens its type allows before they are chosen."""

from collections.abc import Callable, Iterable

from gen.constraints.automata.arrays import Ints
from gen.constraints.tables.arena import Arena
from gen.constraints.tables.guesses import Guess
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import Encode


class Ahead:
    """A text under an automaton, followed from its present state.

    Args:
        records: (1 + drafts,) int32, a row of the stage's table: first the record of the text's state. The records of
            the next states are written here, 0 for those that are not reached.
        closed: (record, place) -> the record that replaces it at a place, at the bound of a thought.
    """

    def __init__(
        self, arena: Arena, automaton: TokenAutomaton, records: Ints, closed: Callable[[int, int], int]
    ) -> None:
        self._arena, self._automaton, self._records, self._closed = arena, automaton, records, closed
        self._records[1:] = 0
        self._state, self._place = arena.state(automaton, int(records[0])), 0

    def guess(self) -> Guess:
        """What may come next."""
        return self._automaton.guesses.of(self._state)

    def encoder(self) -> Encode | None:
        """A function that gives a text's tokens; None if the tokenizer is gone."""
        return self._automaton.vocabulary.encoder()

    def spelled(self, token_id: int) -> bytes:
        """How a token is spelled; empty if it spells nothing."""
        tokens = self._automaton.vocabulary.tokens
        return tokens[token_id] if token_id < len(tokens) else b""

    def letters(self, wanted: Iterable[int]) -> list[int]:
        """The bytes of `wanted` that may come next."""
        table = self._automaton.table
        return [byte for byte in wanted if table.next[self._state, table.classes[byte]]]

    def may_be(self, word: bytes) -> bool:
        """Whether these bytes may come next, and a part of the text may end after them."""
        return self._automaton.guesses.of(self._automaton.walk(self._state, word)).token >= 0

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next."""
        return self._after(token_id) > 0

    def go(self, token_id: int) -> bool:
        """Go on with a token, if the type allows it; whether it does."""
        after = self._after(token_id)
        if after:
            self._place += 1
            record = self._closed(self._arena.record(self._automaton, after), self._place)
            self._records[self._place], self._state = record, self._arena.state(self._automaton, record)
        return after > 0

    def _after(self, token_id: int) -> int:
        guess = self.guess()
        return guess.after if guess.token == token_id else self._automaton.next_state(self._state, token_id)
