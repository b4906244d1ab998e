"""Draws from the softmax of the logits, after temperature, top-k, top-p and min-p."""

import math
from typing import Unpack

import torch
from torch import Tensor

from gen.errors import check_number
from gen.samplers.base import Sampled, step_with_generator
from gen.samplers.greedy_sampler import GreedySampler, chosen
from gen.samplers.processors import Processors, ProcessorSettings
from gen.samplers.random import BLOCK_NOISE, TOKEN_NOISE, gumbel
from gen.samplers.warpers import keep_min_p, keep_top_k, keep_top_p, log_weights, temper

BLOCK = 128


class MultinomialSampler:
    """Draws each row's token at random, by a key of its own.

    Order: temperature, top-k, top-p, min-p, each reading what the one before it left (as transformers has it). Ties:
    top-k keeps all at the k-th value; top-p takes the lower index first. Temperature 0 is greedy. The weight grows by
    the token's log-probability under the distribution that was drawn from. Device: that of the logits. Host sync: none.

    Args:
        samples: how many texts the loop makes for each prompt.
        top_k: keep the k most likely tokens; at least 1.
        top_p: keep the most likely tokens up to this mass; above 0, at most 1.
        min_p: keep tokens at least this many times as likely as the best; 0 to 1.
        temperature: divides the logits; at least 0.
        settings: see `gen.samplers.Processors`.
    Raises:
        ArgumentError: a value out of range, or an unknown name.
    """

    def __init__(
        self,
        samples: int = 1,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        temperature: float | None = None,
        **settings: Unpack[ProcessorSettings],
    ) -> None:
        own = ["samples", "top_k", "top_p", "min_p", "temperature"]
        self.processors = Processors.read("MultinomialSampler", settings, own)
        check_number("samples", samples, minimum=1, whole=True)
        if top_k is not None:
            check_number("top_k", top_k, minimum=1, whole=True)
        if top_p is not None:
            check_number("top_p", top_p, above=0, maximum=1)
        if min_p is not None:
            check_number("min_p", min_p, minimum=0, maximum=1)
        if temperature is not None:
            check_number("temperature", temperature, minimum=0)
        self.samples = samples
        self.top_k = top_k
        self.top_p = top_p
        self.min_p = min_p
        self.temperature = temperature

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`."""
        if self.temperature == 0:
            return GreedySampler().step(logits, weights, keys)
        log_weight = self.warp(logits)
        token_ids = draw(log_weight, keys)
        return token_ids, torch.arange(len(logits), device=logits.device), weights + chosen(log_weight, token_ids)

    def warp(self, logits: Tensor) -> Tensor:
        """The log-weights that `step` draws from: (rows, vocab), float32, -inf where a token is dropped."""
        log_weight = log_weights(logits)
        if self.temperature is not None:
            log_weight = temper(log_weight, self.temperature)
        if self.top_k is not None:
            log_weight = keep_top_k(log_weight, self.top_k)
        if self.top_p is not None:
            log_weight = keep_top_p(log_weight, self.top_p)
        if self.min_p is not None:
            log_weight = keep_min_p(log_weight, self.min_p)
        return log_weight

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)


def draw(log_weight: Tensor, keys: Tensor) -> Tensor:
    """Draw each row's token with a probability proportional to exp(log_weight).

    Gumbel-max in two levels, exact by the chain rule: a block of 128 tokens by its mass, then a token inside it. The
    noise depends on the key and the index alone. A row of nothing but -inf gives token 0. Source: Gumbel 1954;
    Maddison, Tarlow & Minka 2014, arXiv:1411.0030.

    Args:
        log_weight: (rows, vocab), float32, at most 0 (so that no sum overflows).
        keys: (rows,), int64, on the same device.
    Returns:
        (rows, 1), int64. Host sync: none.
    """
    rows, vocab = log_weight.shape
    padded = torch.nn.functional.pad(log_weight, (0, -vocab % BLOCK), value=-math.inf)
    blocks = padded.view(rows, -1, BLOCK)
    mass = blocks.exp().sum(-1).log()
    count = mass.shape[1]
    noise = gumbel(keys, torch.arange(-(-count // 4), device=keys.device).unsqueeze(0), BLOCK_NOISE)
    block = (mass + noise[:, :count]).argmax(-1, keepdim=True)
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1)
    runs = block * (BLOCK // 4) + torch.arange(BLOCK // 4, device=keys.device)
    return block * BLOCK + (inside + gumbel(keys, runs, TOKEN_NOISE)).argmax(-1, keepdim=True)
