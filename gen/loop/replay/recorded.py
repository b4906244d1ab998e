"""Runs the steps of a decoder: as they are, recorded on a CPU, or captured on CUDA.

Example: a step of 8 rows that look at 64 columns runs as it is twelve times; the next three are watched and compared,
and then it is recorded. From then on one call does what hundreds did, until the rows grow or something else takes part
in a step. When steps then look at 96 columns, the third of these is recorded.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from gen.loop.decoder import Decoder
from gen.loop.memory import free_bytes, is_out_of_memory
from gen.loop.replay.cuda_graphs import CaptureFailed, Graph, capture
from gen.loop.replay.host_calls import RepeatResults, leave_out, on_host_call
from gen.loop.replay.observing import CannotReplay
from gen.loop.replay.recording import Replay, record, record_in_steps
from gen.loop.step_times import Costs, SlowSteps
from gen.models.base import Model
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


class Recorded:
    """The steps of a decoder, run as they are or as they were recorded; both stay together from call to call.

    Attributes:
        decoder: what makes the steps; it knows nothing of recordings.
        recordings: recorded steps by shape and kind; kept until memory moves.
        recording: steps that are being recorded: by shape and kind, what is left to do; the one that came least lately
            is the first.
        refused: why kinds of steps, with this kind of search, cannot be recorded; shared by all sets of the model.
        costs: how long steps take.
        records: whether the last step was being recorded.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.recordings: dict[Hashable, Replay[None] | Graph] = {}
        self.recording: dict[Hashable, Iterator[Replay[None] | None]] = {}
        self.refused: dict[Hashable, str] = {}
        self.costs = self._learned = Costs(decoder.device)
        self.records = False
        self._slow_steps = SlowSteps()
        self._seen: dict[Hashable, int] = {}  # how often each shape and kind has run unrecorded
        self._checked: dict[Hashable, Replay[None]] = {}  # by kind, a recording that was checked to do as its step
        self._rests_on: RestsOn | None = None  # what recordings rest on, of the model and of torch; None if not known
        self._changes = 0  # how often in a row that has changed when it was looked at
        self._on_cuda = decoder.device.type == "cuda"
        self._captures = decoder.streams.captures  # no longer once CUDA has refused a capture
        self._keeps = self._measures = False
        self._model = ""  # its type

    def begin(self, model: Model, *, replay: bool = True, cuda_graph: bool = True, measures: bool = True) -> None:
        """A batch begins.

        Args:
            replay: whether its steps are recorded on a CPU.
            cuda_graph: whether they are captured on CUDA.
            measures: whether it is measured how long steps take.
        """
        device = self.decoder.device
        wanted = {"cpu": replay, "cuda": cuda_graph}
        self._model = type(model).__name__
        self._keeps = self.decoder.rows.replayable and wanted.get(device.type, False)
        self._measures = measures
        self.costs = self._learned if measures else Costs(device, learns=False)

    def check_model(self, model: Model) -> None:
        """Call this when requests join: recorded steps are dropped if what they rest on has changed.

        All rows then go on with the model as it is now.

        Raises:
            ModelError: as `gen.models.base.Model.check`.
        """
        now = rests_on(model)
        if now == self._rests_on:
            self._changes = 0
            return
        if self._rests_on is not None and now is not None:
            self._changes += 1
            if self._changes == _TOO_MANY_CHANGES:
                logger.info(
                    "steps of %s are recorded again and again: what they rest on has changed each of %d times that "
                    "requests joined: %s",
                    type(model).__name__,
                    _TOO_MANY_CHANGES,
                    _difference(now[0], self._rests_on[0]),
                )
        self.forget()
        self._rests_on = now
        self.refused = model.idle.refusals(now) if model.idle is not None else {}

    def version(self, model: Model) -> object:
        """The model's version at the last `check_model`; see `version_of`."""
        return version_of(model, self._rests_on)

    def forget(self) -> None:
        """Drop recordings, and everything that is known about steps."""
        self._drop()
        self._seen.clear()
        self.refused.clear()

    def _drop(self) -> None:
        self.recordings.clear()
        self._checked.clear()
        self.recording.clear()

    def lay_out(self, shared: int, rooms: Mapping[int, int]) -> None:
        """As `Decoder.lay_out`. Recordings are dropped first, because they would keep the old memory."""
        self._drop()
        self.decoder.lay_out(shared, rooms)

    def sizes(self) -> dict[torch.device, int]:
        """How many bytes all rows and recordings take on each device."""
        sizes, device = self.decoder.sizes(), self.decoder.device
        sizes[device] += sum(recording.nbytes for recording in self.recordings.values())
        return sizes

    def run(self, count: int, view: int, lengths: Sequence[int] = (), width: int = 1, *, timed: bool = False) -> None:
        """Run a step of the first `count` rows, which look at the first `view` columns.

        Args:
            width: how many tokens of each row it reads.
            lengths: how many columns each row has, with the new token, and 0 for a free row; empty if not known. If
                they are known, a row may look at only so many.
            timed: whether to learn what such a step costs.
        """
        begin = self.costs.mark() if timed else None
        started = perf_counter()
        self.decoder.rows.look_at(lengths)
        self._run(count, view, width)
        if self._measures and not self._on_cuda:
            self._slow_steps.learn((count, view, width), perf_counter() - started, torch.get_num_threads())
        if not self.records:
            self.costs.note(begin, count, width)

    def _run(self, count: int, view: int, width: int) -> None:
        decoder, self.records = self.decoder, False
        decoder.prepare(slice(0, count), width)
        kind = decoder.step_kind(width)
        key = count, view, width, *kind
        keeps = self._keeps and self._captures and decoder.replayable and self._rests_on is not None
        keeps = keeps and width <= _WIDEST
        if keeps and (recording := self.recordings.get(key)) is not None:
            recording()
            return
        keeps = keeps and (decoder.kind, kind) not in self.refused
        worth = _WORTH_OF_A_KNOWN_KIND if kind in self._checked else _WORTH
        self.records = keeps and self._runs(key) >= worth[decoder.device.type] and self._has_room(count, view)
        if self.records:
            with on_host_call(RepeatResults()):
                self._run_and_keep(partial(decoder.step, count, view, width), kind, key)
        else:
            decoder.step(count, view, width)

    def _runs(self, key: Hashable) -> int:
        """How often this shape has run since the rows last grew, this time included."""
        if len(self._seen) >= _MOST_SHAPES:
            self.forget()
        here = self.decoder.length, key
        self._seen[here] = self._seen.get(here, 0) + 1
        return self._seen[here]

    def _has_room(self, count: int, view: int) -> bool:
        """Whether a CPU's memory has room for a recording; CUDA raises an error when memory is out.

        Without room little is lost: so large a step takes far longer than the calls that recording saves.
        """
        if self._on_cuda or (free := free_bytes(torch.device("cpu"))) is None:
            return True
        looked_at = sum(self.sizes().values()) * min(1.0, count * view / self.decoder.tokens)
        return _HELD * looked_at <= free

    def _run_and_keep(self, step: "partial[None]", kind: Hashable, key: Hashable) -> None:
        """Record a step while it runs, or capture it and run the graph; if neither can be done, it runs as it is.

        A step that may not be recorded may not be captured either, so that a CPU tests what a GPU will do.
        """
        decoder = self.decoder
        before: list[tuple[Tensor, Tensor]] = []

        def restore() -> None:
            for tensor, value in before:
                tensor.copy_(value)

        try:
            before += [(tensor, tensor.clone()) for tensor in decoder.moving()]
            if not self._on_cuda and not decoder.search.reorders:  # a rehearsal would be the step itself
                self._record_on(step, kind, key)
                return
            seen = self._rehearsed(step, kind, before)
            restore()
            if not self._on_cuda:
                self.recordings[key] = record(step)
                return
            if not self.recordings and step.args[:2] != (decoder.count, decoder.length):
                self._capture_largest(restore, before)
            graph = self._captured(step, seen)
        except (CannotReplay, CaptureFailed, torch.OutOfMemoryError) as reason:
            self.recording.clear()
            self._refuse(reason, kind)
            restore()
            step()
        else:
            self.recordings[key] = graph
            graph()

    def _record_on(self, step: Callable[[], None], kind: Hashable, key: Hashable) -> None:
        """Go on with the recording of a step while it runs."""
        recording = self.recording.pop(key, None)
        if recording is None:
            recording = record_in_steps(step, [*self.decoder.moving()], self._checked.get(kind))
        recorded = next(recording)
        if recorded is not None:
            self.recordings[key] = self._checked[kind] = recorded
            return
        self.recording[key] = recording  # behind all others
        if len(self.recording) > _AT_ONCE:
            oldest = next(iter(self.recording))
            del self.recording[oldest]
            self._seen[self.decoder.length, oldest] = 0

    def _refuse(self, reason: CannotReplay | CaptureFailed | torch.OutOfMemoryError, kind: Hashable) -> None:
        """Do not try again what was refused, and log why."""
        if isinstance(reason, CaptureFailed):
            self._captures = False
            logger.warning("steps of %s are captured no more: %s", self._model, reason)
            return
        if isinstance(reason, CannotReplay):
            self.refused[self.decoder.kind, kind] = str(reason)
        else:  # there may be memory in the next call
            self._keeps = False
        logger.info("steps of %s are not %s: %s", self._model, "captured" if self._on_cuda else "replayed", reason)

    def _captured(self, step: Callable[[], None], seen: Replay[None]) -> Graph:
        """Capture a step. If memory is out, drop the graphs that there are, and capture it again in other memory.

        Raises:
            CaptureFailed: the capture was refused, or memory is still out.
        """
        try:
            return capture(step, seen.constants, self.recordings.values())
        except Exception as error:
            self.recordings.clear()  # the failed capture has left their memory open
            if not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # a capture can neither use memory that is cached for other work, nor free it
        try:
            return capture(step, seen.constants, ())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise CaptureFailed(f"memory is out: {error}") from error

    def _rehearsed(
        self, step: "partial[None]", kind: Hashable, before: Sequence[tuple[Tensor, Tensor]]
    ) -> Replay[None]:
        """The recording of a step in which each row's cache goes on from itself: otherwise caches would have to be
        copied as a whole before. It runs several times, unless it is like a recording of another shape.
        """
        stays = partial(step, stays=True)
        *_, recorded = record_in_steps(stays, [tensor for tensor, _ in before], self._checked.get(kind))
        assert recorded is not None  # the last one; tells mypy
        self._checked[kind] = recorded
        return recorded

    def _capture_largest(self, restore: Callable[[], None], before: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Capture the step of all rows and columns before any other: its memory is enough for the others."""
        decoder = self.decoder
        largest, kind = (decoder.count, decoder.length, 1), decoder.step_kind()
        step = partial(decoder.step, *largest)
        with on_host_call(leave_out):
            step(stays=True)  # it may never have run: kernels are compiled now, and objects that are made once are made
            restore()
            seen = self._rehearsed(step, kind, before)
        restore()
        self.recordings[*largest, *kind] = self._captured(step, seen)


def _difference(now: object, earlier: object) -> str:
    """What has changed, if the results of the model's `check` can say it."""
    tell = getattr(now, "difference", None)
    return str(tell(earlier)) if tell is not None and type(now) is type(earlier) else "its check() gives another value"
