"""A thought before an answer on the host engine: an automaton follows the thought, llguidance the answer."""

from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from gen.constraints.composing.thoughts import ThoughtAutomaton, ThoughtWalker
from gen.constraints.host_engine import Grammar, is_complete, take
from gen.constraints.tables.token_automaton import TokenAutomaton

if TYPE_CHECKING:
    from llguidance import LLMatcher


class HostThoughtWalker(ThoughtWalker):
    """Follows one text: where a thought may begin, the answer's matcher follows the same tokens.

    Attributes:
        matcher: the answer's; None while no answer can have begun.

    Args:
        automaton: one after whose thoughts anything may come; or one whose texts end where the answer begins.
    """

    def __init__(self, automaton: ThoughtAutomaton, most: int, room: int | None, grammar: Grammar) -> None:
        super().__init__(automaton, most, room)
        self._grammar = grammar
        self.matcher: LLMatcher | None = grammar.matcher() if self._may_answer(self.state) else None

    @property
    def complete(self) -> bool:
        return not self.state and self.matcher is not None and is_complete(self.matcher)

    @property
    def full(self) -> bool:
        return self.matcher is not None and super().full  # else the tokens are those of a mark

    @property
    def only(self) -> int | None:
        """The token that alone may come next; None where others may."""
        return self._automaton.only.get(self.now)

    def allowed(self) -> npt.NDArray[np.uint8] | None:
        """The tokens with which a thought may go on, as bits, the lowest first; None where none does."""
        if not self.state:
            return None
        rows, _ = TokenAutomaton.rows(self._automaton, int(self._automaton.group_of[self.now]))
        return rows[0]

    def _may_answer(self, state: int) -> bool:
        """Whether the answer begins in a state."""
        return 0 < state <= self._automaton.entries if self._automaton.free else self._automaton.is_complete(state)

    def push(self, token_id: int) -> bool:
        if not self.state:
            self._made += 1
            return self._take(token_id)
        self._go_on(token_id)
        if self._may_answer(self.state):
            self.matcher = self._grammar.matcher()
            self.state = self.state if self._automaton.free else 0
            return True
        if 0 < self.state <= self._automaton.bodies:
            self.matcher = None
            return True
        return self._take(token_id) or self.state != 0

    def _take(self, token_id: int) -> bool:
        """Let the answer's matcher follow a token; it goes where it cannot, unless it has failed itself."""
        matcher = self.matcher
        if matcher is None:
            return False
        if take(matcher, token_id):
            return True
        if self.state:
            self.matcher = None
        return False

    def short(self, left: int, ahead: int) -> bool:
        return left <= 1

    def problem(self) -> str:
        return "" if self.matcher is None else self._grammar.walker(self.matcher).problem()

    def copy(self) -> Self:
        other = super().copy()
        other.matcher = None if self.matcher is None else self.matcher.deep_copy()
        return other
