"""Draws from the softmax of the logits, after temperature, top-k, top-p and min-p."""

import math
from typing import Unpack

import torch
from torch import Tensor

from gen.errors import check_number
from gen.samplers.base import Sampled, step_with_generator
from gen.samplers.cuts import is_kept
from gen.samplers.outlines_processors import processors_of
from gen.samplers.parameters import Parameters
from gen.samplers.paths import path_of
from gen.samplers.processors import Processors, ProcessorSettings


class MultinomialSampler:
    """Draws each row's token at random, by a key of its own.

    Order: temperature, top-k, top-p, min-p, each reading what the one before it left (as transformers has it). Ties:
    top-k keeps all at the k-th value; top-p takes the lower index first. Temperature 0 is greedy and reports the
    untempered log-probability. The weight grows by the token's log-probability under the distribution that was drawn
    from. Device: that of the logits. Host sync: none on CUDA. Sources: see `gen.samplers.race` for the draw; Fan et
    al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751 (top-p); Nguyen et al. 2024,
    arXiv:2407.01082 (min-p).

    Args:
        samples: how many texts the loop makes for each prompt.
        top_k: keep the k most likely tokens; at least 1.
        top_p: keep the most likely tokens until their mass reaches this; above 0, at most 1.
        min_p: keep tokens at least this many times as likely as the best; 0 to 1.
        temperature: divides the logits; at least 0.
        top_k, top_p, min_p and temperature may also be tensors (rows,) on the logits' device, each row's own value,
        whose range the host does not check; see `gen.samplers.parameters.Parameters`.
        settings: see `gen.samplers.Processors`.
    Attributes:
        samples, top_k, top_p, min_p, temperature: as they were given.
        logits_processors: functions of logits that, one after the other, lead to what is drawn from. They are there to
            be read, as in Outlines; a step does not run them.
    Raises:
        ArgumentError: a value out of range, or an unknown name; at a step, a tensor of another number of rows.
    """

    def __init__(
        self,
        samples: int = 1,
        *,
        top_k: int | Tensor | None = None,
        top_p: float | Tensor | None = None,
        min_p: float | Tensor | None = None,
        temperature: float | Tensor | None = None,
        **settings: Unpack[ProcessorSettings],
    ) -> None:
        own = ["samples", "top_k", "top_p", "min_p", "temperature"]
        self.processors = Processors.read("MultinomialSampler", settings, own)
        check_number("samples", samples, minimum=1, whole=True)
        self.samples = samples
        self.top_k, self.top_p, self.min_p, self.temperature = top_k, top_p, min_p, temperature
        self.parameters = Parameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        self.logits_processors = processors_of(self.parameters)

    @torch.no_grad()
    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`."""
        path = path_of(logits)
        temperature = self.parameters.temperature
        if not isinstance(temperature, Tensor) and temperature == 0:
            token_ids, logprobs = path.most_likely(logits)
        else:
            parameters = self.parameters.for_rows(logits)
            token_ids, logprobs = path.draw(logits, keys, parameters)
            if parameters.cold is not None:
                best, best_logprobs = path.most_likely(logits)
                token_ids = torch.where(parameters.cold, best, token_ids)
                logprobs = torch.where(parameters.cold.squeeze(1), best_logprobs, logprobs)
        return token_ids, torch.arange(len(logits), device=logits.device), weights + logprobs

    @torch.no_grad()
    def warp(self, logits: Tensor) -> Tensor:
        """The tempered logits that `step` draws from, -inf where a token is dropped: (rows, vocab), float32."""
        parameters = self.parameters.for_rows(logits)
        kept = is_kept(logits, path_of(logits).find_cut(logits, parameters))
        values = logits.float() if parameters.temperature is None else logits.float() / parameters.temperature
        return values.masked_fill(~kept, -math.inf)

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
