"""A job's progress on stderr: rows, tokens a second of each device, failed rows, and the time that is left."""

import sys
import time
from collections import Counter
from threading import Lock
from types import TracebackType
from typing import Self

from tqdm import tqdm

_LINES = 10.0  # seconds between two lines if stderr is no terminal
_MOST = 8  # devices; more are not shown one by one


class Progress:
    """A bar in a terminal, and lines elsewhere, in a `with` block.

    Args:
        total: how many rows the job has.
        done, failed: how many of them have a result, and an error, already.
        shown: whether to show anything besides the lines of `say`.
    """

    def __init__(self, total: int, done: int, failed: int, *, shown: bool) -> None:
        bar = sys.stderr is not None and sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="row",
            file=sys.stderr,
            disable=not (shown and bar),
            mininterval=0.5,
        )
        self._lines = shown and not bar
        self._lock, self._begun = Lock(), time.monotonic()
        self._next = self._begun + _LINES
        self._tokens: Counter[str] = Counter()
        self._total, self._done, self._failed = total, done, failed

    def add(self, device: str, rows: int, failed: int, tokens: int) -> None:
        """Count rows that a device has done."""
        with self._lock:
            self._done += rows
            self._failed += failed
            self._tokens[device] += tokens
            self._bar.set_postfix_str(self._rates(), refresh=False)
            self._bar.update(rows)

    def look(self) -> None:
        """Write a line where one is due; to be called often."""
        if self._lines and time.monotonic() >= self._next:
            self._next += _LINES
            self._say()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if self._lines:
            self._say()

    def _say(self) -> None:
        with self._lock:
            say(f"{self._done} of {self._total} rows, {self._rates()}")

    def _rates(self) -> str:
        passed = max(time.monotonic() - self._begun, 1e-3)
        rates = [f"{name} {count / passed:.0f} tokens/s" for name, count in self._tokens.items() if name]
        if len(rates) > _MOST:
            rates = [f"{self._tokens.total() / passed:.0f} tokens/s"]
        return ", ".join([*rates, f"{self._failed} failed"])


def say(line: str) -> None:
    """Print a line on stderr beside the progress."""
    if sys.stderr is not None:
        tqdm.write(f"gen: {line}", file=sys.stderr)
