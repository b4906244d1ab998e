"""The kinds of samplers, which the loop treats differently: rows drawn independently, beams, or a user's own search."""

from typing import TypeGuard

from torch import Tensor

from gen.samplers.base import Sampler
from gen.samplers.beam_search_sampler import BeamSearchSampler
from gen.samplers.greedy_sampler import GreedySampler
from gen.samplers.multinomial_sampler import MultinomialSampler

_NUMBERS = "temperature", "top_k", "top_p", "min_p"


def draws(sampler: Sampler) -> bool:
    """Whether a sampler is one of gen's own whose rows are independent and whose parameters are numbers."""
    if type(sampler) is GreedySampler:
        return True
    return type(sampler) is MultinomialSampler and not any(
        isinstance(getattr(sampler, name), Tensor) for name in _NUMBERS
    )


def is_beam_search(sampler: Sampler) -> TypeGuard[BeamSearchSampler]:
    """Whether a sampler is gen's beam search, or a subclass of it without a step of its own."""
    return isinstance(sampler, BeamSearchSampler) and type(sampler).step is BeamSearchSampler.step


def search_width(sampler: Sampler) -> int:
    """How many rows the search for a prompt has; 1 if each row is a text of its own."""
    return 1 if draws(sampler) else sampler.samples
