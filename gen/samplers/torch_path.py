"""Sampling in torch operations without a host sync or a shape that depends on data: for any device."""

import math

import torch
from torch import Tensor

from gen.samplers.blocks import BLOCK, count_blocks, largest, take_blocks
from gen.samplers.cuts import (
    Cut,
    Setting,
    head_mass,
    keep_from,
    mass_of,
    min_p_threshold,
    nucleus_goal,
    nucleus_in_head,
    tighter,
    within,
)
from gen.samplers.logits import native
from gen.samplers.parameters import RowParameters
from gen.samplers.race import kept_mass_, log_probability, run_blocks, run_tokens
from gen.samplers.search import mass_from, search_nucleus, search_threshold

_LARGEST = torch.finfo(torch.float32).max


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's most likely token, the lowest index among equals, and its log-probability.

    Args:
        logits: (rows, vocab), floating.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none.
    """
    logits = native(logits)
    values = _numbers(logits)
    maxima = values.amax(-1)
    block = maxima.argmax(-1, keepdim=True)
    token_ids = block * BLOCK + _take(logits, block).argmax(-1, keepdim=True)
    top = maxima.gather(-1, block)
    mass = mass_of(values, top.clamp(min=-_LARGEST), None, out=values).sum(-1)
    return token_ids, log_probability(torch.zeros_like(top), mass).squeeze(-1)


def likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each row's n most likely tokens, best first; any of those that are equally likely.

    Args:
        logits: (rows, vocab), floating.
        n: at most vocab.
    Returns:
        (rows, n) float32: log-probabilities, -inf for what cannot be chosen; (rows, n) int64: the tokens, any
        where the log-probability is -inf.
        Host sync: none.
    """
    values = _numbers(native(logits))
    maxima = values.amax(-1)
    top = maxima.amax(-1, keepdim=True).clamp(min=-_LARGEST)
    best, token_ids = largest(values.flatten(1), maxima, n)
    mass = mass_of(values, top, None, out=values).sum(-1)
    return log_probability(best - top, mass), token_ids.clamp_(max=logits.shape[1] - 1)


def draw(logits: Tensor, keys: Tensor, parameters: RowParameters) -> tuple[Tensor, Tensor]:
    """Draw each row's token, and its log-probability under the distribution that was drawn from.

    Args:
        logits: (rows, vocab), floating.
        keys: (rows,), int64, on the same device.
        parameters: on the same device.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none. Memory: one and
        a half times the logits in float32, and a little.
    """
    logits = native(logits)
    temperature = parameters.temperature
    cut, values, top = _cut(logits, parameters)
    if cut is None:
        mass = mass_of(values, top, temperature, out=values).sum(-1)
        block = run_blocks(mass, keys)
        before = torch.zeros_like(block)
    else:
        mass, ties = kept_mass_(values, top, temperature, cut)
        block = run_blocks(mass, keys)
        before = (ties.cumsum(-1) - ties).gather(-1, block)
    token_ids, weight = run_tokens(_take(logits, block), top, temperature, cut, before, block, keys)
    return token_ids, log_probability(weight, mass).squeeze(-1)


def find_cut(logits: Tensor, parameters: RowParameters) -> Cut | None:
    """What `draw` keeps of each row; None for everything. Arguments and host sync: as for `draw`."""
    return _cut(native(logits), parameters)[0]


def _cut(logits: Tensor, parameters: RowParameters) -> tuple[Cut | None, Tensor, Tensor]:
    """The cut; the logits as `_numbers` has them; their rows' maxima (rows, 1), which are numbers in dead rows too."""
    temperature, top_k, top_p, min_p = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    values = _numbers(logits)
    maxima = values.amax(-1)
    top = maxima.amax(-1, keepdim=True).clamp(min=-_LARGEST)
    cut, head = None, None
    if isinstance(top_k, Tensor):
        cut = keep_from(search_threshold(logits, None, top_k))
    elif top_k is not None:
        head, _ = largest(values.flatten(1), maxima, top_k)
        cut = keep_from(head[:, -1:])
    if top_p is not None:
        cut = within(_nucleus_(values, logits, head, top, cut, temperature, top_p), cut, top_p)
        del values  # what became of them, before they are made again
        values = _numbers(logits)
    if min_p is not None:
        cut = tighter(cut, min_p_threshold(top, temperature, min_p))
    return cut, values, top


def _numbers(logits: Tensor) -> Tensor:
    """A copy in blocks (rows, blocks, 128), float32, with -inf for NaN and past the end, and a number for +inf."""
    rows, vocab = logits.shape
    padding = -vocab % BLOCK
    padded = torch.nn.functional.pad(logits, (0, padding), value=-math.inf) if padding else logits
    numbers = padded.float()
    copy = torch.empty_like(numbers) if numbers is logits else numbers
    torch.nan_to_num(numbers, nan=-math.inf, posinf=_LARGEST, neginf=-math.inf, out=copy)
    return copy.view(rows, count_blocks(vocab), BLOCK)


def _take(logits: Tensor, block: Tensor) -> Tensor:
    """The values of one block of each row, as `_numbers` has them: (rows, 128)."""
    return take_blocks(logits, block).squeeze(1).nan_to_num_(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)


def _nucleus_(
    values: Tensor,
    logits: Tensor,
    head: Tensor | None,
    top: Tensor,
    cut: Cut | None,
    temperature: Setting | None,
    top_p: Setting,
) -> Cut:
    """Top-p of what top-k left; overwrites the values.

    Args:
        head: what top-k keeps, but for further tokens equal to its last; None where that is not known.
    """
    if cut is not None and head is not None:
        total = kept_mass_(values, top, temperature, cut)[0].sum(-1, keepdim=True)
        return nucleus_in_head(head, head_mass(head, top, temperature), nucleus_goal(top_p, total))[0]
    mass = mass_of(values, top, temperature, out=values).flatten(1)[:, : logits.shape[1]]
    total = mass.sum(-1, keepdim=True) if cut is None else mass_from(logits, mass, cut.threshold)
    return search_nucleus(logits, mass, top, temperature, nucleus_goal(top_p, total))
