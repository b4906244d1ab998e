"""What an automaton may cost, and the three reasons why there may be none.

Work is counted, not timed: the same type has the same automaton, or none, on every machine and whatever was compiled
before.
"""

MAX_STATES = 200_000
MOST_WORK = 1_500_000
"""For one type, in edges that are looked at: one to two seconds."""

MOST_WORK_OF_A_CONSTANT = 100 * MOST_WORK
"""For what is the same in all types and made once: it must not fail, and counts for no type."""


class Unsupported(Exception):
    """No engine can say this. The message names keyword and path."""


class TooLarge(Exception):
    """The automaton has too many states, or takes too much work; another engine may do."""


class Empty(Exception):
    """No text at all meets the constraint: an error, never a reason to fall back."""


class Budget:
    """The work that is left for one type."""

    def __init__(self, work: int = MOST_WORK) -> None:
        self._work = self._left = work

    def renew(self) -> None:
        """Begin anew, with all work left."""
        self._left = self._work

    def spend(self, work: int, what: str = "making the automaton") -> None:
        """Count work. Raises TooLarge if more is asked for than is left."""
        self._left -= work
        if self._left < 0:
            raise TooLarge(f"{what} takes too much work")
