"""Samplers: how the next token is chosen from the logits, on the device where they are."""

from gen.samplers.base import Sampled, Sampler
from gen.samplers.beam_search_sampler import BeamSearchSampler
from gen.samplers.greedy_sampler import GreedySampler
from gen.samplers.multinomial_sampler import MultinomialSampler
from gen.samplers.processors import Processors

beam_search = BeamSearchSampler
greedy = GreedySampler
multinomial = MultinomialSampler

__all__ = [
    "BeamSearchSampler",
    "GreedySampler",
    "MultinomialSampler",
    "Processors",
    "Sampled",
    "Sampler",
    "beam_search",
    "greedy",
    "multinomial",
]
