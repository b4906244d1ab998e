"""The caller's settings of speculation, and whether a model's numbers allow it."""

from dataclasses import dataclass
from typing import Literal

import torch

from gen.arguments import check_flag, read_whole
from gen.errors import ArgumentError, show
from gen.models.base import Model
from gen.runtime.isolation import multiplies_whole


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Where the drafts come from that a step reads beside the newest token; see `speculate` of `gen.generate`.

    A text that you give as `draft` is read in any case.

    Args:
        prompt: whether to draft what followed when the last tokens stood in the prompt or the text before.
        output_type: whether to draft tokens that an output type forces.
        most: how many tokens a step may draft, 1 to 7; on a CPU, in float32, it may draft more from a `draft`.
    Raises:
        ArgumentError: a value of another kind, or nothing to draft from.
    """

    prompt: bool = True
    output_type: bool = True
    most: int = 7

    def __post_init__(self) -> None:
        for name in ("prompt", "output_type"):
            check_flag(name, getattr(self, name))
        object.__setattr__(self, "most", read_whole("most", self.most, minimum=1, maximum=MOST))
        if not (self.prompt or self.output_type):
            raise ArgumentError("gen.Speculation has nothing to draft from; speculate=False turns it off.")


MOST = 7
"""The largest number of drafts of a step."""
MOST_RECORDED = 63
"""The same for drafts from a text that was made before, on a CPU."""

_ROUNDING = 1e-4  # the largest difference, relative to the spread of logits: in float32 it is 1e-6, in float16 1e-3
Speculate = Literal["auto", False] | Speculation


def read_speculate(speculate: object) -> Speculate:
    """Return the argument `speculate`; raise an ArgumentError unless it is "auto", False or a `Speculation`."""
    if speculate is False or isinstance(speculate, Speculation):
        return speculate
    if isinstance(speculate, str) and speculate == "auto":
        return "auto"
    raise ArgumentError(f'speculate must be "auto", False or a gen.Speculation, got {show(speculate)}')


def same_in_any_width(model: Model) -> bool:
    """Whether a step's logits are the same, up to the order of sums in float32, however many tokens it reads."""
    whole = model.placement.dtype in (torch.float32, torch.float64) and multiplies_whole()
    # weights or activations may be coarser than that; then a probe has measured a larger difference
    return whole and model.wide_difference <= _ROUNDING
