"""A job's progress on stderr: rows, tokens a second of each device, failed rows, and the time that is left."""

import sys
import time
from collections import Counter
from threading import Lock
from types import TracebackType
from typing import Self

from tqdm import tqdm

_LINES = 10.0  # seconds between two lines if stderr is a file
_MOST = 8  # devices; more are not shown one by one


class Progress:
    """A line on stderr, in a `with` block.

    Args:
        total: how many rows the job has.
        done, failed: how many of them have a result, and an error, already.
        shown: whether to show anything besides the lines of `say`.
    """

    def __init__(self, total: int, done: int, failed: int, *, shown: bool) -> None:
        tty = sys.stderr is not None and sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="row",
            file=sys.stderr,
            disable=not shown,
            mininterval=0.5 if tty else _LINES,
        )
        self._lock, self._begun = Lock(), time.monotonic()
        self._tokens: Counter[str] = Counter()
        self._failed = failed

    def add(self, device: str, rows: int, failed: int, tokens: int) -> None:
        """Count rows that a device has done."""
        with self._lock:
            self._failed += failed
            self._tokens[device] += tokens
            passed = max(time.monotonic() - self._begun, 1e-3)
            rates = [f"{name} {count / passed:.0f} tokens/s" for name, count in self._tokens.items()]
            if len(rates) > _MOST:
                rates = [f"{self._tokens.total() / passed:.0f} tokens/s"]
            self._bar.set_postfix_str(", ".join([*rates, f"{self._failed} failed"]), refresh=False)
            self._bar.update(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def say(line: str) -> None:
    """Print a line on stderr beside the progress."""
    if sys.stderr is not None:
        tqdm.write(f"gen: {line}", file=sys.stderr)
