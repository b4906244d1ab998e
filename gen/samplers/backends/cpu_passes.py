"""What costs the most on the CPU: passes over all of large logits, piece by piece, so that what they become stays in
the cache.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, block_maxima, count_blocks, whole_blocks
from gen.samplers.backends.race import LOG2_E, mass_of

LARGEST = torch.finfo(torch.float32).max
_PIECE = 2**19  # how many logits are worked on at a time
_LOG2_E, _LN_2 = float(LOG2_E), math.log(2)


class Survey(NamedTuple):
    """What a first pass finds.

    Attributes:
        logits: (rows, vocab), without NaN and +inf.
        maxima: (rows, blocks), the largest of each block.
        top: (rows, 1), float32, the largest of each row.
        alive: whether every row's largest was a number.
    """

    logits: Tensor
    maxima: Tensor
    top: Tensor
    alive: bool


def survey(logits: Tensor) -> Survey:
    """The first pass over logits (rows, vocab) of any type that `gen.samplers.logits.native` gives."""
    maxima = block_maxima(logits)
    top = maxima.amax(-1, keepdim=True).float()
    alive = all_finite(top)
    if not alive:
        logits = cleaned(logits.float())
        maxima = block_maxima(logits)
        top = maxima.amax(-1, keepdim=True).clamp_(min=-LARGEST)
    return Survey(logits, maxima, top, alive)


def all_finite(top: Tensor) -> bool:
    """Whether the rows' largest values (rows, 1) are numbers."""
    return all(math.isfinite(value) for [value] in top.tolist())


def cleaned(values: Tensor) -> Tensor:
    """A copy with -inf for NaN, and a number for +inf."""
    return values.nan_to_num(nan=-math.inf, posinf=LARGEST, neginf=-math.inf)


def tokens_of(block: Tensor) -> Tensor:
    """The tokens (rows, 128) of a block each (rows, 1), beyond the end of the vocabulary too."""
    return torch.add(_places(), block, alpha=BLOCK)


def best_tokens(logits: Tensor) -> Tensor:
    """The lowest index of each row's maximum, (rows, 1) int64; that of a NaN where there is one.

    NumPy finds it in a tenth of the time that torch's argmax takes.

    Args:
        logits: (rows, vocab), float32.
    """
    return torch.from_numpy(logits.detach().numpy().argmax(-1, keepdims=True))


def logprobs_of_best(logits: Tensor, top: Tensor) -> list[float]:
    """The log-probability of each row's largest logit; NaN where a row holds NaN or +inf, no number, or numbers near
    float32's largest.

    Masses are relative to a power of two near the largest, so that one operation scales and shifts, and rounds once.

    Args:
        logits: (rows, vocab), float32.
        top: (rows, 1), float32: the largest.
    """
    rows, vocab = logits.shape
    shift = torch.mul(top, -_LOG2_E).round_()
    if rows * vocab <= _PIECE:
        sums = _block_sums(torch.add(shift, whole_blocks(logits), alpha=_LOG2_E))
    else:
        size, blocks = _rows_of_piece(logits), count_blocks(vocab)
        buffer = torch.empty((size, blocks * BLOCK), dtype=torch.float32, device="cpu")
        sums = torch.empty((rows, blocks), dtype=torch.float32, device="cpu")
        for first in range(0, rows, size):
            here = slice(first, first + size)
            piece = buffer[: rows - first]
            piece[:, vocab:] = -math.inf
            torch.add(shift[here], logits[here], alpha=_LOG2_E, out=piece[:, :vocab])
            sums[here] = _block_sums(piece)
    totals = sums.sum(-1, dtype=torch.float64).tolist()
    return [
        min((logit * _LOG2_E + own - math.log2(total)) * _LN_2, 0.0) if 0 < total < math.inf else math.nan
        for [logit], [own], total in zip(top.tolist(), shift.tolist(), totals, strict=True)
    ]


def _block_sums(exponents: Tensor) -> Tensor:
    return torch.unflatten(exponents.exp2_(), 1, (-1, BLOCK)).sum(-1)


def block_masses(logits: Tensor, top: Tensor, scale: float | Tensor) -> Tensor:
    """The mass of each block (rows, blocks), float32, relative to the row's largest logit; see `race.mass_of`."""
    rows, vocab = logits.shape
    full = vocab // BLOCK
    size = _rows_of_piece(logits)
    buffer = torch.empty((size, full, BLOCK), dtype=torch.float32, device="cpu")  # fresh pages cost more than sums
    masses = torch.empty((rows, count_blocks(vocab)), dtype=torch.float32, device="cpu")
    blocks = torch.unflatten(logits[:, : full * BLOCK], 1, (full, BLOCK))
    tops = top.unsqueeze(2)
    for first in range(0, rows, size):
        here = slice(first, first + size)
        values, own = blocks[here], scale[here].unsqueeze(2) if isinstance(scale, Tensor) else scale
        out = buffer[: len(values)]
        if logits.dtype != torch.float32:  # the caller's are not written to
            values = out.copy_(values)
        torch.sum(mass_of(values, tops[here], own, out=out), -1, out=masses[here, :full])
    if vocab % BLOCK:  # a padded copy of all would cost more
        end = mass_of(whole_blocks(logits[:, full * BLOCK :]), top, scale)
        torch.sum(end, -1, keepdim=True, out=masses[:, full:])
    return masses


def _rows_of_piece(logits: Tensor) -> int:
    rows, vocab = logits.shape
    return min(max(1, _PIECE // vocab), rows)


@lru_cache(maxsize=1)
def _places() -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(BLOCK, device="cpu")
