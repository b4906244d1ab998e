"""Runs many requests to their end: sorted into batches by their kind of search, one batch after the other.

If all rows of a model must have room for as much as the longest one, requests are sorted by length too.
"""

from collections.abc import Callable, Hashable, Sequence

from gen.loop.jobs import Job, fail_all
from gen.loop.memory import check_room
from gen.loop.options import Options
from gen.loop.runner import Runner
from gen.loop.searches.by_sampler import kind_of_search
from gen.loop.slots import view_bucket
from gen.models.base import Model

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
    todo = sorted((job for job in jobs if not job.ended), key=lambda job: -len(job.tokens))
    rows = ((job.request.number, job.width * options.step_rows, job.most_tokens) for job in todo)
    check_room(rows, options.max_batch_tokens)
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
