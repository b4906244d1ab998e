"""How much of waiting prompts is read before the rows that go on have their next step.

Example: a step of 31 rows takes 10 ms. After the first one 16 tokens of a prompt are read in 4 ms, and after the second
one 32 in 5 ms. So 64 would take 7 ms, which is three quarters of a step, and no row waits longer than about two steps
for its next token.
"""

from collections import deque
from statistics import median
from time import perf_counter

import torch

WHOLE = 4096  # tokens that are read at once where no row waits
_LEAST = 16  # fewer take as long: prompts are read in whole 16s
_SHARE = 0.75  # of a step's time is given to reading
_MORE = 1.25  # times what the fewest tokens take, where these take about as long as a step
_KEPT = 5  # turns whose steps are looked at
_LONG = 1.2  # times what steps take: after one that took longer nothing is read

Mark = float | torch.cuda.Event


class Pace:
    """Measures steps and what is read between them, and lets reading take no longer than a step.

    A part of a prompt takes longer the more columns it looks at, so that all but steps is measured anew for each
    prompt: what took too long once is not tried again. On CUDA times are those of the device, read when they are there:
    the host waits for none.

    Args:
        tokens: how many are read between two steps; None for what is measured.
    """

    def __init__(self, device: torch.device, tokens: int | None) -> None:
        self._on_cuda, self._fixed = device.type == "cuda", tokens
        self._tokens = _LEAST
        self._steps, self._fewest = (deque[float](maxlen=_KEPT) for _ in range(2))  # seconds, of steps and of 16 tokens
        self._last = self._before = (0, 0.0)  # two parts of unlike sizes: tokens and seconds
        self._too_many = WHOLE
        self._put_off = False
        self._marks: deque[tuple[Mark, Mark, Mark, int]] = deque()  # around a step and what was read, of how many

    @property
    def measures(self) -> bool:
        """Whether rows wait as short as can be; where not, who joins when depends on no clock and on no recording."""
        return self._fixed is None

    def tokens(self, *, waited_for: bool) -> int:
        """How many tokens may be read now.

        Args:
            waited_for: whether rows go on, and wait meanwhile.
        """
        if self._fixed is not None:
            return self._fixed
        return self._tokens if waited_for else WHOLE

    def begin(self) -> None:
        """Another prompt begins."""
        self._last, self._too_many = (0, 0.0), WHOLE

    def mark(self) -> Mark:
        """Now, on the device."""
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def puts_off(self, begin: Mark, between: Mark) -> bool:
        """Whether nothing is read after a step, from `begin` to `between`, that took long by chance; not twice running.
        On CUDA times are not known so early, and it is False."""
        if self._fixed is not None or not isinstance(begin, float) or not isinstance(between, float):
            return False
        known = len(self._steps) == _KEPT and not self._put_off
        self._put_off = known and between - begin > _LONG * median(self._steps)
        if self._put_off:
            self._steps.append(between - begin)
        return self._put_off

    def learn(self, begin: Mark, between: Mark, tokens: int) -> None:
        """A step was launched at `begin`; from `between` until now so many tokens have been read."""
        if self._fixed is None:
            self._marks.append((begin, between, self.mark(), tokens))
            while self._marks and is_over(self._marks[0][2]):
                self._look(*self._marks.popleft())

    def _look(self, begin: Mark, between: Mark, end: Mark, tokens: int) -> None:
        """Read more, or less, the next time."""
        self._steps.append(seconds_between(begin, between))
        if tokens > self._tokens:  # of a prompt that is read whole
            return
        size, seconds = -(-tokens // _LEAST) * _LEAST, seconds_between(between, end)
        if size == _LEAST:
            self._fewest.append(seconds)
        if size != self._last[0]:
            self._before = self._last
        self._last = size, seconds
        limit = _SHARE * median(self._steps)
        if len(self._fewest) == _KEPT:  # one alone may have taken long by chance
            limit = max(limit, _MORE * min(self._fewest))
        fit = self._that_take(limit)
        if seconds > limit and size > _LEAST:
            self._too_many = size
        elif size < self._tokens:
            return
        self._tokens = max(_LEAST, min(fit, 2 * size, self._too_many - _LEAST))

    def _that_take(self, limit: float) -> int:
        """How many tokens take so many seconds, as the last two parts say; in whole 16s."""
        (size, seconds), (other, others) = self._last, self._before
        each = (seconds - others) / (size - other) if other else 0.0
        as_others = 2 * size if seconds <= limit else size // 2  # where nothing is known of what each takes
        fit = int(size + (limit - seconds) / each) if each > 0 else as_others
        return fit // _LEAST * _LEAST


def is_over(mark: Mark) -> bool:
    return isinstance(mark, float) or bool(mark.query())  # type: ignore[no-untyped-call]


def seconds_between(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return float(begin.elapsed_time(end)) / 1000
