"""The most likely token."""

import torch
from torch import Tensor

from gen.errors import refuse_unknown
from gen.samplers.base import Sampled, step_with_generator
from gen.samplers.paths import path_of


class GreedySampler:
    """Takes each row's most likely token.

    Order: none; it has no parameters. Ties: the lowest index. The weight grows by the token's log-probability under
    the softmax of the logits. Device: that of the logits. Host sync: none on CUDA.
    """

    def __init__(self, **unknown: object) -> None:
        refuse_unknown("GreedySampler", unknown, [])
        self.samples = 1

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`; the keys are not used."""
        token_ids, logprobs = path_of(logits).most_likely(logits)
        return token_ids, torch.arange(len(logits), device=logits.device), weights + logprobs

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
