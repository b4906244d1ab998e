"""Which search a sampler needs, and which objects take the results of the search on the host."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gen.loop.results.texts import Taker, Text
from gen.loop.searches.beams import Beams, BeamTexts
from gen.loop.searches.drawing import Drawing
from gen.loop.searches.search import Search
from gen.loop.searches.user_sampler import UserSamplerTexts, UserSampling
from gen.samplers import BeamSearchSampler
from gen.samplers.base import Sampler
from gen.samplers.kinds import draws, is_beam_search, search_width


@dataclass(frozen=True)
class Kind:
    """A kind of search: requests of one kind share a batch.

    Attributes:
        key: equal for equal kinds.
        width: how many rows a search has; 1 if every row is a text.
        search: makes the search.
        takers: makes the takers of a request's results from its texts, one for each seed, which have no tokens yet.
    """

    key: Hashable
    width: int
    search: Callable[[int, torch.device], Search]
    takers: Callable[[Sequence[Text]], Sequence[Taker]]


def kind_of_search(sampler: Sampler) -> Kind:
    """The kind of a request's search."""
    width = search_width(sampler)
    if draws(sampler):
        return Kind("drawing", width, Drawing, tuple)
    if is_beam_search(sampler):
        own = None if type(sampler) is BeamSearchSampler else id(sampler)
        key = sampler.beams, sampler.length_penalty, sampler.early_stopping, own
        return Kind(("beams", *key), width, partial(Beams, sampler), lambda texts: [BeamTexts(*texts)])
    search = partial(UserSampling, sampler)
    return Kind(("user", id(sampler)), width, search, lambda texts: [UserSamplerTexts(texts)])
