"""The parameters of a draw on the host: read at each step, and processed only when they change."""

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gen.samplers.backends.race import LOG2_E
from gen.samplers.parameters import LARGEST, SMALLEST, Column

Numbers = tuple[float, ...]
GREEDY = 4
_ALL = 2**62
_LOG2_E = float(LOG2_E)


class Settings(NamedTuple):
    """What the parameters do to logits of one vocabulary.

    Columns are tensors (rows, 1), or one number if all rows have the same.

    Attributes:
        given: temperature, top_k, top_p and min_p, each one value for all rows or one for each row.
        scale: float32: see `race.mass_of`.
        deepest: the largest top_k that drops something; 0 if none does.
        place: int64: the place of the k-th largest value in falling order; 0 in rows without an effective top_k.
        no_top_k: bool: the rows without an effective top_k; None if there are none.
        top_p: float64; None if it has no effect in any row.
        no_top_p: bool: the rows in which top_p has no effect; None if there are none.
        min_p: float32; None if it has no effect in any row.
        cold: bool: the rows with temperature 0, which have no cuts; None if there are none.
        dead: bool: the rows with NaN as a parameter; None if there are none.
        kinds: for each row, or one for all: 0 without cuts, 1 with top-k, 2 with top-p and no top-k, 3 with min-p
            alone, or GREEDY.
        edges: int64 (rows, 4): 0, 1, `place` and `place` + 1, if all rows have top-k and top-p, else None; one row if
            all rows have the same.
    """

    given: tuple[Numbers, Numbers, Numbers, Numbers]
    scale: float | Tensor
    deepest: int
    place: int | Tensor
    no_top_k: Tensor | None
    top_p: float | Tensor | None
    no_top_p: Tensor | None
    min_p: float | Tensor | None
    cold: Tensor | None
    dead: Tensor | None
    kinds: tuple[int, ...]
    edges: Tensor | None

    @property
    def cuts(self) -> bool:
        """Whether any row has a cut."""
        return any(kind not in (0, GREEDY) for kind in self.kinds)


def read_settings(
    vocab: int, temperature: Column, top_k: Column, top_p: Column, min_p: Column, *, few_calls: bool
) -> Settings:
    """The settings that these parameters stand for; see `gen.samplers.parameters.Parameters.for_rows`.

    Args:
        few_calls: whether to read three or more tensors with two calls, which take more time than a call for each.
    """
    columns = (temperature, top_k, top_p, min_p)
    given = [column for column in columns if column is not None]
    alike = len({column.dim() for column in given}) == 1
    if few_calls and len(given) > 2 and alike and any(column.dtype == torch.float64 for column in given):
        read = iter(torch.stack(given).tolist())  # in float64, which can hold all their values
    else:
        read = iter([column.tolist() for column in given])
    numbers = [
        (neutral,) if column is None else _tuple(next(read))
        for column, neutral in zip(columns, (1.0, _ALL, 1.0, 0.0), strict=True)
    ]
    return _settings(vocab, *numbers)


def settings_of_row(vocab: int, settings: Settings, row: int) -> Settings:
    """The settings of one row."""
    return _settings(vocab, *(numbers[row : row + 1] if len(numbers) > 1 else numbers for numbers in settings.given))


def _tuple(read: Any) -> Numbers:
    return tuple(read) if isinstance(read, list) else (read,)


class _Row(NamedTuple):
    scale: float
    top_k: int
    top_p: float
    min_p: float
    cold: bool
    dead: bool


@lru_cache(maxsize=256)
def _settings(vocab: int, temperatures: Numbers, ks: Numbers, ps: Numbers, floors: Numbers) -> Settings:
    columns = (temperatures, ks, ps, floors)
    count = max(map(len, columns))
    every = zip(*(column if len(column) == count else column * count for column in columns), strict=True)
    rows = [_row(vocab, *values) for values in every]
    scales, top_ks, top_ps, min_ps, cold, dead = zip(*rows, strict=True)
    both = max(top_ks) < _ALL and max(top_ps) < 1
    with torch.inference_mode(False):
        return Settings(
            columns,
            _column(scales, torch.float32),
            max((k for k in top_ks if k < _ALL), default=0),
            _column([k - 1 if k < _ALL else 0 for k in top_ks], torch.int64),
            _mask([k == _ALL for k in top_ks]),
            None if min(top_ps) >= 1 else _column(top_ps, torch.float64),
            _mask([p >= 1 for p in top_ps]),
            None if max(min_ps) <= 0 else _column(min_ps, torch.float32),
            _mask(cold),
            _mask(dead),
            tuple(map(_kind, rows)),
            torch.tensor([(0, 1, k - 1, k) for k in top_ks], device="cpu") if both else None,
        )


def _row(vocab: int, temperature: float, k: float, p: float, floor: float) -> _Row:
    dead = any(map(math.isnan, (temperature, p, floor)))
    if dead or temperature <= 0:
        return _Row(_LOG2_E, _ALL, 1.0, 0.0, not dead, dead)
    temperature = min(max(temperature, SMALLEST), LARGEST)
    rounded = struct.unpack("f", struct.pack("f", temperature))[0]
    top_k = _ALL if k >= vocab else max(int(k), 1)
    return _Row(_LOG2_E / rounded, top_k, min(max(p, SMALLEST), 1.0), min(max(floor, 0.0), 1.0), False, False)


def _kind(row: _Row) -> int:
    if row.cold:
        return GREEDY
    return 1 if row.top_k < _ALL else 2 if row.top_p < 1 else 3 if row.min_p > 0 else 0


def _column(numbers: Sequence[float], dtype: torch.dtype) -> Any:
    """(rows, 1), or one number."""
    if len(set(numbers)) == 1:
        return numbers[0]
    return torch.tensor(numbers, dtype=dtype, device="cpu").unsqueeze(1)


def _mask(rows: Sequence[bool]) -> Tensor | None:
    return torch.tensor(rows, device="cpu").unsqueeze(1) if any(rows) else None
