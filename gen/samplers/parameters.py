"""The parameters of a draw: numbers for all rows, or tensors with one value a row."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.devices import check_same_device
from gen.errors import ArgumentError
from gen.samplers.settings import read_number

_LIMITS: dict[str, dict[str, float]] = {
    "temperature": {"minimum": 0},
    "top_k": {"minimum": 1},
    "top_p": {"above": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
}
# Beyond these a temperature is as good as infinite or 0, and float32 could not divide by it without an overflow; the
# smaller one is a small enough share too.
_SMALLEST, _LARGEST = 2.0**-100, 2.0**100


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameters:
    """What shapes the distribution that is drawn from, in this order; None leaves it alone.

    Each is a number for all rows or a tensor (rows,) on the logits' device. The values in a tensor are not read by the
    host: a temperature below 0 counts as 0, a top_k below 1 as 1, a top_p of 0 or less keeps one token, what is above 1
    counts as 1 in top_p and min_p, and NaN leaves nothing to choose in its row. A temperature that is not 0 counts as
    2**-100 at least and as 2**100 at most, infinity included: there all tokens but those of infinite logits, or the
    most likely ones, have become equally likely.

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
                number = read_whole(name, value, minimum=1) if name == "top_k" else read_number(name, value, **limits)
                object.__setattr__(self, name, number)

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
        cold = unusable = None
        if isinstance(temperature, Tensor):
            temperature, unusable = _split_nan(temperature, 1, unusable)
            cold = temperature <= 0
            temperature = temperature.masked_fill(cold, 1).clamp_(_SMALLEST, _LARGEST).float()
        elif temperature == 0:
            temperature, cold = None, torch.ones((len(logits), 1), dtype=torch.bool, device=logits.device)
        elif temperature is not None:
            temperature = min(max(temperature, _SMALLEST), _LARGEST)
        if isinstance(top_k, Tensor):
            top_k = top_k.long().clamp(1, logits.shape[1]).unsqueeze(1)
        elif top_k is not None and top_k >= logits.shape[1]:
            top_k = None
        if isinstance(top_p, Tensor):
            top_p, unusable = _split_nan(top_p, 1, unusable)
            top_p = top_p.clamp_(_SMALLEST, 1)
        elif top_p is not None:
            top_p = max(top_p, _SMALLEST)
        if isinstance(min_p, Tensor):
            min_p, unusable = _split_nan(min_p, 0, unusable)
            min_p = min_p.clamp_(0, 1)
        return RowParameters(
            None if _is(temperature, 1) else temperature,
            _where_any(cold),
            _where_any(unusable),
            top_k,
            None if _is(top_p, 1) else top_p,
            None if _is(min_p, 0) else min_p,
        )


class RowParameters(NamedTuple):
    """Parameters as the paths use them: None, a number, or a tensor (rows, 1) with values in range.

    Attributes:
        temperature: 2**-100 to 2**100; float32 if it is a tensor.
        cold: (rows, 1), bool: rows of temperature 0, which take the most likely token; None where no row can be.
        unusable: (rows, 1), bool: rows with a NaN for a parameter, which have nothing to choose; None as for `cold`.
        top_k: int64 if it is a tensor, from 1 to vocab.
        top_p: 2**-100 to 1, which keeps everything; float64 if it is a tensor.
        min_p: 0 to 1; float64 if it is a tensor.
    """

    temperature: float | Tensor | None
    cold: Tensor | None
    unusable: Tensor | None
    top_k: int | Tensor | None
    top_p: float | Tensor | None
    min_p: float | Tensor | None


def _is(value: float | Tensor | None, number: float) -> bool:
    return not isinstance(value, Tensor) and value == number


def _split_nan(values: Tensor, neutral: float, unusable: Tensor | None) -> tuple[Tensor, Tensor]:
    """A column (rows, 1) of float64, with a neutral number for NaN, and where there was NaN here or before."""
    values = values.double().unsqueeze(1)
    nan = values.isnan()
    return values.masked_fill(nan, neutral), nan if unusable is None else nan | unusable


def _where_any(rows: Tensor | None) -> Tensor | None:
    """None where the host may look, as on a CPU, and sees that it is no row."""
    return None if rows is not None and rows.device.type == "cpu" and not bool(rows.any()) else rows


def _check_tensor(name: str, value: Tensor) -> None:
    whole = not value.is_floating_point() and value.dtype != torch.uint64  # which long() would wrap
    if value.dim() != 1 or value.is_complex() or value.dtype == torch.bool or (name == "top_k" and not whole):
        kind = "whole numbers" if name == "top_k" else "numbers"
        raise ArgumentError(f"{name} must be a tensor (rows,) of {kind}, got {tuple(value.shape)} of {value.dtype}")
