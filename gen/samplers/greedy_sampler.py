"""The most likely token."""

from typing import Unpack

import torch
from torch import Tensor

from gen.samplers.base import Sampled, step_with_generator
from gen.samplers.processors import Processors, ProcessorSettings
from gen.samplers.warpers import log_weights


class GreedySampler:
    """Takes each row's most likely token; among equals the lowest index.

    The weight grows by the token's log-probability under the softmax of the logits. Device: that of the logits.
    Host sync: none.

    Args:
        settings: see `gen.samplers.Processors`.
    """

    samples = 1

    def __init__(self, **settings: Unpack[ProcessorSettings]) -> None:
        self.processors = Processors.read("GreedySampler", settings, [])

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`; the keys are not used."""
        log_weight = log_weights(logits)
        token_ids = log_weight.argmax(-1, keepdim=True)
        return token_ids, torch.arange(len(logits), device=logits.device), weights + chosen(log_weight, token_ids)

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)


def chosen(log_weight: Tensor, token_ids: Tensor) -> Tensor:
    """The log-probability of each row's token, or -inf where the row has nothing left.

    Args:
        log_weight: (rows, vocab), float32, at most 0.
        token_ids: (rows, 1), int64.
    Returns:
        (rows,), float32.
    """
    picked = log_weight.gather(-1, token_ids).squeeze(-1)
    # a dead row has a mass of 0: -inf - log(0) would be NaN
    return torch.where(picked.isneginf(), picked, picked - log_weight.exp().sum(-1).log())
