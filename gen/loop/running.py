"""Runs requests to their end: sorted by kind of search into batches, over rows that the model keeps between calls."""

import logging
import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from gen.errors import ModelError, ResultError
from gen.isolation import settings_of_the_process
from gen.loop.batch import ADMIT_TOKENS, Batch
from gen.loop.cuda_streams import Streams
from gen.loop.jobs import Job
from gen.loop.kinds import kind_of, new_job, only_text
from gen.loop.memory import TooLong, check_room, is_out_of_memory, token_bytes, tokens_that_fit
from gen.loop.row_set import RowSet, Stage
from gen.loop.slots import view_bucket
from gen.models.base import Checked, Lent, Model, NoRoom
from gen.models.idle_rows import Idle
from gen.requests.request import LogitsProcessor
from gen.stages.device_constraints import DeviceConstraints
from gen.stages.host_constraints import HostConstraints
from gen.stages.penalties import Penalties
from gen.stages.user_processors import UserProcessors

logger = logging.getLogger("gen")

ROWS = {"cpu": 64, "cuda": 256}  # at most, by type of device
_HEADROOM = 96  # new tokens that a new set of rows has room for before it grows, which drops recordings
_NEAR = 32  # columns by which prompts of a batch may differ, and as much again as the shorter one has
_KEPT_BYTES = 2**29  # of an idle set of rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """How requests are run; the texts are the same with any.

    Attributes:
        replay: whether steps are recorded on a CPU where they can be.
        cuda_graph: whether steps are captured on CUDA where they can be.
        max_batch_tokens: how many tokens rows may have room for together; None for what fits into free memory.
        rows: how many rows at most; None for the device's usual number.
        admit_tokens: how many tokens of prompts are read at most between two steps of the rows that go on.
    """

    replay: bool = True
    cuda_graph: bool = True
    max_batch_tokens: int | None = None
    rows: int | None = None
    admit_tokens: int = ADMIT_TOKENS


def run(model: Model, jobs: Sequence[Job], options: Options, progress: Callable[[Job], object] | None = None) -> None:
    """Run jobs until all have ended; what went wrong with one is in the job.

    Args:
        progress: told of every job that has ended.
    Raises:
        ArgumentError: one needs more room than there may be; nothing has run.
    """
    todo = sorted((job for job in jobs if not job.ended), key=lambda job: -len(job.tokens))
    check_room(((job.request.number, job.rows, job.most_tokens) for job in todo), options.max_batch_tokens)
    groups: list[list[Job]] = []
    last: dict[Hashable, list[Job]] = {}
    for job in jobs:
        job.done = progress
        if job.ended:
            job.finish()
    for job in todo:
        # under a bound those of one number of rows, so that each has room where the longest has
        kind = kind_of(job.request.sampler).key, job.rows if options.max_batch_tokens is not None else None
        group = last.get(kind)
        if group is None or not _alike(group[0], job):
            group = last[kind] = []
            groups.append(group)
        group.append(job)
    for group in groups:
        try:
            with Runner(model, group, options) as runner:
                runner.drain()
        except Exception as error:  # no prompt's own: all that have not ended get it
            for job in group:
                if not job.ended:
                    job.fail(error)


def _alike(longest: Job, job: Job) -> bool:
    """Whether a job's prompt is not much shorter than the longest one of its batch, as which all are looked at."""
    return view_bucket(len(longest.tokens)) <= 2 * view_bucket(len(job.tokens)) + _NEAR


