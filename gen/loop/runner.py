"""Runs one batch to its end, through errors: with half the rows if memory is out, else without the jobs to blame.

`run_all` sorts many jobs into batches by their kind of search, and runs one batch after the other. If all rows of a
model must have room for as much as the longest one, jobs are sorted by length too.
"""

import sys
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Self

from gen.errors import ModelError, ResultError
from gen.loop.jobs import Job, fail_all, new_job, not_ended
from gen.loop.memory import TooManyRows, check_room, is_out_of_memory
from gen.loop.options import Options
from gen.loop.prefixes.sharing import together
from gen.loop.row_pool import RowPool
from gen.loop.scheduler import Scheduler
from gen.loop.searches.by_sampler import kind_of_search
from gen.loop.slots import view_bucket
from gen.loop.speculation.widths import columns_for_drafts
from gen.models.base import Model
from gen.requests.processors import LogitsProcessor

_HEADROOM = 128  # new tokens that a new set of rows has room for before it grows, which drops recordings


class Runner:
    """A batch over rows that the model keeps from call to call; after an error it goes on in other rows.

    Args:
        jobs: the jobs that it begins with, all of one kind; see `gen.loop.prefixes.sharing.together` for their order.
        rows: how many rows to use, if the options allow it; None for as many as the jobs need.
    Raises:
        ModelError: memory has no room for the rows of even one prompt.
    """

    _exiting = staticmethod(sys.is_finalizing)  # then modules have lost their names

    def __init__(self, model: Model, jobs: Sequence[Job], options: Options, rows: int | None = None) -> None:
        self._model, self._options = model, options
        self._kind = kind_of_search(jobs[0].request.sampler)
        order, wanted = together(jobs), rows or sum(job.rows for job in jobs)
        drafts = columns_for_drafts(model, jobs[0].request.sampler, options.speculate, wanted)
        self._pool = RowPool(
            model,
            self._kind,
            options,
            least=max(job.width for job in order),
            largest=max(job.rows for job in order),
            lengths=[view_bucket(len(job.tokens) + _headroom(job) + drafts) for job in order],
            rows=rows,
        )
        self._steps = self._pool.take(wanted)
        self._batch = self._new_batch(order)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(broken=kind is not None and kind is not GeneratorExit)

    def close(self, *, broken: bool = False) -> None:
        """Give the rows back to the model; with `broken`, the rows of a call that broke off are dropped."""
        if hasattr(self, "_steps") and not self._exiting():  # there are none if memory was out for the fewest rows
            self._pool.give_back(self._steps, keep=not broken)

    def current(self) -> AbstractContextManager[None]:
        """See `gen.runtime.streams.Streams.current`; to advance often, stay in such a block."""
        return self._steps.decoder.streams.current()

    @property
    def idle(self) -> bool:
        return self._batch.idle

    def add(self, job: Job) -> None:
        """See `Scheduler.add`; a job with more texts than the rows hold runs part by part.

        If the rows do not serve the model any more, all jobs go on in new ones.
        """
        if not self._steps.decoder.serves(self._model):
            jobs, count = self._batch.give_up(), self._steps.decoder.count
            self._drop()
            self._restart(jobs, count)
        for part in job.split(self._model, self._steps.decoder.count):
            self._batch.add(part)

    def advance(self) -> None:
        """See `Scheduler.advance`; after an error, texts go on in new rows from the tokens that they have.

        A prompt that does not fit into memory, even alone, ends with a ModelError.

        Raises:
            ModelError: there is no memory for new rows.
            Exception: the error, if no request is to blame for it.
        """
        try:
            self._batch.advance()
        except Exception as error:
            self._recover(error)

    def drain(self) -> None:
        """Advance until nothing is left."""
        while not self.idle:
            try:
                self._batch.drain()
            except Exception as error:
                self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Go on in new rows: half as many if memory is out, else without the jobs that are to blame."""
        jobs, decoder = self._batch.give_up(), self._steps.decoder
        count, failing = decoder.count, decoder.failing
        running = [job for job in jobs if job.launched]
        self._pool.least = self._pool.whole(max((job.width for job in jobs), default=self._kind.width))
        rows, short, serves = count, is_out_of_memory(error), decoder.serves(self._model)
        if short:
            try:
                rows = self._pool.fewer(count, error)
            except ModelError as too_large:
                if not jobs or isinstance(too_large, TooManyRows):
                    raise
                # if none was running, the first waiting prompt was being read
                fail_all(running or jobs[:1], too_large)
        traceback.clear_frames(error.__traceback__)  # the frames hold memory that must be freed
        del decoder
        self._drop()  # before new rows are made
        if not short and serves:
            self._blame(error, failing, jobs, running)
        self._restart(not_ended(jobs), rows)

    def _blame(self, error: Exception, failing: Sequence[LogitsProcessor], jobs: list[Job], running: list[Job]) -> None:
        """End the jobs that are to blame for an error.

        Suspects are the jobs whose functions have failed, or else all that were running. If there are several, each is
        run alone, as far as it had come, and those that fail are to blame. If none fails alone, all jobs whose
        functions have failed are to blame; without such functions, no job is.

        Raises:
            Exception: the error, if no job is to blame.
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
        fail_all([job for job in suspects if not job.ended], error)

    def _try(self, job: Job) -> None:
        """Run a job alone until it has come further than before; if there is an error, the job ends with it."""
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
        """Drop the rows, and give back memory that was lent."""
        self._steps.decoder.rows.give_back()
        del self._batch, self._steps

    def _restart(self, jobs: Sequence[Job], rows: int) -> None:
        """Run jobs in new rows."""
        self._pool.begin_with([view_bucket(job.longest) for job in jobs] or [self._pool.length], rows)
        self._steps = self._pool.make(rows)
        self._batch = self._new_batch([self._resumed(job) for job in jobs])

    def _resumed(self, job: Job) -> Job:
        """Prepare a job to go on in other rows: a draw continues after the tokens that it has, a search starts over.

        If each row must get the same bits in any batch, a draw starts over too, because tokens that are read like a
        prompt's would get other bits. It makes the same tokens again, which are dropped.
        """
        job.launched = job.ahead = job.read = job.cached = 0
        if (text := job.only_text) is None:
            job.takers = new_job(self._model, job.request).takers
            return job
        if len(job.request.seeds) > 1:  # it is one of several texts of a prompt
            job.request = replace(job.request, seeds=(text.seed,))
        if self._options.step_rows > 1:
            job.known = len(text.token_ids)
        else:
            job.resumed, job.weight = list(text.token_ids), sum(text.logprobs)
        return job

    def _new_batch(self, jobs: Sequence[Job]) -> Scheduler:
        batch = Scheduler(
            self._model,
            self._steps,
            self._options,
            width=self._kind.width,
            tokens=self._pool.room(self._steps.decoder),
            tree=self._pool.tree,
        )
        for job in jobs:
            for part in job.split(self._model, self._steps.decoder.count):
                batch.add(part)
        return batch


