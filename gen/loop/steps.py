"""Runs the steps of a set of rows: as they are, or as they were recorded on a CPU or captured on CUDA.

Example: a step of 8 rows that look at 64 columns runs as it is seven times; the eighth time it is recorded, and from
then on one call does what hundreds did, until the rows grow or something else takes part in a step.
"""

import logging
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from gen.loop.graphs import capture
from gen.loop.replay import CannotReplay, Replay, record
from gen.loop.row_set import RowSet

logger = logging.getLogger("gen")

_WORTH = 8  # steps of one shape before it is recorded: doing so takes as long as some ten of them
_MOST_SHAPES = 256  # are counted and recorded before all are forgotten: a server's users bring ever new functions


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
        rows = self._rows
        rows.prepare(slice(0, count))
        key, keeps = rows.key(count, view), self._keeps and rows.replayable
        recording = rows.recordings.get(key) if keeps else None
        if recording is not None:
            recording()
        elif keeps and self._is_worth_it(key):
            self._run_and_keep(count, view)
        else:
            rows.step(count, view)()

    def _is_worth_it(self, key: Hashable) -> bool:
        """Whether a step of this kind has come so often that it will come again; since rows have grown, too."""
        if len(self._seen) + len(self._rows.recordings) >= _MOST_SHAPES:
            self._seen.clear()
            self._rows.recordings.clear()
        here = self._rows.length, key
        self._seen[here] = self._seen.get(here, 0) + 1
        return self._seen[here] >= _WORTH

    def _run_and_keep(self, count: int, view: int) -> None:
        """Record a step while it runs, or capture it and run that; where neither can be done, it runs as it is.

        What may not be recorded may not be captured either, so that a CPU tests what a GPU will do.
        """
        rows, step = self._rows, self._rows.step(count, view)
        before: list[tuple[Tensor, Tensor]] = []

        def restore() -> None:
            for tensor, value in before:
                tensor.copy_(value)

        try:
            before += [(tensor, tensor.clone()) for tensor in rows.moving()]
            recorded: Replay[None] = record(step, again=restore)
            if not self._captures:
                rows.recordings[rows.key(count, view)] = recorded
                return
            restore()
            if not rows.recordings and (count, view) != (rows.count, rows.length):
                self._capture_largest(restore)
            graph = capture(step, recorded.constants, rows.recordings.values())
        except (CannotReplay, torch.OutOfMemoryError) as reason:
            self._keeps = False
            done = "captured" if self._captures else "replayed"
            logger.info("steps of %s are not %s: %s", self._name, done, reason)
            restore()
            step()
        else:
            rows.recordings[rows.key(count, view)] = graph
            graph()

    def _capture_largest(self, restore: Callable[[], None]) -> None:
        """Capture the step of all rows and columns before any other: the memory that it takes does for them."""
        rows = self._rows
        step = rows.step(rows.count, rows.length)
        step()  # it may never have run: kernels are compiled now, and what is made once is made
        restore()
        recorded: Replay[None] = record(step, again=restore)
        restore()
        rows.recordings[rows.key(rows.count, rows.length)] = capture(step, recorded.constants, ())
