"""Stop strings, found in text that arrives in pieces."""

from collections.abc import Sequence

from gen.errors import ArgumentError


class StopStrings:
    """Passes text on up to the first stop string, however the text is cut into pieces.

    The first is the one that ends first; of those that end together, the longest. Text that may yet become a stop
    string is held back until that is decided.

    Attributes:
        found: whether a stop string has come; all later text is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """Take more text; return what is certain to come before any stop string."""
        if self.found:
            return ""
        text = self._held + piece
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in text]
        if ends:
            end, minus_length = min(ends)
            self.found, self._held = True, ""
            return text[: end + minus_length]
        held = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The held text, once no more will come."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How many last characters of the text are the first ones of a stop string."""
        longest = min(len(stop) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def read_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings as a tuple.

    Raises:
        ArgumentError: one is empty, or not a string.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ArgumentError(f"stop takes strings of at least one character, got {text!r}")
    return stops
