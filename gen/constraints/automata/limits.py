"""What an automaton may cost, and the three reasons why there may be none."""

import time

MAX_STATES = 30_000
SECONDS = 1.0


class Unsupported(Exception):
    """No engine can say this. The message names keyword and path."""


class TooLarge(Exception):
    """The automaton has too many states, or takes too long to make; another engine may do."""


class Empty(Exception):
    """No text at all meets the constraint: an error, never a reason to fall back."""


def deadline_in(seconds: float = SECONDS) -> float:
    """`seconds` from now, in CPU time of this thread: other load on the machine changes no result."""
    return time.thread_time() + seconds


def check_deadline(deadline: float, what: str = "making the automaton") -> None:
    """Raise TooLarge if the deadline is over."""
    if time.thread_time() > deadline:
        raise TooLarge(f"{what} takes too long")
