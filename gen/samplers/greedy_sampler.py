"""The most likely token."""

from typing import Unpack

import torch
from torch import Tensor

from gen.samplers.base import Sampled, step_with_generator
from gen.samplers.paths import path_of
from gen.samplers.processors import Processors, ProcessorSettings


class GreedySampler:
    """Takes each row's most likely token.

    Order: none; it has no parameters. Ties: the lowest index. The weight grows by the token's log-probability under
    the softmax of the logits. Device: that of the logits. Host sync: none on CUDA. Source: as transformers' greedy
    search; the maximum is looked for in blocks of 128 first.

    Args:
        settings: see `gen.samplers.Processors`.
    """

    def __init__(self, **settings: Unpack[ProcessorSettings]) -> None:
        self.processors = Processors.read("GreedySampler", settings, [])
        self.samples = 1

    @torch.no_grad()
    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`; the keys are not used."""
        token_ids, logprobs = path_of(logits).most_likely(logits)
        return token_ids, torch.arange(len(logits), device=logits.device), weights + logprobs

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
