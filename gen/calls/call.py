"""A call of the user that was read, and its result from the jobs that ran its requests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gen.completions import Completion
from gen.errors import BatchError, GenError, own
from gen.loop.jobs import Job
from gen.loop.results.values import valued
from gen.requests.request import Request
from gen.samplers import MultinomialSampler
from gen.samplers.kinds import is_beam_search

Result = str | Completion | list[str] | list[Completion] | list[str | list[str]] | list[Completion | list[Completion]]


@dataclass(frozen=True)
class Call:
    """A call of `generate`, read and checked.

    Attributes:
        requests: one for each prompt that could be read.
        batch: whether the prompts came as a list.
        returned: how many of a beam search's texts are returned.
        details: whether completions are returned instead of values.
        failed: the errors of the other prompts, by the prompt's number; None if the call raises errors.
        step_rows: see `gen.calls.reading.find_step_rows`.
    """

    requests: list[Request]
    batch: bool
    returned: int
    details: bool
    failed: dict[int, GenError] | None = None
    step_rows: int = 1

    def submitted(self) -> list[Request]:
        """A request for each text that each prompt's sampler makes, in order, as an engine takes them."""
        return [text for request in self.requests for text in _texts(request)]

    def completions(self, job: Job) -> list[Completion]:
        """A prompt's completions, without the values of its output type."""
        found = job.completions()
        return found[: self.returned] if is_beam_search(job.request.sampler) else found

    def result(self, job: Job) -> Any:
        """A prompt's value or completion, or all of them where its sampler makes several."""
        beams = is_beam_search(job.request.sampler)
        several = self.returned > 1 if beams else len(job.request.seeds) > 1
        made = [valued(job.request, one, rank) for rank, one in enumerate(self.completions(job))]
        results: list[Any] = [one if self.details else one.value for one in made]
        return results if several else results[0]

    def so_far(self, jobs: Sequence[Job]) -> list[Any]:
        """What there is of each prompt's result by now; see `gen.Interrupted`."""
        found: dict[int, Any] = dict(self.failed or {})
        for job in jobs:
            try:
                found[job.request.number] = self.result(job) if job.ended else _begun(job)
            except Exception as error:  # as in `results`
                found[job.request.number] = error if self.failed is not None else None
        return [found[number] for number in sorted(found)]

    def results(self, jobs: Sequence[Job]) -> Result:
        """What the call returns.

        Raises:
            BatchError: some prompts have failed. If all have, the error of the first one is raised itself; of several
                prompts, it has the `results` too.
        """
        found: dict[int, Any] = {}
        errors: dict[int, Exception] = dict(self.failed or {})
        for job in jobs:
            try:
                found[job.request.number] = self.result(job)
            except Exception as error:  # a model, or a processor of the user, may raise any error
                errors[job.request.number] = error
        both = found | errors
        results: list[Any] = [both[number] for number in sorted(both)]
        if self.failed is not None:
            return results
        if errors and not found:
            first: Any = errors[0]
            if len(errors) > 1:
                first.results = [*map(own, results)]  # not itself: such a circle would keep its frames
                first.add_note(f"All {len(errors)} prompts failed; the error of each is in .results of this error.")
            raise first
        if errors:
            raise BatchError(len(jobs), errors, results) from next(iter(errors.values()))
        returned: Result = results if self.batch else results[0]
        return returned


def _begun(job: Job) -> Any:
    """The texts so far of a prompt that still runs: one, or a list of several; None if no token has come."""
    texts = [text.so_far() for text in job.texts]
    if not any(text.token_ids for text in texts):
        return None
    return texts if len(job.request.seeds) > 1 else texts[0]


def _texts(request: Request) -> list[Request]:
    """A request for each of a prompt's samples, with its seed."""
    sampler = request.sampler
    if len(request.seeds) == 1 or not isinstance(sampler, MultinomialSampler):
        return [request]
    one = replace(sampler, samples=1)
    return [
        replace(request, sampler=one, seeds=(seed,), sample=request.sample + number)
        for number, seed in enumerate(request.seeds)
    ]
