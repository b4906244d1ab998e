"""Stop strings and stop regexes, found in text that arrives in pieces."""

from collections.abc import Sequence

from gen.constraints.automata.searching import Search, begun_at_end
from gen.requests.settings import Stop


class StopStrings:
    """Passes text on up to the first stop, however the text is cut into pieces.

    The first stop is the one that ends first; a regex ends as soon as it matches in the text so far. Of stops that end
    at the same place, the longest counts. Text that may become part of a stop is held back until that is decided. The
    hidden text of special tokens is searched too, but it is only passed on as part of a stop.

    Args:
        include: whether the stop that was found is passed on too.

    Attributes:
        found: whether a stop has come; all later text is dropped.
        stop: the stop that has come, a regex as its pattern; None before.
    """

    def __init__(self, stops: Sequence[Stop], *, include: bool = False) -> None:
        self._strings = [stop for stop in stops if isinstance(stop, str)]
        self._searches = [(stop, stop.start()) for stop in stops if isinstance(stop, Search)]
        self._include = include
        self._text = ""
        self._at = 0  # where the held text begins
        self._hidden: tuple[tuple[int, int], ...] = ()  # from where to where text is not shown
        self.found = False
        self.stop: str | None = None

    def push(self, piece: str, *, hidden: bool = False, unfinished: str = "") -> str:
        """Take more text; return what is certain to come before any stop.

        Args:
            unfinished: what shows of a character that hidden text interrupts. It is passed on before a stop that has
                no other text in it; later, its rest may come.
        """
        if self.found or not piece:
            return ""
        before = len(self._text)
        self._text += piece
        if hidden:
            self._hidden = (*self._hidden, (before, len(self._text)))
        if spans := [*self._strings_found(before), *self._patterns_found(before)]:
            _, begin, minus_end, self.stop = min(spans)
            shown = len(self._text)  # where the last text ends that is not hidden
            for first, end in reversed(self._hidden):
                shown = first if end == shown else shown
            taken = self._take(begin) + (unfinished if begin >= shown else "")
            taken += self._text[begin:-minus_end] if self._include else ""
            self.found, self._at = True, len(self._text)
            return taken
        return self._take(self._undecided())

    def flush(self) -> str:
        """The held text, when no more will come."""
        return self._take(len(self._text))

    def _strings_found(self, before: int) -> list[tuple[int, int, int, str]]:
        """For each stop string that ends behind `before`: the length of the text up to its end, its start, minus its
        end, itself.
        """
        firsts = [(max(self._at, before + 1 - len(stop)), stop) for stop in self._strings]
        places = [(self._text.find(stop, first), stop) for first, stop in firsts]
        return [(at + len(stop), at, -at - len(stop), stop) for at, stop in places if at >= 0]

    def _patterns_found(self, before: int) -> list[tuple[int, int, int, str]]:
        """As `_strings_found`, for each regex: in the shortest text, longer than `before`, in which it matches."""
        searches, self._searches, spans = self._searches, [], []
        for search, threads in searches:
            threads, found = search.read(threads, self._text, before)
            self._searches.append((search, threads))
            if found is not None:
                spans.append((found.shown, found.begin, -found.end, search.pattern))
        return spans

    def _undecided(self) -> int:
        """Where the text begins that may still become part of a stop."""
        place = end = len(self._text)
        for stop in self._strings:
            place = min(place, end - begun_at_end(self._text, stop, self._at))
        for _, threads in self._searches:
            place = min(place, next(iter(threads.values()), end))
        return place

    def _take(self, end: int) -> str:
        """The held text up to `end`, without hidden characters."""
        taken = ""
        for begin, until in self._hidden:
            taken += self._text[self._at : min(begin, end)]
            self._at = max(self._at, min(until, end))
        taken += self._text[self._at : end]
        self._at = end
        self._hidden = tuple(one for one in self._hidden if one[1] > end)
        return taken
