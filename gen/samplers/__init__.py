"""Samplers: how the next token is chosen from the logits, on the device where they are."""

from gen.samplers.base import Sampled, Sampler
from gen.samplers.greedy_sampler import GreedySampler
from gen.samplers.multinomial_sampler import MultinomialSampler

greedy = GreedySampler
multinomial = MultinomialSampler

__all__ = ["GreedySampler", "MultinomialSampler", "Sampled", "Sampler", "greedy", "multinomial"]
