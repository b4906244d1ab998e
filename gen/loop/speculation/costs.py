"""What steps take by how many tokens of each row they read, as they run.

Example: a plain step takes 60 ms and has been recorded; one of 8 tokens has run twice and took 110 ms, but was not
recorded yet, when a plain one took 64 ms. Recorded it will take about 103 ms. It counts as 106.5 ms, the mean of
what it takes now and what it will take if it comes often.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

_WIDE, _TOKEN = 0.4, 0.02  # plain steps that a wide one takes more, and each token of it: a guess until it is tried
_KEPT, _FORGOTTEN = 5, 64  # times of steps that are looked at, and steps after which they are not any more


class Shape(NamedTuple):
    """Of how many rows a step was, how many tokens of each it read, and whether it had been recorded."""

    rows: int
    width: int
    replayed: bool


class Costs:
    """The last times of steps, kept from call to call."""

    def __init__(self) -> None:
        self._seconds: dict[Shape, deque[float]] = {}
        self._last: dict[Shape, int] = {}
        self._steps = 0

    def learn(self, shape: Shape, seconds: float) -> None:
        """A step has taken so long."""
        self._steps += 1
        if shape in self._seconds and self._steps - self._last[shape] > _FORGOTTEN:
            self._seconds[shape].clear()
        self._seconds.setdefault(shape, deque(maxlen=_KEPT)).append(seconds)
        self._last[shape] = self._steps

    def of(self, count: int, widths: Sequence[int]) -> dict[int, float]:
        """How long steps of so many rows will take, by width: as measured, or as the other widths say; else in plain
        steps."""
        recorded, unrecorded = (self._known(count, widths, replayed=replayed) for replayed in (True, False))
        guessed = {width: 1 + (width > 1) * _WIDE + count * (width - 1) * _TOKEN for width in widths}
        likely = _completed(unrecorded, widths, guessed)
        if not recorded:
            return likely
        likely = _completed(recorded, widths, likely)
        now = {width: took for width, took in unrecorded.items() if width not in recorded}
        return likely | {width: (took + likely[width]) / 2 for width, took in now.items()}

    def _known(self, count: int, widths: Sequence[int], *, replayed: bool) -> dict[int, float]:
        """Seconds by width, of those that have run lately: the least, since other programs only make them more."""
        shapes = [Shape(count, width, replayed) for width in widths]
        new = [shape for shape in shapes if shape in self._last and self._steps - self._last[shape] <= _FORGOTTEN]
        return {shape.width: min(self._seconds[shape]) for shape in new}


def _completed(known: dict[int, float], widths: Sequence[int], like: dict[int, float]) -> dict[int, float]:
    """Times of all widths: those that are known, and others in the same proportion to them as `like`."""
    if not known:
        return dict(like)
    each = median(took / like[width] for width, took in known.items())
    return {width: known.get(width, each * like[width]) for width in widths}
