"""Requests as the loop takes them, for tests that choose how many rows there are."""

from typing import Any

from gen.calls.reading import read_call
from gen.completions import Completion
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.replay.recorded import Recorded
from gen.loop.runner import run_all
from gen.requests.settings import Settings
from gen.samplers import greedy


def new_jobs(model: Any, prompts: Any, output_type: Any = None, **arguments: Any) -> list[Job]:
    """A job for each prompt. The arguments are those of `gen.generate`; the sampler is greedy unless you give one."""
    settings = Settings(**{"sampler": greedy()} | arguments)
    call = read_call(model, prompts, output_type, settings, details=True)
    return [new_job(model, request) for request in call.requests]


def run_in_rows(model: Any, prompts: Any, rows: int, **arguments: Any) -> list[list[Completion]]:
    """Each prompt's texts, made in a batch of `rows` rows."""
    jobs = new_jobs(model, prompts, **arguments)
    run_all(model, jobs, Options(rows=rows))
    return [job.completions() for job in jobs]


def kept_rows(model: Any) -> Recorded:
    """The set of rows that the model keeps, without taking it away."""
    rows = model.idle.take()
    model.idle.put(rows)
    assert isinstance(rows, Recorded)
    return rows


def check_resumed(model: Any, kind: Any, every: int, **arguments: Any) -> None:
    """A text of a type is the same where it begins anew in other rows, after any number of its tokens."""
    [[wanted]] = run_in_rows(model, ["x"], 1, output_type=kind, **arguments)
    for made_before in range(0, len(wanted.token_ids), every):
        [job] = new_jobs(model, ["x"], kind, **arguments)
        job.resumed = wanted.token_ids[:made_before]
        for token_id, logprob in zip(job.resumed, wanted.logprobs, strict=False):
            job.takers[0].push(token_id, logprob)  # type: ignore[attr-defined]
        run_all(model, [job], Options())
        assert job.completions()[0].token_ids == wanted.token_ids
