"""The most likely token."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gen.samplers.backends.choosing import most_likely
from gen.samplers.base import Sampled, step_with_generator, without_gradients
from gen.samplers.penalties import Penalties
from gen.samplers.settings import immutable


@immutable("greedy")
@dataclass(frozen=True, eq=False, repr=False)
class GreedySampler(Penalties):
    """Takes each row's most likely token.

    Ties: the lowest index. The weight grows by the token's log-probability under the softmax of the logits. Device:
    the logits'. Host sync: none on CUDA. Source: transformers' greedy search; here the maximum of each block of 128
    logits is found first.

    The arguments are those of `gen.samplers.Penalties`.

    Raises:
        ArgumentError: a value is unusable, or a name unknown; an attribute is set.
    """

    samples: ClassVar[int] = 1

    @without_gradients
    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`; the keys are not used."""
        token_ids, logprobs = most_likely(logits)
        return token_ids, torch.arange(logits.shape[0], device=logits.device), weights + logprobs

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
