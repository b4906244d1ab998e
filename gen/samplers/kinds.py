"""The kinds of samplers, which the loop treats differently: rows drawn independently, beams, or a user's own search."""

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from torch import Tensor

from gen.errors import ArgumentError
from gen.samplers.base import Sampler
from gen.samplers.beam_search_sampler import BeamSearchSampler
from gen.samplers.greedy_sampler import GreedySampler
from gen.samplers.multinomial_sampler import MultinomialSampler

NAMES: Mapping[type, str] = {
    GreedySampler: "greedy",
    MultinomialSampler: "multinomial",
    BeamSearchSampler: "beam_search",
}
"""The functions of `gen.samplers` that make them."""
_NUMBERS = "temperature", "top_k", "top_p", "min_p"


def has_tensors(sampler: object) -> bool:
    """Whether a sampler has tensors as parameters, with a value for each row."""
    return isinstance(sampler, MultinomialSampler) and any(
        isinstance(getattr(sampler, name), Tensor) for name in _NUMBERS
    )


def draws(sampler: Sampler) -> bool:
    """Whether a sampler is one of gen's own whose rows are independent and whose parameters are numbers."""
    return type(sampler) in (GreedySampler, MultinomialSampler) and not has_tensors(sampler)


def refuse_tensors(samplers: Iterable[object]) -> None:
    """Raise an ArgumentError if a sampler of several prompts has tensors as parameters."""
    if any(map(has_tensors, samplers)):
        raise ArgumentError(
            "the sampler's parameters are tensors, with a value for each row, and the rows of several prompts have no "
            "order; give numbers, and where prompts differ a list with a sampler for each."
        )


def is_beam_search(sampler: Sampler) -> TypeGuard[BeamSearchSampler]:
    """Whether a sampler is gen's beam search, or a subclass of it without a step of its own."""
    return isinstance(sampler, BeamSearchSampler) and type(sampler).step is BeamSearchSampler.step


def search_width(sampler: Sampler) -> int:
    """How many rows the search for a prompt has; 1 if each row is a text of its own."""
    return 1 if draws(sampler) else sampler.samples
