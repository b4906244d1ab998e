"""Which search a request takes, what takes its results, and what these become."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import torch

from gen.loop.jobs import Job, Taker
from gen.loop.results.texts import Completion, Text
from gen.loop.searches.beams import Beams, BeamTexts
from gen.loop.searches.drawing import Drawing, draws
from gen.loop.searches.search import Search
from gen.loop.searches.user_sampler import UserSamplerTexts, UserSampling
from gen.models.base import Model
from gen.requests.request import Request
from gen.samplers import BeamSearchSampler
from gen.samplers.base import Sampler


@dataclass(frozen=True)
class Kind:
    """A kind of search: requests of one kind share a batch.

    Attributes:
        key: equal for equal kinds.
        width: how many rows a search has; 1 where every row is a text.
        search: makes it.
    """

    key: Hashable
    width: int
    search: Callable[[int, torch.device], Search]


def kind_of(sampler: Sampler) -> Kind:
    """The kind of a request's search."""
    if draws(sampler):
        return Kind("drawing", 1, Drawing)
    if type(sampler) is BeamSearchSampler:
        key = sampler.beams, sampler.length_penalty, sampler.early_stopping
        return Kind(("beams", *key), sampler.beams, partial(Beams, sampler))
    return Kind(("custom", id(sampler)), sampler.samples, partial(UserSampling, sampler))


def new_job(model: Model, request: Request, *, streamed: bool = False) -> Job:
    """A request as a batch takes it."""
    kind, tokenizer = kind_of(request.sampler), model.tokenizer
    takers: list[Taker]
    if kind.key == "drawing":
        takers = [Text(request, sample, tokenizer, streamed=streamed) for sample in range(len(request.seeds))]
    elif type(request.sampler) is BeamSearchSampler:
        takers = [BeamTexts(request, kind.width, tokenizer)]
    else:
        texts = [Text(request, sample, tokenizer, streamed=streamed) for sample in range(len(request.seeds))]
        takers = [UserSamplerTexts(texts)]
    return Job(request, takers, width=kind.width)


def completions(job: Job) -> list[Completion]:
    """What has become of a job's texts.

    Raises:
        GenError: what went wrong with one of them.
    """
    if job.error is not None:
        raise job.error
    made: list[Completion] = []
    for taker in job.takers:
        if isinstance(taker, BeamTexts):
            made += taker.completions()
        else:
            texts = taker.texts if isinstance(taker, UserSamplerTexts) else [taker]
            made += [text.completion() for text in texts]  # type: ignore[attr-defined]
    return made


def only_text(job: Job) -> Text | None:
    """The text of a job that makes one, and makes it token by token."""
    texts = [taker for one in job.takers for taker in (one.texts if isinstance(one, UserSamplerTexts) else [one])]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], Text) else None
