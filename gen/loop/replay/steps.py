"""Runs the steps of a set of rows: as they are, recorded on a CPU, or captured on CUDA.

Example: a step of 8 rows that look at 64 columns runs as it is twelve times; the next three are watched and compared,
and then it is recorded. From then on one call does what hundreds did, until the rows grow or something else takes part
in a step. When steps then look at 96 columns, the third of these is recorded.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from weakref import ref

import torch
from torch import Tensor

from gen.loop.decoder import Decoder
from gen.loop.memory import free_bytes, is_out_of_memory
from gen.loop.replay.asides import Once, heard, leave_out
from gen.loop.replay.cuda_graphs import CaptureFailed, Graph, capture
from gen.loop.replay.observing import CannotReplay
from gen.loop.replay.recording import Replay, record, record_in_steps
from gen.models.base import Model
from gen.models.idle_rows import Idle
from gen.runtime.isolation import settings_of_the_process

RestsOn = tuple[object, Hashable]

logger = logging.getLogger("gen")

_WORTH = {"cpu": 13, "cuda": 8}  # which step of one shape is kept: keeping costs what about so many replays save
_WORTH_OF_A_KNOWN_KIND = {"cpu": 3, "cuda": 8}  # the same, if this kind of step has been checked in another shape
_HELD = 8  # recording holds so many times what a step looks at: all results of its operations, twice
_TOO_MANY_CHANGES = 3  # in a row, of what recorded steps rest on
_AT_ONCE = 8  # shapes that may be in recording: the one that came least lately gives way to another one
_WIDEST = 8  # tokens of a row in a step that is kept: wider ones take far longer than the calls that keeping saves
_MOST_SHAPES = 256  # shapes that are kept before all are forgotten: a server's users bring new functions all the time


def rests_on(model: Model) -> RestsOn | None:
    """What recorded steps of a model rest on now: the state of the model and of torch; None if it is not known.

    Raises:
        ModelError: as `gen.models.base.Model.check`.
    """
    found = model.check()
    return None if found is None else (found, settings_of_the_process())


def version_of(model: Model, known: RestsOn | None) -> object:
    """The model's version, on which columns that are read now depend, from what `rests_on` has just given; None if it
    is not known. Compare versions with `==`."""
    version = None if known is None else model.version(known[0])
    return None if version is None else (known, version)


class Steps:
    """The steps of a set of rows, for one batch.

    Args:
        model: the model of the rows.
        rows: the set; its recordings stay with it.
        replay: whether steps are recorded on a CPU.
        cuda_graph: whether they are captured on CUDA.

    Attributes:
        replayed, records: whether the last step was a recorded one, and whether it was being recorded.
    """

    def __init__(self, model: Model, rows: Decoder, *, replay: bool, cuda_graph: bool) -> None:
        self._model, self._rows = model, rows
        wanted = {"cpu": replay, "cuda": cuda_graph}
        self._captures = rows.device.type == "cuda"
        self.replayed = self.records = False
        self._keeps = rows.rows.replayable and wanted.get(rows.device.type, False)
        self._idle: Idle[Decoder] | None = model.idle

    def look(self) -> None:
        """Call this when requests join: recorded steps are dropped if what they rest on has changed.

        All rows then go on with the model as it is now.

        Raises:
            ModelError: as `gen.models.base.Model.check`.
        """
        rows = self._rows
        now = rests_on(self._model)
        if now == rows.rests_on:
            rows.changes = 0
            return
        if rows.rests_on is not None and now is not None:
            rows.changes += 1
            if rows.changes == _TOO_MANY_CHANGES:
                logger.info(
                    "steps of %s are recorded again and again: what they rest on has changed each of %d times that "
                    "requests joined: %s",
                    type(self._model).__name__,
                    _TOO_MANY_CHANGES,
                    _difference(now[0], rows.rests_on[0]),
                )
        rows.forget()
        rows.rests_on = now
        rows.refused = self._idle.refusals(now) if self._idle is not None else {}

    def version(self) -> object:
        """The model's version at the last `look`; see `version_of`."""
        return version_of(self._model, self._rows.rests_on)

    def run(self, count: int, view: int, lengths: Sequence[int] = (), width: int = 1) -> bool:
        """Run a step of the first `count` rows, which look at the first `view` columns.

        Args:
            width: how many tokens of each row it reads.
            lengths: how many columns each row has, with the new token, and 0 for a free row; empty if not known. If
                they are known, a row may look at only so many.
        Returns:
            Whether it took longer than other steps, because it or a part of it was recorded, or will be soon.
        """
        if not lengths:
            return self._run(count, view, width)
        self._rows.rows.look_at(lengths)
        try:
            return self._run(count, view, width)
        finally:
            self._rows.rows.look_at(())

    def _run(self, count: int, view: int, width: int) -> bool:
        rows = self._rows
        rows.prepare(slice(0, count), width)
        kind = rows.step_kind(width)
        key = count, view, width, *kind
        keeps = self._keeps and rows.captures and rows.replayable and rows.rests_on is not None and width <= _WIDEST
        recording = rows.recordings.get(key) if keeps else None
        self.replayed, self.records = recording is not None, False
        if recording is not None:
            recording()
            return False
        keeps = keeps and (rows.kind, kind) not in rows.refused
        known = keeps and kind in rows.checked
        worth_it = keeps and self._runs(key) >= (_WORTH_OF_A_KNOWN_KIND if known else _WORTH)[rows.device.type]
        self.records = worth_it and self._has_room(count, view)
        if self.records:
            with heard(Once()):
                self._run_and_keep(count, view, width, key)
            return True
        rows.step(count, view, width)()
        return known and not worth_it

    def _runs(self, key: Hashable) -> int:
        """How often this shape has run since the rows last grew, this time included."""
        rows = self._rows
        if len(rows.seen) >= _MOST_SHAPES:
            rows.forget()
        here = rows.length, key
        rows.seen[here] = rows.seen.get(here, 0) + 1
        return rows.seen[here]

    def _has_room(self, count: int, view: int) -> bool:
        """Whether a CPU's memory has room for a recording; CUDA raises an error when memory is out.

        Without room little is lost: so large a step takes far longer than the calls that recording saves.
        """
        rows = self._rows
        looked_at = sum(rows.sizes().values()) * min(1.0, count * view / rows.tokens)
        free = None if self._captures else free_bytes(torch.device("cpu"))
        return free is None or _HELD * looked_at <= free

    def _run_and_keep(self, count: int, view: int, width: int, key: Hashable) -> None:
        """Record a step while it runs, or capture it and run the graph; if neither can be done, it runs as it is.

        A step that may not be recorded may not be captured either, so that a CPU tests what a GPU will do.
        """
        rows, step, kind = self._rows, self._rows.step(count, view, width), self._rows.step_kind(width)
        before: list[tuple[Tensor, Tensor]] = []

        def restore() -> None:
            for tensor, value in before:
                tensor.copy_(value)

        try:
            before += [(tensor, tensor.clone()) for tensor in rows.moving()]
            if not self._captures and not rows.search.reorders:  # a rehearsal would be the step itself
                self._record_on(_step_of(ref(rows), count, view, width), kind, key)
                return
            seen = self._recorded(rows.rehearsal(count, view, width), kind, before)
            restore()
            if not self._captures:
                rows.recordings[key] = record(step)
                return
            if not rows.recordings and (count, view) != (rows.count, rows.length):
                self._capture_largest(restore, before)
            graph = self._captured(step, seen)
        except (CannotReplay, CaptureFailed, torch.OutOfMemoryError) as reason:
            rows.recording.clear()
            self._refuse(reason, kind)
            restore()
            step()
        else:
            rows.recordings[key] = graph
            graph()

    def _record_on(self, step: Callable[[], None], kind: Hashable, key: Hashable) -> None:
        """Go on with the recording of a step while it runs."""
        rows = self._rows
        recording = rows.recording.pop(key, None)
        if recording is None:
            recording = record_in_steps(step, [*rows.moving()], rows.checked.get(kind))
        recorded = next(recording)
        if recorded is not None:
            rows.recordings[key] = rows.checked[kind] = recorded
            return
        rows.recording[key] = recording  # behind all others
        if len(rows.recording) > _AT_ONCE:
            oldest = next(iter(rows.recording))
            del rows.recording[oldest]
            rows.seen[rows.length, oldest] = 0

    def _refuse(self, reason: CannotReplay | CaptureFailed | torch.OutOfMemoryError, kind: Hashable) -> None:
        """Do not try again what was refused, and log why."""
        rows, name = self._rows, type(self._model).__name__
        if isinstance(reason, CaptureFailed):
            rows.captures = False
            logger.warning("steps of %s are captured no more: %s", name, reason)
            return
        if isinstance(reason, CannotReplay):
            rows.refused[rows.kind, kind] = str(reason)
        else:  # there may be memory in the next call
            self._keeps = False
        logger.info("steps of %s are not %s: %s", name, "captured" if self._captures else "replayed", reason)

    def _captured(self, step: Callable[[], None], seen: Replay[None]) -> Graph:
        """Capture a step. If memory is out, drop the graphs that there are, and capture it again in other memory.

        Raises:
            CaptureFailed: the capture was refused, or memory is still out.
        """
        rows = self._rows
        try:
            return capture(step, seen.constants, rows.recordings.values())
        except Exception as error:
            rows.recordings.clear()  # the failed capture has left their memory open
            if not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # a capture can neither use memory that is cached for other work, nor free it
        try:
            return capture(step, seen.constants, ())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise CaptureFailed(f"memory is out: {error}") from error

    def _recorded(
        self, step: Callable[[], None], kind: Hashable, before: Sequence[tuple[Tensor, Tensor]]
    ) -> Replay[None]:
        """The recording of a step, which runs several times for it unless it is like a recording of another shape."""
        checked = self._rows.checked
        *_, recorded = record_in_steps(step, [tensor for tensor, _ in before], checked.get(kind))
        assert recorded is not None  # the last one; tells mypy
        checked[kind] = recorded
        return recorded

    def _capture_largest(self, restore: Callable[[], None], before: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Capture the step of all rows and columns before any other: its memory is enough for the others."""
        rows = self._rows
        rehearsal = rows.rehearsal(rows.count, rows.length)
        with heard(leave_out):
            rehearsal()  # it may never have run: kernels are compiled now, and objects that are made once are made
            restore()
            seen = self._recorded(rehearsal, rows.step_kind(), before)
        restore()
        graph = self._captured(rows.step(rows.count, rows.length), seen)
        rows.recordings[rows.count, rows.length, 1, *rows.step_kind()] = graph


def _step_of(rows: "ref[Decoder]", count: int, view: int, width: int) -> Callable[[], None]:
    """A step that the rows themselves may keep: it does not keep the rows."""

    def run() -> None:
        there = rows()
        assert there is not None  # whoever runs it has the rows; tells mypy
        there.step(count, view, width)()

    return run


def _difference(now: object, earlier: object) -> str:
    """What has changed, if the results of the model's `check` can say it."""
    tell = getattr(now, "difference", None)
    return str(tell(earlier)) if tell is not None and type(now) is type(earlier) else "its check() gives another value"
