"""Draws from the softmax of the logits, after temperature, top-k, top-p and min-p."""

from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.samplers.backends.choosing import draw, most_likely
from gen.samplers.base import Sampled, step_with_generator, without_gradients
from gen.samplers.logits import check_logits
from gen.samplers.outlines_processors import LogitsProcessor, processors_of, warp
from gen.samplers.parameters import Parameters
from gen.samplers.penalties import Penalties
from gen.samplers.settings import immutable


@immutable("multinomial")
@dataclass(frozen=True, eq=False, repr=False)
class MultinomialSampler(Penalties):
    """Draws each row's token at random, with the row's own key.

    Order: temperature, top-k, top-p, min-p; each sees what the one before it kept, as in transformers. Ties: top-k
    keeps all at the k-th value; top-p takes the lower index first. Temperature 0 is greedy and reports the
    untempered log-probability. The weight grows by the token's log-probability under the distribution after
    temperature and cuts. Device: the logits'. Host sync: none on CUDA. Sources: see `gen.samplers.backends.race` for
    the draw; Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751 (top-p); Nguyen et al.
    2024, arXiv:2407.01082 (min-p).

    top_k, top_p, min_p and temperature may also be tensors (rows,) on the logits' device, with one value for each row;
    in `gen.generate`, for one prompt alone, with one for each sample. Tensors are copied, and the host does not check
    their range; see `gen.samplers.parameters.Parameters`. The arguments of `gen.samplers.Penalties` are taken too.
    Attributes have the names of the arguments.

    Args:
        samples: how many texts the loop makes for each prompt.
        top_k: keep the k most likely tokens; at least 1.
        top_p: keep the most likely tokens until their probabilities add up to this; above 0, at most 1.
        min_p: keep tokens at least this many times as likely as the best; 0 to 1.
        temperature: divides the logits; at least 0.
    Raises:
        ArgumentError: a value is out of range, or a name unknown; an attribute is set; at a step, a tensor has another
            number of rows.
    """

    samples: int = 1
    _: KW_ONLY
    temperature: float | Tensor | None = None
    top_k: int | Tensor | None = None
    top_p: float | Tensor | None = None
    min_p: float | Tensor | None = None
    parameters: Parameters = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "samples", read_whole("samples", self.samples, minimum=1))
        given = {name: getattr(self, name) for name in ("top_k", "top_p", "min_p", "temperature")}
        copies = {name: v.detach().clone() if isinstance(v, Tensor) else v for name, v in given.items()}
        object.__setattr__(self, "parameters", Parameters(**copies))
        for name in given:
            object.__setattr__(self, name, getattr(self.parameters, name))

    @property
    def logits_processors(self) -> list[LogitsProcessor]:
        """Functions of logits; applied one after the other, they give the logits that are drawn from.

        They are there for callers that expect them, as in Outlines; a step does not run them.
        """
        return processors_of(self.parameters)

    @without_gradients
    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """See `gen.samplers.Sampler.step`."""
        if self.parameters.greedy:
            token_ids, logprobs = most_likely(logits)
        else:
            check_logits(logits)
            token_ids, logprobs = draw(logits, keys, self.parameters.for_rows(logits))
        return token_ids, torch.arange(logits.shape[0], device=logits.device), weights + logprobs

    @without_gradients
    def warp(self, logits: Tensor) -> Tensor:
        """The logits that `step` draws from, -inf where a token is dropped: (rows, vocab), float32.

        With a temperature, they are relative to the row's best logit, which becomes 0.
        """
        return warp(self.parameters, logits)

    def __call__(
        self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None = None
    ) -> Sampled:
        """See `gen.samplers.base.step_with_generator`."""
        return step_with_generator(self, next_token_logits, sequence_weights, rng)
