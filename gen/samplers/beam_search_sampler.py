"""Beam search: the most likely continuations of all beams of a prompt.

Example: of a prompt's two beams the first has the probability 1/2 and goes on with tokens a, b, c, d at 1/2, 1/4, 1/8,
1/8; the second has 1/4, and goes on at 3/4, 1/4, 0, 0. The texts that follow have 1/4, 1/8, 1/16, 1/16 and 3/16, 1/16,
0, 0: the best two are the first beam with a and the second with a, so that the ancestors are rows 0 and 1. Had the
first beam gone on at 1/2, 1/2, 0, 0, both would be its own, and the second beam would end.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.errors import ArgumentError, show
from gen.samplers.backends.choosing import likeliest
from gen.samplers.base import Sampled, step_with_generator, without_gradients
from gen.samplers.logits import check_logits
from gen.samplers.penalties import Penalties
from gen.samplers.settings import immutable, read_number


@immutable("beam_search")
@dataclass(frozen=True, eq=False, repr=False)
class BeamSearchSampler(Penalties):
    """Keeps each prompt's most likely sequences; no randomness.

    The rows of a prompt stand side by side, `beams` of them. Order: the softmax of each row, its weight added, the best
    over all rows of the prompt. The weight is the sum of log-probabilities. Ties: any of the equal ones. Where there
    are fewer continuations than beams, the best one is repeated with weight -inf, so that no masked token is ever
    emitted; a prompt without any gives token 0. Device: that of the logits. Host sync: none on CUDA. The arguments of
    `gen.samplers.Penalties` are taken too.

    Args:
        beams: sequences kept for each prompt; at least 1.
        length_penalty: a finished text's score is its log-probability / length ** length_penalty; -50 to 50, so that
            no text is too long for it.
        early_stopping: when a prompt is done: True as soon as it has `beams` finished texts, False when the best beam
            cannot improve on them at its present length, "never" when it cannot at any length.
    Attributes:
        samples: the number of beams.
    Raises:
        ArgumentError: a value out of range, or an unknown name; the attempt to set an attribute; at a step, rows that
            are not a multiple of the beams.
    Source: transformers' names and rules; Wu et al. 2016, arXiv:1609.08144, for length penalties.
    """

    beams: int = 1
    _: KW_ONLY
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "beams", read_whole("beams", self.beams, minimum=1))
        penalty = read_number("length_penalty", self.length_penalty, minimum=-50, maximum=50)
        object.__setattr__(self, "length_penalty", penalty)
        if not isinstance(self.early_stopping, bool) and not (
            isinstance(self.early_stopping, str) and self.early_stopping == "never"
        ):
            raise ArgumentError(f'early_stopping must be True, False or "never", got {show(self.early_stopping)}')

    @property
    def samples(self) -> int:
        return self.beams

    @without_gradients
    def candidates(self, logits: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each prompt over all of its beams, best first.

        Args:
            logits: (prompts x beams, vocab), floating.
            weights: (prompts x beams,), floating; -inf for a beam that is not there yet.
            count: how many for each prompt; where fewer exist the rest have weight -inf.
        Returns:
            token_ids int64, beams int64 (0 to beams - 1: which one is continued) and weights float32, each
            (prompts, count). Host sync: none on CUDA.
        """
        check_logits(logits)
        if len(logits) % self.beams:
            raise ArgumentError(
                f"logits must have a multiple of {self.beams} rows, one for each beam, got {len(logits)}"
            )
        each = min(count, logits.shape[1])  # no more of one beam's continuations can be among the best
        logprobs, token_ids = likeliest(logits, each)
        total = (logprobs + weights.unsqueeze(1)).view(-1, self.beams * each)
        best, index = total.topk(min(count, total.shape[1]))
        token_ids = token_ids.view(-1, self.beams * each).gather(-1, index).masked_fill_(best.isneginf(), 0)
        beams = index // each
        if best.shape[1] < count:
            missing = (0, count - best.shape[1])
            pad = torch.nn.functional.pad
            return pad(token_ids, missing), pad(beams, missing), pad(best, missing, value=-math.inf)
        return token_ids, beams, best

    @without_gradients
    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`; the keys are not used.

        All weights 0 is the start, as Outlines' loop has it: then each prompt's rows are equal, and one is continued.
        Later they cannot be, even where tokens are forced: of two beams only one can have a probability of 1.
        """
        first = torch.arange(len(weights), device=weights.device) % self.beams == 0
        start = (weights == 0).all()
        token_ids, beams, best = self.candidates(logits, weights.masked_fill(start & ~first, -math.inf), self.beams)
        # a beam without a continuation repeats the best one's, at -inf, so that no masked token is emitted
        none = best.isneginf()
        token_ids, beams = (torch.where(none, found[:, :1], found) for found in (token_ids, beams))
        groups = torch.arange(len(best), device=best.device).unsqueeze(1) * self.beams
        return token_ids.view(-1, 1), (groups + beams).view(-1), best.view(-1)

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
