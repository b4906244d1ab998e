"""Samplers: how the next token is chosen from the logits, on the device where they are."""

from gen.samplers.backends.random import sample_seed
from gen.samplers.base import Sampled, Sampler
from gen.samplers.beam_search_sampler import BeamSearchSampler
from gen.samplers.greedy_sampler import GreedySampler
from gen.samplers.multinomial_sampler import MultinomialSampler
from gen.samplers.outlines_processors import keep_top_k_logits, keep_top_p_logits, rescale_logits
from gen.samplers.penalties import Penalties

beam_search = BeamSearchSampler
greedy = GreedySampler
multinomial = MultinomialSampler

__all__ = [
    "BeamSearchSampler",
    "GreedySampler",
    "MultinomialSampler",
    "Penalties",
    "Sampled",
    "Sampler",
    "beam_search",
    "greedy",
    "keep_top_k_logits",
    "keep_top_p_logits",
    "multinomial",
    "rescale_logits",
    "sample_seed",
]
