"""The parameters of a draw: numbers for all rows, or tensors with one value a row."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gen.devices import check_same_device
from gen.errors import ArgumentError, check_number

_LIMITS: dict[str, dict[str, float | bool]] = {
    "temperature": {"minimum": 0},
    "top_k": {"minimum": 1, "whole": True},
    "top_p": {"above": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameters:
    """What shapes the distribution that is drawn from, in this order; None leaves it alone.

    Each is a number for all rows or a tensor (rows,) on the logits' device. The values in a tensor are not read by the
    host: a temperature below 0 counts as 0, a top_k below 1 as 1, a top_p of 0 or less keeps one token, and a min_p
    above 1 counts as 1.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep the k most likely tokens, ties at the k-th included.
        top_p: keep the most likely tokens up to this mass; among equals the lower index comes first.
        min_p: keep tokens at least this many times as likely as the best.
    Raises:
        ArgumentError: a number out of range, or a tensor of another shape or type.
    """

    temperature: float | Tensor | None = None
    top_k: int | Tensor | None = None
    top_p: float | Tensor | None = None
    min_p: float | Tensor | None = None

    def __post_init__(self) -> None:
        for name, limits in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, Tensor):
                _check_tensor(name, value)
            elif value is not None:
                check_number(name, value, **limits)  # type: ignore[arg-type]

    def for_rows(self, logits: Tensor) -> "RowParameters":
        """What these parameters are for some logits: columns of values in range, None for what changes nothing.

        Raises:
            ArgumentError: a tensor has another number of rows.
            DeviceError: a tensor is on another device.
        """
        for name in _LIMITS:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                check_same_device(**{"logits": logits, name: value})
                if len(value) != len(logits):
                    raise ArgumentError(f"{name} must have a value for each of {len(logits)} rows, got {len(value)}")
        temperature, top_k, top_p, min_p = self.temperature, self.top_k, self.top_p, self.min_p
        cold = None
        if isinstance(temperature, Tensor):
            temperature = temperature.float().unsqueeze(1)
            cold = temperature <= 0
            temperature = temperature.masked_fill(cold, 1)
        if isinstance(top_k, Tensor):
            top_k = top_k.long().clamp(1, logits.shape[1]).unsqueeze(1)
        elif top_k is not None and top_k >= logits.shape[1]:
            top_k = None
        if isinstance(top_p, Tensor):
            top_p = top_p.double().unsqueeze(1)
        if isinstance(min_p, Tensor):
            min_p = min_p.double().clamp(0, 1).unsqueeze(1)
        return RowParameters(
            None if _is(temperature, 1) else temperature,
            cold,
            top_k,
            None if _is(top_p, 1) else top_p,
            None if _is(min_p, 0) else min_p,
        )


class RowParameters(NamedTuple):
    """Parameters as the paths use them: None, a number, or a tensor (rows, 1) with values in range.

    Attributes:
        temperature: above 0.
        cold: (rows, 1), bool: rows of temperature 0, which take the most likely token; None where no row can be.
        top_k: int64 if it is a tensor, from 1 to vocab.
        top_p: float64 if it is a tensor; 1 and more keep everything.
        min_p: float64 if it is a tensor.
    """

    temperature: float | Tensor | None
    cold: Tensor | None
    top_k: int | Tensor | None
    top_p: float | Tensor | None
    min_p: float | Tensor | None


def _is(value: float | Tensor | None, number: float) -> bool:
    return not isinstance(value, Tensor) and value == number


def _check_tensor(name: str, value: Tensor) -> None:
    whole = not value.is_floating_point()
    if value.dim() != 1 or value.is_complex() or value.dtype == torch.bool or (name == "top_k" and not whole):
        kind = "whole numbers" if name == "top_k" else "numbers"
        raise ArgumentError(f"{name} must be a tensor (rows,) of {kind}, got {tuple(value.shape)} of {value.dtype}")
