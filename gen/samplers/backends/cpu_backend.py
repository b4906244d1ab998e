"""Sampling on the CPU, where the host may read values: it passes over the logits once or twice and sorts few of them.

Small logits are processed as a whole, because there each operation costs. For large logits, the maxima of all blocks
are found first, and through them the largest values: most cuts keep no others. A row's result does not depend on the
other rows of the batch, to the last bit.

Example, with blocks of 2 instead of 128: tokens a, b, c, d have the logits log 8, log 4, log 2, log 2. The blocks'
maxima are log 8 and log 2, so the best token is in the first block: a. Relative to a, the masses are 1, 1/2, 1/4, 1/4.
The blocks have 3/2 and 1/2, together 2, so a has the log-probability -log 2. With a top-k of 2, only the two largest
logits are used: their masses are 1 and 1/2, and a is drawn with the probability 2/3.
"""

import math

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, largest, whole_blocks
from gen.samplers.backends.cpu_draws import draw_from_all, draw_from_few, draw_whole
from gen.samplers.backends.cpu_passes import (
    all_finite,
    best_logprobs,
    best_of_large,
    block_masses,
    cleaned,
    most_likely_by_row,
    survey,
)
from gen.samplers.backends.cpu_settings import GREEDY, read_settings
from gen.samplers.backends.race import LOG2_E, mass_of
from gen.samplers.logits import native
from gen.samplers.parameters import Column

_LOG2_E = float(LOG2_E)
_NARROW, _SMALL = 2**12, 2**16  # rows up to this length, or this many logits without cuts, are processed as a whole
_LONG = 2**14  # rows of at least this length are processed one by one if there is one thread


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = native(logits)
    if logits.shape[1] >= _LONG and torch.get_num_threads() == 1:
        return most_likely_by_row(logits)
    if logits.numel() > _SMALL:
        logits, token_ids, top = best_of_large(logits)
        return token_ids, best_logprobs(block_masses(logits, top, _LOG2_E))
    values = whole_blocks(logits)
    top, token_ids = values.max(-1, keepdim=True)
    if not all_finite(top):
        values = cleaned(values)
        top, token_ids = values.max(-1, keepdim=True)
    blocks = torch.unflatten(mass_of(values, top, _LOG2_E), 1, (-1, BLOCK)).sum(-1)
    return token_ids, best_logprobs(blocks)


def likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    logits, maxima, top, _ = survey(native(logits))
    values, token_ids = largest(logits, maxima, n)
    total = block_masses(logits, top, _LOG2_E).sum(-1, keepdim=True, dtype=torch.float64)
    logprobs = (values - top - total.log_()).float()
    return logprobs.nan_to_num_(nan=-math.inf, neginf=-math.inf), token_ids


def highest(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    values, maxima, _, _ = survey(native(values))
    return largest(values, maxima, n)


def draw(
    logits: Tensor, keys: Tensor, temperature: Column, top_k: Column, top_p: Column, min_p: Column
) -> tuple[Tensor, Tensor]:
    logits = native(logits)
    narrow = logits.shape[1] <= _NARROW
    settings = read_settings(logits.shape[1], temperature, top_k, top_p, min_p, few_calls=narrow)
    kinds = set(settings.kinds)
    if narrow:
        token_ids, logprobs = draw_whole(logits, keys, settings)
    elif len(kinds) > 1:
        token_ids = torch.empty((len(keys), 1), dtype=torch.int64, device="cpu")
        logprobs = torch.empty(len(keys), dtype=torch.float32, device="cpu")
        for kind in kinds:
            rows = torch.tensor([row for row, other in enumerate(settings.kinds) if other == kind], device="cpu")
            columns = (temperature, top_k, top_p, min_p)
            token_ids[rows], logprobs[rows] = _draw_rows(rows, logits, keys, *columns)
    elif GREEDY in kinds:
        token_ids, logprobs = most_likely(logits)
    elif settings.cuts:
        token_ids, logprobs = draw_from_few(logits, keys, settings)
    elif logits.numel() <= _SMALL:
        token_ids, logprobs = draw_whole(logits, keys, settings)
    else:
        token_ids, logprobs = draw_from_all(logits, keys, settings)
    if settings.dead is not None:
        token_ids.masked_fill_(settings.dead, 0)
        logprobs.masked_fill_(settings.dead.squeeze(1), -math.inf)
    return token_ids, logprobs


def draw_some(
    wanted: Tensor, logits: Tensor, keys: Tensor, temperature: Column, top_k: Column, top_p: Column, min_p: Column
) -> tuple[Tensor, Tensor]:
    """Like `draw`, for the rows where `wanted`, (rows,) bool, is true; others get token 0 and log-probability 0."""
    token_ids = torch.zeros((len(keys), 1), dtype=torch.int64, device="cpu")
    logprobs = torch.zeros(len(keys), dtype=torch.float32, device="cpu")
    rows = wanted.nonzero().squeeze(1)
    if len(rows):
        token_ids[rows], logprobs[rows] = _draw_rows(rows, logits, keys, temperature, top_k, top_p, min_p)
    return token_ids, logprobs


def _draw_rows(rows: Tensor, logits: Tensor, keys: Tensor, *columns: Column) -> tuple[Tensor, Tensor]:
    own = (column[rows] if column is not None and column.dim() else column for column in columns)
    return draw(logits[rows], keys[rows], *own)
