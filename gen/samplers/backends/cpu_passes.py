"""The passes over all of large logits, which cost the most on the CPU. They go piece by piece, so that intermediate
values stay in the cache.
"""

import math
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, block_maxima, count_blocks, whole_blocks
from gen.samplers.backends.race import LOG2_E, mass_of

LARGEST = torch.finfo(torch.float32).max
_PIECE = 2**19  # how many logits are processed at a time
_NEAR = 32  # if a row's best logit is no farther from 0, masses are relative to 0, see `most_likely_by_row`
_LOG2_E = LOG2_E.numpy()
_OF_THREAD = threading.local()

Row = npt.NDArray[np.float32]


class Survey(NamedTuple):
    """The results of the first pass.

    Attributes:
        logits: (rows, vocab), without NaN and +inf.
        maxima: (rows, blocks), the largest logit of each block.
        top: (rows, 1), float32, the largest logit of each row.
        alive: whether every row's largest logit was finite.
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
    """Whether the rows' largest values (rows, 1) are finite."""
    return all(math.isfinite(value) for [value] in top.tolist())


def cleaned(values: Tensor) -> Tensor:
    """A copy with -inf for NaN, and the largest number for +inf."""
    return values.nan_to_num(nan=-math.inf, posinf=LARGEST, neginf=-math.inf)


def best_of_large(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The lowest index of each row's maximum.

    Args:
        logits: (rows, vocab), of any type that `gen.samplers.logits.native` gives.
    Returns:
        The logits, without NaN and +inf; (rows, 1) int64, the tokens; (rows, 1) float32, their logits.
    """
    if logits.dtype == torch.float32:
        token_ids = argmax(logits)
        top = logits.gather(1, token_ids)
        if all_finite(top):
            return logits, token_ids, top
    logits, maxima, top, _ = survey(logits)
    return logits, best_token(logits, maxima), top


def argmax(logits: Tensor) -> Tensor:
    """What torch.argmax gives, (rows, 1), for logits in float32: NumPy needs a tenth of the time."""
    return torch.from_numpy(logits.detach().numpy().argmax(-1, keepdims=True))


def most_likely_by_row(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `torch_backend.most_likely`; for long rows and one thread: a row's masses are made while it is in the cache.

    Masses are relative to a logit of 0, which saves a pass. If the best logit is so far from 0 that precision would be
    lost, they are relative to the best logit.

    Args:
        logits: (rows, vocab), of any type that `gen.samplers.logits.native` gives.
    """
    rows, vocab = logits.shape
    token_ids = torch.empty((rows, 1), dtype=torch.int64, device="cpu")
    logprobs = torch.empty(rows, dtype=torch.float32, device="cpu")
    masses = _memory(vocab)
    mass, best, logprob = masses.numpy(), token_ids.numpy(), logprobs.numpy()
    with np.errstate(all="ignore"):
        for row, values in enumerate(_rows(logits.detach())):
            np.multiply(values, _LOG2_E, out=mass)  # first, because this pass is best at loading logits into the cache
            token_id = values.argmax()
            if not abs(values[token_id]) <= _NEAR:  # NaN too
                values = _relative(values)
                np.multiply(values, _LOG2_E, out=mass)
                token_id = values.argmax()
            total = masses.exp2_().sum().item()
            best[row] = token_id
            logprob[row] = math.log(mass[token_id] / total) if total > 0 else -math.inf
    return token_ids, logprobs


def _rows(logits: Tensor) -> Iterable[Row]:
    """One row after the other, float32."""
    return logits.numpy() if logits.dtype == torch.float32 else (row.float().numpy() for row in logits)


def _relative(logits: Row) -> Row:
    """One row relative to its best logit, without NaN and +inf."""
    values = cleaned(torch.from_numpy(logits))
    relative: Row = values.sub_(values.amax().clamp_(min=-LARGEST)).numpy()
    return relative


def best_token(logits: Tensor, maxima: Tensor) -> Tensor:
    """The lowest index of each row's maximum, (rows, 1), from the maxima of its blocks."""
    token_ids = tokens_of(maxima.argmax(-1, keepdim=True))
    if logits.shape[1] % BLOCK:
        token_ids.clamp_(max=logits.shape[1] - 1)  # repeats the last token; of equals, the first is taken below
    return token_ids.gather(1, logits.gather(1, token_ids).argmax(-1, keepdim=True))


def tokens_of(block: Tensor) -> Tensor:
    """The tokens (rows, 128) of one block for each row (rows, 1); some may be past the end of the vocabulary."""
    return torch.add(_places(), block, alpha=BLOCK)


def block_masses(logits: Tensor, top: Tensor, scale: float | Tensor) -> Tensor:
    """The mass of each block (rows, blocks), float32, relative to the row's largest logit; see `race.mass_of`."""
    rows, vocab = logits.shape
    full = vocab // BLOCK
    size = min(max(1, _PIECE // vocab), rows)
    buffer = _memory(size * full * BLOCK).view(size, full, BLOCK)
    masses = torch.empty((rows, count_blocks(vocab)), dtype=torch.float32, device="cpu")
    blocks = torch.unflatten(logits[:, : full * BLOCK], 1, (full, BLOCK))
    tops = top.unsqueeze(2)
    for first in range(0, rows, size):
        here = slice(first, first + size)
        values, own = blocks[here], scale[here].unsqueeze(2) if isinstance(scale, Tensor) else scale
        out = buffer[: len(values)]
        if logits.dtype != torch.float32:  # converted in the buffer: the caller's logits are not modified
            values = out.copy_(values)
        torch.sum(mass_of(values, tops[here], own, out=out), -1, out=masses[here, :full])
    if vocab % BLOCK:  # only the end is padded: a padded copy of all logits would cost more
        end = mass_of(whole_blocks(logits[:, full * BLOCK :]), top, scale)
        torch.sum(end, -1, keepdim=True, out=masses[:, full:])
    return masses


def best_logprobs(blocks: Tensor) -> Tensor:
    """The log-probability of each row's best token (rows,), float32, from the blocks' masses relative to that token."""
    totals = blocks.sum(-1, dtype=torch.float64).tolist()
    logprobs = [-math.log(total) if total > 0 else -math.inf for total in totals]
    return torch.tensor(logprobs, dtype=torch.float32, device="cpu")


def _memory(size: int) -> Tensor:
    """A buffer (size,), float32, which the thread keeps: newly allocated pages would cost more than the sums."""
    memory: Tensor | None = getattr(_OF_THREAD, "memory", None)
    if memory is None or size > len(memory):
        with torch.inference_mode(False):
            _OF_THREAD.memory = memory = torch.empty(max(size, _PIECE), dtype=torch.float32, device="cpu")
    return memory[:size]


@lru_cache(maxsize=1)
def _places() -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(BLOCK, device="cpu")
