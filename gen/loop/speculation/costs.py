"""How long steps take, by how many tokens of each row they read; measured while they run.

Example: a plain step is recorded and takes 60 ms; unrecorded it took 64 ms. A step of 8 tokens has run twice,
unrecorded, and took 110 ms. Recorded it will take about 103 ms. It counts as 106.5 ms, the mean of the time that it
takes now and the time that it will take if it comes often.

Other programs slow a machine for seconds, and some widths run seldom. So a wide step is compared with the plain steps
shortly before it: if it took 160 ms while plain ones took 90 ms, it counts as 107 ms beside plain ones of 60 ms.
"""

from collections import deque
from collections.abc import Sequence, Set
from itertools import islice
from statistics import median, median_low
from typing import NamedTuple

# a guess, in parts of what a step takes whatever it reads: what a wide step takes more, and what each token adds
_WIDE, _TOKEN = 0.1, 0.12
_KEPT, _FORGOTTEN = 5, 64  # how many times of a shape are kept, and after how many steps without it they are forgotten
_NEAR, _COMPARED = 8, 3  # a wide step is compared with so many plain ones, if the last was at most so many steps ago


class Shape(NamedTuple):
    """How many rows a step has, how many tokens of each row it reads, and whether it is a recorded step."""

    rows: int
    width: int
    replayed: bool


class _Time(NamedTuple):
    """Seconds of a wide step, and of plain steps shortly before it, of one shape; None if there were none."""

    seconds: float
    plain: Shape | None
    near: float


class Costs:
    """The last times of steps, kept from call to call."""

    def __init__(self) -> None:
        self._plain: dict[Shape, deque[float]] = {}
        self._wide: dict[Shape, deque[_Time]] = {}
        self._last: dict[Shape, int] = {}
        self._steps = 0

    def learn(self, shape: Shape, seconds: float) -> None:
        """Note how long a step has taken."""
        self._steps += 1
        if not self._is_new(shape):
            self._plain.pop(shape, None)
            self._wide.pop(shape, None)
        if shape.width == 1:
            self._plain.setdefault(shape, deque(maxlen=_KEPT)).append(seconds)
        else:
            self._wide.setdefault(shape, deque(maxlen=_KEPT)).append(_Time(seconds, *self._near(shape.rows)))
        self._last[shape] = self._steps

    def of(self, count: int, widths: Sequence[int]) -> dict[int, float]:
        """How many seconds steps of so many rows will take, by width: as measured, or estimated from other widths. If
        nothing is measured, the numbers are in plain steps."""
        recorded, unrecorded = (self._known(count, widths, replayed=replayed) for replayed in (True, False))
        guessed = {width: (1 + (width > 1) * _WIDE + count * width * _TOKEN) / (1 + count * _TOKEN) for width in widths}
        likely = _completed(unrecorded, widths, guessed)
        if recorded:
            likely = _completed(recorded, widths, likely)
            now = {width: took for width, took in unrecorded.items() if width not in recorded}
            likely |= {width: (took + likely[width]) / 2 for width, took in now.items()}
        return likely | _between(likely, recorded.keys() | unrecorded.keys())

    def _is_new(self, shape: Shape, steps: int = _FORGOTTEN) -> bool:
        return shape in self._last and self._steps - self._last[shape] <= steps

    def _near(self, rows: int) -> tuple[Shape | None, float]:
        """The shape and the seconds of the last plain steps of so many rows, if they were shortly before."""
        shapes = [shape for shape in self._plain if shape.rows == rows and self._is_new(shape, _NEAR)]
        if not shapes:
            return None, 0.0
        last = max(shapes, key=self._last.__getitem__)
        return last, median(islice(reversed(self._plain[last]), _COMPARED))

    def _known(self, count: int, widths: Sequence[int], *, replayed: bool) -> dict[int, float]:
        """Seconds by width, of widths that have run lately. Of plain steps it is the least, because other programs only
        slow steps down."""
        shapes = [Shape(count, width, replayed) for width in widths]
        return {
            shape.width: min(self._plain[shape]) if shape.width == 1 else median_low(map(self._now, self._wide[shape]))
            for shape in shapes
            if self._is_new(shape)
        }

    def _now(self, time: _Time) -> float:
        """What a wide step would take if nothing slowed it."""
        return time.seconds if time.plain is None else time.seconds * min(self._plain[time.plain]) / time.near


def _between(takes: dict[int, float], measured: Set[int]) -> dict[int, float]:
    """The times of widths that have not been measured, where a narrower and a wider one have: on the line between these
    if that is less, so that the width is tried."""
    found = {}
    for width in takes.keys() - measured:
        narrower, wider = [one for one in measured if one < width], [one for one in measured if one > width]
        if narrower and wider:
            low, high = max(narrower), min(wider)
            line = takes[low] + (takes[high] - takes[low]) * (width - low) / (high - low)
            found[width] = min(takes[width], line)
    return found


def _completed(known: dict[int, float], widths: Sequence[int], like: dict[int, float]) -> dict[int, float]:
    """The times of all widths: known times, and estimates for the others, in the proportions of `like`."""
    if not known:
        return dict(like)
    each = median(took / like[width] for width, took in known.items())
    return {width: known.get(width, each * like[width]) for width in widths}
