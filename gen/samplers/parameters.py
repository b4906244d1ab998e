"""The parameters of a draw: numbers for all rows, or tensors with one value for each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gen.arguments import read_whole
from gen.devices import check_same_device, to_device
from gen.errors import ArgumentError
from gen.samplers.backends.race import LOG2_E
from gen.samplers.settings import read_number

_LIMITS: dict[str, dict[str, float]] = {
    "temperature": {"minimum": 0},
    "top_k": {"minimum": 1},
    "top_p": {"above": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
}
# A temperature beyond these is as good as 0 or infinite, and in float32 a division by it could overflow. SMALLEST also
# serves as the smallest top_p.
SMALLEST, LARGEST = 2.0**-100, 2.0**100
ALL = 2**62


class Table(NamedTuple):
    """What each row's parameters come to, ready for a draw: (rows, 1) each, on one device.

    Attributes:
        scale: float32: log2(e) / temperature; NaN in a row with NaN as a parameter, which has no token to choose.
        cold: bool: the rows with temperature 0, in which the rest is neutral; None if there are none.
        top_k: int64, at least 1; 2**62 keeps everything. None if no row has one.
        top_p: float64, SMALLEST to 1; 1 keeps everything. None if no row has one.
        min_p: float64, 0 to 1; 0 keeps everything. None if no row has one.
    """

    scale: Tensor
    cold: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None


NEUTRAL = {"scale": float(LOG2_E), "cold": False, "top_k": ALL, "top_p": 1.0, "min_p": 0.0}
DTYPES = {
    "scale": torch.float32,
    "cold": torch.bool,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float64,
}


def table_of(temperature: Tensor | None, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Table:
    """What parameters (rows,) come to, of which at least one is given; see `Parameters` for values out of range.

    Host sync: none.
    """
    given = [value for value in (temperature, top_k, top_p, min_p) if value is not None]
    dead = torch.stack([value.isnan() for value in given]).any(0)
    cold, scale = None, torch.full(dead.shape, NEUTRAL["scale"], dtype=torch.float32, device=dead.device)
    if temperature is not None:
        cold = (temperature <= 0) & ~dead
        scale = LOG2_E / temperature.masked_fill(temperature <= 0, 1).clamp(SMALLEST, LARGEST).float()
    columns: dict[str, Any] = {"scale": scale.masked_fill(dead, torch.nan), "cold": cold}
    if top_k is not None:
        columns["top_k"] = top_k.long().clamp(min=1)
    if top_p is not None:
        columns["top_p"] = top_p.double().clamp(SMALLEST, 1)
    if min_p is not None:
        columns["min_p"] = min_p.double().clamp(0, 1)
    if cold is not None:
        columns |= {name: columns[name].masked_fill(cold, NEUTRAL[name]) for name in columns if name != "cold"}
    table: dict[str, Any] = {name: None if one is None else one.unsqueeze(1) for name, one in columns.items()}
    return Table(**table)


def table_of_numbers(lines: Sequence[Sequence[float | None]]) -> Table:
    """The table, on the CPU, of rows whose temperature, top_k, top_p and min_p are numbers in range, or None.

    Columns in which all rows are neutral are left out.
    """
    temperatures, *cuts = zip(*lines, strict=True)
    heat = [1.0 if value is None else value for value in temperatures]
    with torch.inference_mode(False):
        columns = [torch.tensor(heat, dtype=torch.float64, device="cpu")]
        for name, values in zip(("top_k", "top_p", "min_p"), cuts, strict=True):
            numbers = [NEUTRAL[name] if value is None else min(value, NEUTRAL["top_k"]) for value in values]
            columns.append(torch.tensor(numbers, dtype=DTYPES[name], device="cpu"))
        table = table_of(*columns)
    neutral = {name for name, column in table._asdict().items() if bool((column == NEUTRAL[name]).all())}
    unused: dict[str, Any] = dict.fromkeys(neutral - {"scale"})
    return table._replace(**unused)


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

    def __post_init__(self) -> None:
        for name, limits in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, Tensor) and value.dim():
                _check_tensor(name, value)
            elif value is not None:
                number = read_whole(name, value, minimum=1) if name == "top_k" else read_number(name, value, **limits)
                object.__setattr__(self, name, number)

    @property
    def given(self) -> bool:
        """Whether any parameter is given."""
        return any(getattr(self, name) is not None for name in _LIMITS)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, whatever else is given."""
        return not isinstance(self.temperature, Tensor) and self.temperature == 0

    def for_rows(self, logits: Tensor) -> Table:
        """The table for the rows of these logits, on their device. It is made once.

        Raises:
            ArgumentError: a tensor has another number of rows.
            DeviceError: a tensor is on another device.
        """
        rows, device = len(logits), logits.device
        if not self._tensors:
            stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
            return _table(tuple(getattr(self, name) for name in _LIMITS), rows, device, stream)
        for name, value in self._tensors.items():
            check_same_device(logits, name, value)
            if len(value) != rows:
                raise ArgumentError(f"{name} must have a value for each of {rows} rows, got {len(value)}")
        return self._rows

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        given = {name: getattr(self, name) for name in _LIMITS}
        return {name: value for name, value in given.items() if isinstance(value, Tensor)}

    @cached_property
    def _rows(self) -> Table:
        """The table of the rows that the tensors have; numbers are the same in each."""
        like = next(iter(self._tensors.values()))
        columns = [self._tensors.get(name, getattr(self, name)) for name in _LIMITS]
        with torch.inference_mode(False):
            tensors = (
                torch.full((len(like),), min(value, ALL), dtype=torch.float64, device=like.device)
                if isinstance(value, int | float)
                else value
                for value in columns
            )
            table = table_of(*tensors)
        return table if "temperature" in self._tensors else table._replace(cold=None)


@lru_cache(maxsize=256)
def _table(numbers: tuple[float | None, ...], rows: int, device: torch.device, stream: int | None) -> Table:
    """Made once for each CUDA stream: one that another stream makes may not be ready yet."""
    with torch.inference_mode(False):
        columns = (None if one is None else one.expand(rows, 1).contiguous() for one in table_of_numbers([numbers]))
        return Table._make(None if one is None else to_device(one, device) for one in columns)


def _check_tensor(name: str, value: Tensor) -> None:
    whole = not value.is_floating_point() and value.dtype != torch.uint64  # which long() would wrap
    if value.dim() != 1 or value.is_complex() or value.dtype == torch.bool or (name == "top_k" and not whole):
        kind = "whole numbers" if name == "top_k" else "numbers"
        raise ArgumentError(f"{name} must be a tensor (rows,) of {kind}, got {tuple(value.shape)} of {value.dtype}")
