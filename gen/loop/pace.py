"""How much of waiting prompts is read before the rows that go on have their next step.

Example: a step of 31 rows takes 10 ms, and after it 128 tokens of a prompt were read in 12 ms. So 74 are read after the
next step, and no row waits longer than about two steps for its next token.
"""

from collections import deque
from statistics import median
from time import perf_counter

import torch

WHOLE = 4096  # tokens that are read at once where no row waits
_FIRST = 32  # before it is known how long they take
_LEAST = 32  # reading has a cost of its own, about that of a step, whatever is read
_SHARE = 0.7  # of a step's time is given to reading: what is measured varies, and what comes later takes longer
_GROWTH = 1.5  # as much more is read from turn to turn at most
_KEPT = 5  # turns whose steps are looked at

Mark = float | torch.cuda.Event


class Pace:
    """Measures steps and what is read between them, and lets reading take about as long as a step.

    On CUDA times are those of the device, read when they are there: the host waits for none.

    Args:
        tokens: how many are read between two steps; None for what is measured.
    """

    def __init__(self, device: torch.device, tokens: int | None) -> None:
        self._on_cuda, self._fixed = device.type == "cuda", tokens
        self._measured = _FIRST
        self._steps: deque[float] = deque(maxlen=_KEPT)  # seconds
        self._marks: deque[tuple[Mark, Mark, Mark, int]] = deque()  # around a step and what was read, of how many

    def tokens(self, *, waited_for: bool) -> int:
        """How many tokens may be read now.

        Args:
            waited_for: whether rows go on, and wait meanwhile.
        """
        if self._fixed is not None:
            return self._fixed
        return self._measured if waited_for else WHOLE

    def mark(self) -> Mark:
        """Now, on the device."""
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def learn(self, begin: Mark, between: Mark, tokens: int) -> None:
        """A step was launched at `begin`; from `between` until now so many tokens have been read."""
        if self._fixed is None:
            self._marks.append((begin, between, self.mark(), tokens))
            while self._marks and _is_over(self._marks[0][2]):
                self._look(*self._marks.popleft())

    def _look(self, begin: Mark, between: Mark, end: Mark, tokens: int) -> None:
        """Read more, or less, the next time."""
        self._steps.append(_seconds(begin, between))
        wanted = int(tokens * _SHARE * median(self._steps) / max(_seconds(between, end), 1e-9))
        if tokens >= self._measured or wanted < tokens:  # else few tokens have taken little time
            self._measured = max(_LEAST, min(wanted, int(_GROWTH * self._measured), WHOLE))


def _is_over(mark: Mark) -> bool:
    return isinstance(mark, float) or bool(mark.query())  # type: ignore[no-untyped-call]


def _seconds(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return float(begin.elapsed_time(end)) / 1000
