"""Requests as the loop takes them, for tests that choose how many rows there are."""

from typing import Any

from gen.loop.jobs import Job
from gen.loop.kinds import completions, new_job
from gen.loop.running import Options, run
from gen.loop.texts import Completion
from gen.reading import read_requests
from gen.samplers import greedy


def new_jobs(model: Any, prompts: Any, *, max_new_tokens: Any = 128, **arguments: Any) -> list[Job]:
    """A job for each prompt; arguments are those of `gen.generate`."""
    samplers = arguments.pop("sampler", greedy())
    requests = read_requests(
        model,
        prompts,
        samplers=samplers if isinstance(samplers, list) else [samplers] * len(prompts),
        max_new_tokens=max_new_tokens,
        images=[[] for _ in prompts],
        **arguments,
    )
    return [new_job(model, request) for request in requests]


def run_in_rows(model: Any, prompts: Any, rows: int, **arguments: Any) -> list[list[Completion]]:
    """Each prompt's texts, in a batch of so many rows."""
    jobs = new_jobs(model, prompts, **arguments)
    run(model, jobs, Options(rows=rows))
    return [completions(job) for job in jobs]
