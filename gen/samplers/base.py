"""What a sampler is: a step on the device, and the call that Outlines' loops make."""

from typing import Protocol

import torch
from torch import Tensor

from gen.errors import ArgumentError
from gen.samplers.processors import Processors

Sampled = tuple[Tensor, Tensor, Tensor]


class Sampler(Protocol):
    """Chooses the next token of each row.

    Attributes:
        samples: how many sequences the sampler makes for each prompt.
        processors: what the loop does to the logits before each step; None for nothing.
    """

    @property
    def samples(self) -> int: ...
    @property
    def processors(self) -> Processors | None: ...

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """Choose one token a row, on `logits.device`, without a host sync.

        Args:
            logits: (rows, vocab), floating, any device; not modified. NaN counts as -inf.
            weights: (rows,), floating, on the logits' device: log-probability of each row so far.
            keys: (rows,), int64, on the logits' device: the row's random key for this step.
        Returns:
            next_token_ids (rows, 1) int64; ancestors (rows,) int64, the row that each result continues; weights
            (rows,), the log-probability with the new token. A row with nothing left gives token 0 and weight -inf.
        """


def step_with_generator(
    sampler: Sampler, logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None
) -> Sampled:
    """Run `sampler.step` for a loop that has a generator and no keys, as Outlines' loop does.

    Args:
        logits: (rows, vocab), floating, any device.
        sequence_weights: (rows,), floating or whole numbers, any device.
        rng: a generator of any device, which advances by one 64-bit key a row; None is the CPU's default one.
    Returns:
        What `step` returns, on `sequence_weights.device`. Host sync: none where all are on one device; else copies.
    Raises:
        ArgumentError: the sampler has processors, which need the tokens so far.
    """
    if sampler.processors is not None:
        raise ArgumentError(
            "penalties, bad words, n-grams and minimum lengths need the tokens so far, which only gen.generate and "
            "gen.stream have; make the sampler without them to call it in another loop."
        )
    source = torch.device("cpu") if rng is None else rng.device
    keys = torch.empty(len(logits), dtype=torch.int64, device=source).random_(-(2**63), None, generator=rng)
    weights = sequence_weights if sequence_weights.is_floating_point() else sequence_weights.float()
    sampled = sampler.step(logits, weights.to(logits.device), keys.to(logits.device))
    token_ids, ancestors, weights = (result.to(sequence_weights.device) for result in sampled)
    return token_ids, ancestors, weights
