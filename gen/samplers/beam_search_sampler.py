"""Beam search: the most likely continuations of all beams of a prompt.

Example: a prompt has two beams. The first has the probability 1/2; its next tokens a, b, c, d have 1/2, 1/4, 1/8, 1/8.
The second beam has 1/4; its next tokens have 3/4, 1/4, 0, 0. The longer texts have the products: 1/4, 1/8, 1/16, 1/16
from the first beam and 3/16, 1/16, 0, 0 from the second. The best two are the first beam with a and the second with a,
so the ancestors are rows 0 and 1. If the first beam's next tokens had 1/2, 1/2, 0, 0, the best two would both continue
the first beam, and the second would end.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.errors import ArgumentError, show
from gen.samplers.backends.choosing import highest, likeliest
from gen.samplers.base import Sampled, step_with_generator, without_gradients
from gen.samplers.logits import check_logits
from gen.samplers.penalties import Penalties
from gen.samplers.settings import immutable, read_number


@immutable("beam_search")
@dataclass(frozen=True, eq=False, repr=False)
class BeamSearchSampler(Penalties):
    """Keeps each prompt's most likely sequences; no randomness.

    A prompt has `beams` rows, side by side. Order of operations: the log-softmax of each row, plus the row's weight,
    then the best over all rows of the prompt. The weight is the sum of log-probabilities. Ties: any of the equal ones.
    If a prompt has fewer continuations than beams, the best one is repeated with weight -inf, so that no masked token
    is ever chosen; a prompt without any continuation gives token 0. Device: the logits'. Host sync: none on CUDA. The
    arguments of `gen.samplers.Penalties` are taken too. In `gen.generate`, whatever changes logits changes the
    log-probabilities instead, and nothing normalises them again, as in transformers.

    Args:
        beams: sequences kept for each prompt; at least 1.
        length_penalty: a finished text's score is its log-probability / length ** length_penalty; -50 to 50, so that
            the power of a long text's length does not overflow.
        early_stopping: when a prompt is done. True: as soon as it has `beams` finished texts. False: when the best beam
            cannot become better than these at its present length. "never": when it cannot at any length.
    Attributes:
        samples: the number of beams.
    Raises:
        ArgumentError: a value is out of range, or a name unknown; an attribute is set; at a step, the number of rows is
            not a multiple of the beams.
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
    def candidates(
        self, logits: Tensor, weights: Tensor, count: int, *, scored: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each prompt over all of its beams, best first.

        Args:
            logits: (prompts x beams, vocab), floating.
            weights: (prompts x beams,), floating; -inf for a beam that does not exist yet.
            count: how many for each prompt; if fewer exist, the rest have weight -inf.
            scored: whether the logits are log-probabilities that something has changed, and are added as they are.
        Returns:
            token_ids int64, beams int64 (from 0 to beams - 1: the beam that is continued) and weights float32, each
            (prompts, count). Host sync: none on CUDA.
        """
        check_logits(logits)
        if len(logits) % self.beams:
            raise ArgumentError(
                f"logits must have a multiple of {self.beams} rows, one for each beam, got {len(logits)}"
            )
        each = min(count, logits.shape[1])  # the best `count` have at most so many continuations of one beam
        logprobs, token_ids = (highest if scored else likeliest)(logits, each)
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

        If all weights are 0, this is the first step of Outlines' loop: each prompt's rows are equal, so only its first
        row is continued. Later not all weights can be 0, even after forced tokens: of two different beams, only one can
        have the probability 1.
        """
        first = torch.arange(len(weights), device=weights.device) % self.beams == 0
        start = (weights == 0).all()
        token_ids, beams, best = self.candidates(logits, weights.masked_fill(start & ~first, -math.inf), self.beams)
        # in place of a missing continuation, the best one is repeated with weight -inf: no masked token is chosen
        none = best.isneginf()
        token_ids, beams = (torch.where(none, found[:, :1], found) for found in (token_ids, beams))
        groups = torch.arange(len(best), device=best.device).unsqueeze(1) * self.beams
        return token_ids.view(-1, 1), (groups + beams).view(-1), best.view(-1)

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
