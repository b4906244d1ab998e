"""How much of waiting prompts is read before the running rows have their next step.

Example: a step of 31 rows takes 10 ms. After the first step 16 tokens of a prompt are read in 4 ms, and after the
second step 32 tokens in 5 ms. So 64 tokens would take 7 ms, which is within three quarters of a step, and no row waits
longer than about two steps for its next token.
"""

from collections import deque
from statistics import median
from time import perf_counter

import torch

WHOLE = 4096  # tokens that are read at once if no row waits
_LEAST = 16  # fewer tokens take as long: prompts are read in multiples of 16
_SHARE = 0.75  # the part of a step's time that reading may take
_MORE = 1.25  # how many times as long as 16 tokens reading may take, if 16 tokens take about as long as a step
_KEPT = 5  # turns whose steps are looked at
_LONG = 1.2  # after a step that took so many times as long as others, nothing is read

Mark = float | torch.cuda.Event


class Pace:
    """Measures steps and the reading between them, and lets reading take no longer than a step.

    The more columns a part of a prompt looks at, the longer it takes. So everything except steps is measured again for
    each prompt, and a size that took too long is not tried again for it. On CUDA the device measures the times, and the
    host reads them when they are there: it does not wait for them.

    Args:
        tokens: how many tokens are read between two steps of rows that wait meanwhile; None to measure how many.
    """

    def __init__(self, device: torch.device, tokens: int | None) -> None:
        self._on_cuda, self._fixed = device.type == "cuda", tokens
        self._tokens = _LEAST
        self._steps, self._fewest = (deque[float](maxlen=_KEPT) for _ in range(2))  # seconds, of steps and of 16 tokens
        self._last = self._before = (0, 0.0)  # the last two parts of different sizes: tokens and seconds
        self._too_many = WHOLE
        self._put_off = False
        self._marks: deque[tuple[Mark, Mark, Mark, int]] = deque()  # around a step and a part, and the part's tokens

    @property
    def measures(self) -> bool:
        """Whether times are measured, so that rows wait as short as possible.

        If not, the step at which a request joins depends on no clock and on no recording.
        """
        return self._fixed is None

    def tokens(self, *, waited_for: bool) -> int:
        """How many tokens may be read now.

        Args:
            waited_for: whether running rows wait meanwhile.
        """
        most = self._tokens if self._fixed is None else self._fixed
        return most if waited_for else max(most, WHOLE)

    def begin(self) -> None:
        """Call this when another prompt begins."""
        self._last, self._too_many = (0, 0.0), WHOLE

    def mark(self) -> Mark:
        """A mark of the present moment, on the device."""
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def puts_off(self, begin: Mark, between: Mark) -> bool:
        """Whether nothing is read after a step, from `begin` to `between`, because it took long by chance; never after
        two steps in a row. On CUDA it is False, because times are not known so early."""
        if self._fixed is not None or not isinstance(begin, float) or not isinstance(between, float):
            return False
        known = len(self._steps) == _KEPT and not self._put_off
        self._put_off = known and between - begin > _LONG * median(self._steps)
        if self._put_off:
            self._steps.append(between - begin)
        return self._put_off

    def learn(self, begin: Mark, between: Mark, tokens: int) -> None:
        """Learn from a step that was launched at `begin`, and from `tokens` read from `between` until now."""
        if self._fixed is None:
            self._marks.append((begin, between, self.mark(), tokens))
            while self._marks and is_over(self._marks[0][2]):
                self._look(*self._marks.popleft())

    def _look(self, begin: Mark, between: Mark, end: Mark, tokens: int) -> None:
        """Choose how many tokens to read the next time."""
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
        if len(self._fewest) == _KEPT:  # a single one may have taken long by chance
            limit = max(limit, _MORE * min(self._fewest))
        fit = self._that_take(limit)
        if seconds > limit and size > _LEAST:
            self._too_many = size
        elif size < self._tokens:
            return
        self._tokens = max(_LEAST, min(fit, 2 * size, self._too_many - _LEAST))

    def _that_take(self, limit: float) -> int:
        """How many tokens would take `limit` seconds, by the last two parts; a multiple of 16."""
        (size, seconds), (other, others) = self._last, self._before
        each = (seconds - others) / (size - other) if other else 0.0
        as_others = 2 * size if seconds <= limit else size // 2  # if it is not known how long each token takes
        fit = int(size + (limit - seconds) / each) if each > 0 else as_others
        return fit // _LEAST * _LEAST


def is_over(mark: Mark) -> bool:
    return isinstance(mark, float) or bool(mark.query())  # type: ignore[no-untyped-call]


def seconds_between(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    return float(begin.elapsed_time(end)) / 1000