class Runner:
    """A batch over rows that the model keeps from call to call, which goes on after errors: with fewer rows when memory
    is out, else without the requests that are to blame.

    Args:
        jobs: what it begins with, all of one kind; like lengths go together, and what takes longest begins first.
        rows: how many rows, where the options allow it; None for as many as the jobs need.
    """

    def __init__(self, model: Model, jobs: Sequence[Job], options: Options, rows: int | None = None) -> None:
        self._model, self._options = model, options
        self._idle: Idle[RowSet] | None = getattr(model, "idle", None)
        self._kind = kind_of(jobs[0].request.sampler)
        checked = model.check() if isinstance(model, Checked) else None
        self._rests_on = None if checked is None else (checked, settings_of_the_process())
        self._least = max(job.rows for job in jobs)
        order = sorted(jobs, key=lambda job: (len(job.tokens) // 16, job.request.limit), reverse=True)
        self._length = max(view_bucket(len(job.tokens) + min(job.request.limit, _HEADROOM)) for job in order)
        rows = rows or sum(job.rows for job in order)
        self._warned = False
        self._streams = Streams(model.placement)
        self._rows = self._lease(rows) or self._new_rows(min(rows, self._most_rows()))
        self._batch = self._new_batch(order)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(broken=kind is not None and kind is not GeneratorExit)

    def close(self, *, broken: bool = False) -> None:
        """Give the rows back to the model; those of a call that broke off are dropped."""
        if not hasattr(self, "_rows"):  # memory was out, and not even fewer were to be had
            return
        if isinstance(self._rows.rows, Lent):
            self._rows.rows.give_back()
        elif self._idle is not None and not broken and self._rows.bytes() <= _KEPT_BYTES:
            self._idle.put(self._rows)

    @property
    def idle(self) -> bool:
        """See `Batch.idle`."""
        return self._batch.idle

    def add(self, job: Job) -> None:
        """See `Batch.add`."""
        self._batch.add(job)

    def advance(self) -> None:
        """See `Batch.advance`; after an error rows begin anew with what their texts have.

        Raises:
            ModelError: not even one prompt fits into memory.
            Exception: what was raised where no request is to blame.
        """
        try:
            self._batch.advance()
            self._measure()
        except Exception as error:
            self._recover(error)

    def drain(self) -> None:
        """Advance until nothing is left."""
        while not self.idle:
            self.advance()  # which sees what a token takes
            try:
                self._batch.drain()
            except Exception as error:
                self._recover(error)

    def _measure(self) -> None:
        """See what a token takes, where that is not known.

        Raises:
            TooLong: the rows have room for more tokens than fit.
        """
        rows, idle = self._rows, self._idle
        if idle is None or idle.token_bytes is not None or not rows.filled or isinstance(rows.rows, Lent):
            return
        idle.token_bytes = token_bytes(rows.rows)
        most = self._room()
        if most is not None and rows.count > self._least and rows.count * rows.length > most:
            raise TooLong(rows.length)

    def _room(self, rows: RowSet | None = None) -> int | None:
        """How many tokens rows, some that are there or new ones, may have room for; None where there is no bound."""
        if self._options.max_batch_tokens is not None or self._idle is None or self._idle.token_bytes is None:
            return self._options.max_batch_tokens
        held = rows.count * rows.length if rows is not None and rows.filled else 0
        return tokens_that_fit(self._model.placement, self._idle.token_bytes, held)

    def _recover(self, error: Exception) -> None:
        """Go on in new rows: half as many where memory is out, else without those who are to blame."""
        jobs, count, failing = self._batch.give_up(), self._rows.count, self._rows.failing
        running = [job for job in jobs if job.launched]
        self._least = max((job.rows for job in jobs), default=self._kind.width)
        short = is_out_of_memory(error)
        rows = self._fewer(count, error) if short else count
        traceback.clear_frames(error.__traceback__)  # they hold what is to be freed
        self._drop()  # before others are made
        if not short:
            self._blame(error, failing, jobs, running)
        self._restart([job for job in jobs if not job.ended], rows)

    def _blame(self, error: Exception, failing: Sequence[LogitsProcessor], jobs: list[Job], running: list[Job]) -> None:
        """End the jobs that an error is about.

        Those whose functions have failed are to blame, or any that was running. Which of several it was is seen when
        each is run alone, as far as it had come; if all can, it was the functions, or else nobody's fault.

        Raises:
            Exception: the error, where nobody is to blame.
        """
        alike = isinstance(error, ResultError)  # no prompt can go on with what the functions, or the sampler, give
        suspects = [job for job in (jobs if alike else running) if not failing or job.runs(failing)]
        if not alike and (len(suspects) > 1 or not failing):
            for job in suspects:
                self._try(job)
            if any(job.error is not None for job in suspects):
                return
        if not failing:
            raise error
        for job in suspects:
            if not job.ended:
                job.fail(error)

    def _try(self, job: Job) -> None:
        """Run a job alone until it has come further than it had; it ends with the error that it meets."""
        before = job.launched
        self._restart([job], job.rows)
        batch = self._batch
        try:
            while not job.ended and job.launched <= before and not batch.idle:
                batch.advance()
        except Exception as error:
            if not is_out_of_memory(error):
                job.fail(error)
                traceback.clear_frames(error.__traceback__)
        del batch
        self._drop()

    def _drop(self) -> None:
        """Let the rows go, and give back what was lent."""
        if isinstance(self._rows.rows, Lent):
            self._rows.rows.give_back()
        del self._batch, self._rows

    def _restart(self, jobs: Sequence[Job], rows: int) -> None:
        """Run jobs in new rows."""
        self._length = max((view_bucket(len(job.tokens)) for job in jobs), default=self._length)
        self._rows = self._new_rows(rows)
        self._batch = self._new_batch([self._resumed(job) for job in jobs])

    def _fewer(self, count: int, error: Exception) -> int:
        """Half as many rows.

        Raises:
            ModelError: there are as few as can be.
        """
        if count <= self._least:
            raise ModelError(
                f"not even one prompt at a time fits into the memory of {self._model.placement.logits_device}: {error} "
                "Give shorter prompts, or a smaller max_new_tokens."
            ) from error
        rows = count // 2
        if isinstance(error, TooLong) and (room := self._room()) is not None:
            rows = min(rows, room // error.length)
        rows = max(self._least, rows // self._kind.width * self._kind.width)
        if not self._warned and not isinstance(error, NoRoom):
            logger.warning("out of memory with %d rows; going on with %d: %s", count, rows, str(error))
            self._warned = True
        return rows

    def _resumed(self, job: Job) -> Job:
        """A job that begins anew in other rows: a draw goes on after the tokens that it has, a search starts over."""
        job.launched = job.read = 0
        if (text := only_text(job)) is not None:
            job.resumed, job.weight = list(text.token_ids), sum(text.logprobs)
        else:
            job.takers = new_job(self._model, job.request).takers
        return job

    def _new_batch(self, jobs: Sequence[Job]) -> Batch:
        options = self._options
        # a prompt that memory may have no room for has its chance, unless the caller has said how much there is
        bounded = options.max_batch_tokens is not None or self._rows.count > self._least
        batch = Batch(
            self._model,
            self._rows,
            width=self._kind.width,
            tokens=self._room(self._rows) if bounded else None,
            admit_tokens=options.admit_tokens,
            replay=options.replay and self._rests_on is not None,
            cuda_graph=options.cuda_graph and self._rests_on is not None,
        )
        for job in jobs:
            batch.add(job)
        return batch

    def _most_rows(self, rows: RowSet | None = None) -> int:
        """How many rows at most, of a set that is there or a new one: a whole number of searches."""
        options = self._options
        most = options.rows or ROWS.get(self._model.placement.logits_device.type, ROWS["cpu"])
        if (room := self._room(rows)) is not None:
            most = min(most, room // self._length)
        return max(most, self._least) // self._kind.width * self._kind.width

    def _lease(self, rows: int) -> RowSet | None:
        """The model's idle set of rows where it fits, for this call alone."""
        leased = self._idle.take() if self._idle is not None else None
        if leased is None:
            return None
        self._streams = leased.streams
        if leased.kind != self._kind.key or not self._fits(leased, rows):
            return None
        if leased.rests_on != self._rests_on:
            leased.forget()
            leased.rests_on = self._rests_on
        return leased

    def _fits(self, leased: RowSet, rows: int) -> bool:
        """Whether a set has as many rows as are needed, and no more than may be."""
        options, tokens = self._options, leased.count * leased.length
        rows = min(rows, self._most_rows(leased))
        return rows <= leased.count <= (options.rows or leased.count) and tokens <= (options.max_batch_tokens or tokens)

    def _new_rows(self, rows: int) -> RowSet:
        """A set of rows; fewer where memory does not do."""
        # what constraints forbid, nothing after them allows again
        stages: tuple[Callable[[int, torch.device], Stage], ...] = (
            Penalties,
            UserProcessors,
            HostConstraints,
            DeviceConstraints,
        )
        while True:
            most = self._options.max_batch_tokens
            length = self._length if most is None else min(self._length, most // rows)
            try:
                with self._streams.current():
                    made = RowSet(self._model, rows, length, self._kind.key, self._kind.search, stages, self._streams)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                rows = self._fewer(rows, error)
            else:
                made.rests_on = self._rests_on
                return made
