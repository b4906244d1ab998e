"""How long steps take: those that read several tokens of each row in plain steps, and those that others slow down.

Example: steps of 8 tokens are guessed to take 1.6 plain steps. The first one takes 110 ms, where plain steps take 50 ms
on average: that is 2.2. From now on such a step counts as 1.72 plain steps, a fifth of the way from 1.6 to 2.2.
"""

import logging
from collections import deque
from collections.abc import Hashable, Iterable
from functools import cache
from time import perf_counter, thread_time

import torch

from gen.runtime import cpu_threads

# a guess, in parts of what a step takes whatever it reads: what a wide step takes more, and what each token adds
_WIDE, _TOKEN = 0.1, 0.12
_NEW = 0.2  # how much the newest time counts beside all earlier ones
_MOST = 4.0  # a time counts as at most so many times what was expected: other programs may have stopped a step

_WORTH = 1.2  # what wide steps are taken to be worth at first
Mark = float | torch.cuda.Event


class Costs:
    """Running averages of the times of steps, kept from call to call.

    Args:
        learns: whether anything is measured; otherwise all times are guesses.

    Attributes:
        worth: the tokens of a text that wide steps have made lately, divided by the plain steps that they have taken.
        misses: how many steps found no right drafts, see `Widths.note`.
    """

    def __init__(self, device: torch.device, *, learns: bool = True) -> None:
        self._on_cuda, self._learns = device.type == "cuda", learns
        self.worth, self.misses = _WORTH, 0
        self._plain: dict[int, float] = {}  # seconds, by rows
        self._wide: dict[tuple[int, int], float] = {}  # plain steps, by rows and width
        self._marks: deque[tuple[Mark, Mark, int, int]] = deque()  # around steps, and their rows and widths

    def mark(self) -> Mark | None:
        """A mark of the present moment, on the device; None if nothing is measured. If only one thread computes, it is
        the time of the thread's own clock, which other programs do not disturb."""
        if not self._learns:
            return None
        if not self._on_cuda:
            return thread_time() if torch.get_num_threads() == 1 else perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def note(self, begin: Mark | None, rows: int, width: int) -> None:
        """Learn from a step that began at a mark and has just been launched. On CUDA its time is read when it is there:
        the host does not wait for it."""
        if begin is not None and (end := self.mark()) is not None:
            self._marks.append((begin, end, rows, width))
        while self._marks and _is_over(self._marks[0][1]):
            begin, end, rows, width = self._marks.popleft()
            self.learn(rows, width, _seconds_between(begin, end))

    def learn(self, rows: int, width: int, seconds: float) -> None:
        """Learn how long a step has taken."""
        plain = self._plain.get(rows, seconds)
        if width == 1:
            self._plain[rows] = plain + _NEW * (min(seconds, _MOST * plain) - plain)
        elif rows in self._plain:
            expected = self._of(rows, width)
            self._wide[rows, width] = expected + _NEW * (min(seconds / plain, _MOST * expected) - expected)

    def judge(self, rows: int, width: int, made: float) -> None:
        """Learn that a wide step has made so many tokens of each text on average."""
        self.worth += _NEW * (made / self._of(rows, width) - self.worth)

    def of(self, rows: int, widths: Iterable[int]) -> dict[int, float]:
        """How many plain steps a step of so many rows takes, by width."""
        return {width: self._of(rows, width) if width > 1 else 1.0 for width in widths}

    def _of(self, rows: int, width: int) -> float:
        guess = (1 + _WIDE + rows * width * _TOKEN) / (1 + rows * _TOKEN)
        return self._wide.get((rows, width), guess)


def _is_over(mark: Mark) -> bool:
    return isinstance(mark, float) or bool(mark.query())  # type: ignore[no-untyped-call]


def _seconds_between(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return float(begin.elapsed_time(end)) / 1000


logger = logging.getLogger("gen")

_MANY = 8  # times as long as the fastest step of the same shape
_IN_A_ROW = 16


class SlowSteps:
    """The fastest step of each shape, and how many steps in a row were slow."""

    def __init__(self) -> None:
        self._fastest: dict[Hashable, float] = {}
        self._slow = 0
        self._told = False

    def learn(self, shape: Hashable, seconds: float, threads: int) -> None:
        """Note how long a step has taken by the clock on the wall.

        Args:
            shape: what steps must have in common to take the same time.
            threads: how many torch has.
        """
        check_quota(threads)
        fastest = self._fastest[shape] = min(seconds, self._fastest.get(shape, seconds))
        self._slow = self._slow + 1 if seconds > _MANY * fastest else 0
        if self._slow < _IN_A_ROW or self._told:
            return
        self._told = True
        if helps := cpu_threads.advice(threads):
            logger.warning("steps take %.0f times as long as they did: %s", seconds / fastest, helps)


@cache
def check_quota(threads: int) -> None:
    """Say in the log, once, if torch has more threads than the process's control groups let compute."""
    allowed = cpu_threads.quota()
    if allowed is not None and threads > max(1, int(allowed)):
        logger.warning(
            "torch has %d threads, and this container may use %g CPUs; set OMP_NUM_THREADS=%d in the environment "
            "before torch is imported: more threads stop each other",
            threads,
            allowed,
            max(1, int(allowed)),
        )
