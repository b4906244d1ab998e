"""The parameters of a draw: numbers for all rows, or tensors with one value for each row."""

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

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
_DTYPES = {"temperature": torch.float32, "top_k": torch.int64, "top_p": torch.float64, "min_p": torch.float64}
_NEUTRAL = {"temperature": 1.0, "top_k": 2**62, "top_p": 1.0, "min_p": 0.0}
# A temperature beyond these is as good as 0 or infinite, and in float32 a division by it could overflow. SMALLEST also
# serves as the smallest top_p.
SMALLEST, LARGEST = 2.0**-100, 2.0**100
Column = Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameters:
    """The parameters that change the distribution before the draw, in this order; None changes nothing.

    Each is a number for all rows or a tensor (rows,) on the logits' device. The host does not read a tensor's values: a
    temperature below 0 counts as 0 and a top_k below 1 as 1; a top_p of 0 or less keeps one token; a top_p or min_p
    above 1 counts as 1; and NaN makes its row dead, with no token to choose. A temperature that is not 0 is clamped to
    2**-100 and 2**100, also if it is infinite: at the first only the most likely tokens are left, at the second all
    tokens with finite logits are equally likely.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep the k most likely tokens, ties at the k-th included.
        top_p: keep the most likely tokens until their probabilities add up to this; among equals, the lower index comes
            first.
        min_p: keep tokens at least this many times as likely as the best.
    Raises:
        ArgumentError: a number is out of range, or a tensor has another shape or type.
    """

    temperature: float | Tensor | None = None
    top_k: int | Tensor | None = None
    top_p: float | Tensor | None = None
    min_p: float | Tensor | None = None
    _numbers: dict[str, Tensor] = field(init=False, repr=False)  # the numbers, as tensors without dimensions on the CPU

    def __post_init__(self) -> None:
        for name, limits in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, Tensor):
                _check_tensor(name, value)
            elif value is not None:
                number = read_whole(name, value, minimum=1) if name == "top_k" else read_number(name, value, **limits)
                object.__setattr__(self, name, number)
        given = {name: getattr(self, name) for name in _LIMITS}
        numbers = {  # made now, so that a recorded step does not make them
            name: _tensor_of(name, value)
            for name, value in given.items()
            if value is not None and not isinstance(value, Tensor)
        }
        object.__setattr__(self, "_numbers", numbers)

    @property
    def given(self) -> bool:
        """Whether any parameter is given."""
        return any(getattr(self, name) is not None for name in _LIMITS)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, whatever else is given."""
        return not isinstance(self.temperature, Tensor) and self.temperature == 0

    def for_rows(self, logits: Tensor) -> tuple[Column, Column, Column, Column]:
        """Temperature, top_k, top_p and min_p as the backends take them.

        Returns:
            For each a tensor (rows,) on the logits' device; or, for a number, a tensor without dimensions on the CPU,
            whose value is in range; None if the parameter changes nothing. top_k is int64, top_p and min_p are float64,
            a temperature that is a number is float32.
        Raises:
            ArgumentError: a tensor has another number of rows.
            DeviceError: a tensor is on another device.
        """
        return tuple(self._column(name, logits) for name in _LIMITS)  # type: ignore[return-value]

    def _column(self, name: str, logits: Tensor) -> Column:
        value = getattr(self, name)
        if isinstance(value, Tensor):
            check_same_device(**{"logits": logits, name: value})
            if len(value) != len(logits):
                raise ArgumentError(f"{name} must have a value for each of {len(logits)} rows, got {len(value)}")
            return value if name == "temperature" else value.to(_DTYPES[name])
        if value is None or value == _NEUTRAL[name]:
            return None
        return self._numbers[name]


_tensors = WeakValueDictionary[tuple[str, float], Tensor]()


def _tensor_of(name: str, value: float) -> Tensor:
    """A number as a tensor without dimensions on the CPU: the same one for equal numbers, so that a step which is being
    recorded in one call, and goes on in the next, finds the tensor that it has seen."""
    tensor = _tensors.get((name, value))
    if tensor is None:
        with torch.inference_mode(False):
            tensor = torch.tensor(_in_range(name, value), dtype=_DTYPES[name], device="cpu")
        _tensors[name, value] = tensor
    return tensor


def _in_range(name: str, value: float) -> float:
    """A number, clamped to what its tensor can hold."""
    if name == "temperature":
        return min(max(value, SMALLEST), LARGEST) if value else 0.0
    return min(value, _NEUTRAL[name]) if name == "top_k" else value


def _check_tensor(name: str, value: Tensor) -> None:
    whole = not value.is_floating_point() and value.dtype != torch.uint64  # which long() would wrap
    if value.dim() != 1 or value.is_complex() or value.dtype == torch.bool or (name == "top_k" and not whole):
        kind = "whole numbers" if name == "top_k" else "numbers"
        raise ArgumentError(f"{name} must be a tensor (rows,) of {kind}, got {tuple(value.shape)} of {value.dtype}")
