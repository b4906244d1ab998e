"""How long steps take, by how many tokens of each row they read; measured while they run.

Example: a plain step is recorded and takes 60 ms; unrecorded it took 64 ms. A step of 8 tokens has run twice,
unrecorded, and took 110 ms. Recorded it will take about 103 ms. It counts as 106.5 ms, the mean of the time that it
takes now and the time that it will take if it comes often.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

_WIDE, _TOKEN = 0.4, 0.02  # a guess, in plain steps: what a wide step takes more, and each of its further tokens
_KEPT, _FORGOTTEN = 5, 64  # how many times of a shape are kept, and after how many steps without it they are forgotten


class Shape(NamedTuple):
    """How many rows a step has, how many tokens of each row it reads, and whether it is a recorded step."""

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
        """Note how long a step has taken."""
        self._steps += 1
        if shape in self._seconds and self._steps - self._last[shape] > _FORGOTTEN:
            self._seconds[shape].clear()
        self._seconds.setdefault(shape, deque(maxlen=_KEPT)).append(seconds)
        self._last[shape] = self._steps

    def of(self, count: int, widths: Sequence[int]) -> dict[int, float]:
        """How many seconds steps of so many rows will take, by width: as measured, or estimated from other widths. If
        nothing is measured, the numbers are in plain steps."""
        recorded, unrecorded = (self._known(count, widths, replayed=replayed) for replayed in (True, False))
        guessed = {width: 1 + (width > 1) * _WIDE + count * (width - 1) * _TOKEN for width in widths}
        likely = _completed(unrecorded, widths, guessed)
        if not recorded:
            return likely
        likely = _completed(recorded, widths, likely)
        now = {width: took for width, took in unrecorded.items() if width not in recorded}
        return likely | {width: (took + likely[width]) / 2 for width, took in now.items()}

    def _known(self, count: int, widths: Sequence[int], *, replayed: bool) -> dict[int, float]:
        """Seconds by width, of widths that have run lately: the least, because other programs only slow steps down."""
        shapes = [Shape(count, width, replayed) for width in widths]
        new = [shape for shape in shapes if shape in self._last and self._steps - self._last[shape] <= _FORGOTTEN]
        return {shape.width: min(self._seconds[shape]) for shape in new}


def _completed(known: dict[int, float], widths: Sequence[int], like: dict[int, float]) -> dict[int, float]:
    """The times of all widths: known times, and estimates for the others, in the proportions of `like`."""
    if not known:
        return dict(like)
    each = median(took / like[width] for width, took in known.items())
    return {width: known.get(width, each * like[width]) for width in widths}
