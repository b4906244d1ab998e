"""Stop strings, found in text that arrives in pieces."""

from collections.abc import Sequence, Set
from itertools import compress

from gen.arguments import check_text
from gen.errors import ArgumentError, show


class StopStrings:
    """Passes text on up to the first stop string, however the text is cut into pieces.

    The first is the one that ends first; of those that end together, the longest. Text that may yet become a stop
    string is held back until that is decided. Hidden text, that of special tokens, is looked at and never passed on.

    Attributes:
        found: whether a stop string has come; all later text is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._shown: list[bool] = []  # of each character that is held
        self.found = False

    def push(self, piece: str, *, hidden: bool = False) -> str:
        """Take more text; return what is certain to come before any stop string."""
        if self.found or not piece:
            return ""
        self._held += piece
        self._shown = self._shown + [not hidden] * len(piece)  # a new list: a fork of the text may have the old one
        text = self._held
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in text]
        if ends:
            end, minus_length = min(ends)
            before = self._take(end + minus_length)
            self.found, self._held = True, ""
            return before
        return self._take(len(text) - max((self._overlap(text, stop) for stop in self._stops), default=0))

    def flush(self) -> str:
        """The held text, once no more will come."""
        return self._take(len(self._held))

    def _take(self, count: int) -> str:
        """The first characters of what is held, without the hidden ones."""
        taken = "".join(compress(self._held[:count], self._shown))
        self._held, self._shown = self._held[count:], self._shown[count:]
        return taken

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How many last characters of the text are the first ones of a stop string."""
        longest = min(len(stop) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def read_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings as a tuple.

    Raises:
        ArgumentError: one is empty, not a string, or has a lone surrogate.
    """
    given = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(given, Sequence | Set) or isinstance(given, bytes | bytearray | memoryview):
        raise ArgumentError(f"stop must be a string or a list of strings, got {show(stop)}")
    stops = tuple(given)
    for number, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            raise ArgumentError(f"stop takes strings of at least one character, got {show(text)}")
        check_text(f"stop string {number}", text)
    return stops