def _headroom(job: Job) -> int:
    """How many new tokens its rows have room for at first."""
    return min(job.request.limit, max(_HEADROOM, len(job.request.draft)))


_NEAR = 32  # prompts of a batch may differ by so many columns, and by as many more as the shorter prompt has


def run_all(
    model: Model, jobs: Sequence[Job], options: Options, progress: Callable[[Job], object] | None = None
) -> None:
    """Run jobs until all have ended; the error of a job that has failed is in the job.

    Args:
        progress: called with every job that has ended.
    Raises:
        ArgumentError: a job needs more room than there may be; nothing has run.
    """
    todo = sorted((job for job in jobs if not job.ended), key=lambda job: -job.longest)
    check_room((job.request for job in todo), options.step_rows, options.max_batch_tokens)
    groups: list[list[Job]] = []
    last: dict[Hashable, list[Job]] = {}
    for job in jobs:
        job.done = progress
        if job.ended:
            job.finish()
    parts = model.parts_rows  # then a batch has room for any lengths
    for job in todo:
        # under a bound, jobs of a batch have equally many rows each, so that each has room where the longest has
        kind = kind_of_search(job.request.sampler).key, job.width if options.max_batch_tokens is not None else None
        group = last.get(kind)
        if group is None or not ((parts and job.width == 1) or _alike(group[0], job)):
            group = last[kind] = []
            groups.append(group)
        group.append(job)
    for group in groups:
        try:
            with Runner(model, group, options, options.rows if options.fixed else None) as runner:
                runner.drain()
        except Exception as error:  # not the error of a single prompt: all jobs that have not ended get it
            fail_all([job for job in group if not job.ended], error)


def _alike(longest: Job, job: Job) -> bool:
    """Whether a job's prompt is not much shorter than the longest one of its batch, for which all rows have room."""
    return view_bucket(len(longest.tokens)) <= 2 * view_bucket(len(job.tokens)) + _NEAR
