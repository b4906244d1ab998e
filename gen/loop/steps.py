"""Runs the steps of a set of rows: as they are, or as they were recorded on a CPU or captured on CUDA.

Example: a step of 8 rows that look at 64 columns runs as it is seven times; the eighth time it is recorded, and from
then on one call does what hundreds did, until the rows grow or something else takes part in a step.
"""

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from gen.loop.graphs import Graph, capture
from gen.loop.replay import CannotReplay, Replay, record
from gen.loop.row_set import RowSet

logger = logging.getLogger("gen")

_WORTH = 8  # steps of one shape before it is recorded: doing so takes as long as some ten of them
_MOST_SHAPES = 256  # are counted and recorded before all are forgotten: a server's users bring ever new functions

Recording = Replay[None] | Graph


class Steps:
    """The steps of a set of rows, for one batch.

    Args:
        rows: the set; its recordings stay with it.
        name: of the model, for what is logged.
        replay: whether steps are recorded on a CPU.
        cuda_graph: whether they are captured on CUDA.
    """

    def __init__(self, rows: RowSet, name: str, *, replay: bool, cuda_graph: bool) -> None:
        self._rows, self._name = rows, name
        wanted = {"cpu": replay, "cuda": cuda_graph}
        self._captures = rows.device.type == "cuda"
        self._keeps = rows.rows.replayable and wanted.get(rows.device.type, False)
        self._seen: dict[Hashable, int] = {}

    def run(self, count: int, view: int) -> None:
        """A step of the first `count` rows, which look at the first `view` columns."""
        rows, key = self._rows, self._rows.key(count, view)
        recording = rows.recordings.get(key) if self._keeps else None
        if recording is None and self._keeps and self._is_worth_it(key):
            recording = self._keep(count, view)
        if recording is None:
            rows.step(count, view)()
        else:
            recording()

    def _is_worth_it(self, key: Hashable) -> bool:
        """Whether a step of this kind has come so often that it will come again; since rows have grown, too."""
        if len(self._seen) + len(self._rows.recordings) >= _MOST_SHAPES:
            self._seen.clear()
            self._rows.recordings.clear()
        here = self._rows.length, key
        self._seen[here] = self._seen.get(here, 0) + 1
        return self._seen[here] >= _WORTH

    def _keep(self, count: int, view: int) -> Recording | None:
        """Record a step, or capture it; the rows are left as they were. None where that cannot be done.

        What may not be recorded may not be captured either, so that a CPU tests what a GPU will do.
        """
        rows, step = self._rows, self._rows.step(count, view)
        try:
            with self._unchanged() as restore:
                recorded: Replay[None] = record(step, again=restore)
                recording: Recording = recorded
                if self._captures:
                    if not rows.recordings and (count, view) != (rows.count, rows.length):
                        self._capture_largest(restore)
                    recording = capture(step, recorded.constants, rows.recordings.values())
        except CannotReplay as reason:
            self._keeps = False
            done = "captured" if self._captures else "replayed"
            logger.info("steps of %s are not %s: %s", self._name, done, reason)
            return None
        rows.recordings[rows.key(count, view)] = recording
        return recording

    def _capture_largest(self, restore: Callable[[], None]) -> None:
        """Capture the step of all rows and columns before any other: the memory that it takes does for them."""
        rows = self._rows
        key, step = rows.key(rows.count, rows.length), rows.step(rows.count, rows.length)
        restore()
        step()  # it may never have run: kernels are compiled now, and what is made once is made
        restore()
        recorded: Replay[None] = record(step, again=restore)
        rows.recordings[key] = capture(step, recorded.constants, ())

    @contextmanager
    def _unchanged(self) -> Iterator[Callable[[], None]]:
        """What steps of the block change is put back at its end, and whenever the function that it gets is called."""
        before = [(tensor, tensor.clone()) for tensor in self._rows.moving()]

        def restore() -> None:
            for tensor, value in before:
                tensor.copy_(value)

        try:
            yield restore
        finally:
            restore()
