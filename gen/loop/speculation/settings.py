"""What a caller may say of speculation, and when there is none."""

from dataclasses import dataclass
from typing import Literal

import torch

from gen.arguments import check_flag, read_whole
from gen.errors import ArgumentError, show
from gen.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Where drafts come from that a step reads beside the newest token; see `gen.generate`, which takes it.

    Args:
        prompt: draft what followed the newest place in the prompt and the text where the last tokens stood before.
        output_type: draft what an output type forces.
        most: how many tokens are drafted at most, 1 to 7.
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
"""Drafts of a step."""

_ROUNDING = 1e-4  # of the spread of logits: in float32 it is 1e-6, in float16 1e-3
Speculate = Literal["auto", False] | Speculation


def read_speculate(speculate: object) -> Speculate:
    """Raises an ArgumentError for what is neither "auto", nor False, nor a `Speculation`."""
    if speculate is False or isinstance(speculate, Speculation):
        return speculate
    if isinstance(speculate, str) and speculate == "auto":
        return "auto"
    raise ArgumentError(f'speculate must be "auto", False or a gen.Speculation, got {show(speculate)}')


def same_in_any_width(model: Model) -> bool:
    """Whether a step's logits are the same, up to the order of sums in float32, however many tokens it reads."""
    whole = model.placement.dtype in (torch.float32, torch.float64) and (
        torch.get_float32_matmul_precision() == "highest"
    )
    # weights or activations may be coarser than that, which a probe has seen
    return whole and getattr(model, "wide_difference", 0.0) <= _ROUNDING
