"""Sampling on the CPU, where the host may look at the numbers: it reads the logits once or twice and sorts few."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gen.samplers.blocks import BLOCK, block_maxima, count_blocks, largest, take_blocks
from gen.samplers.cuts import (
    LOG2_E,
    Cut,
    Setting,
    head_mass,
    keep_from,
    log_weight,
    mass_of,
    min_p_threshold,
    nucleus_goal,
    nucleus_in_head,
    tighter,
    within,
)
from gen.samplers.logits import native
from gen.samplers.parameters import RowParameters
from gen.samplers.race import kept_mass_, log_probability, run_blocks, run_candidates, run_tokens

_LARGEST = torch.finfo(torch.float32).max
_CHUNK = 2**19  # how many logits are worked on at a time: what they become stays in the cache
_SLICES, _DEPTH = 4096, 32  # a wide nucleus is found to the slice first; the slices reach this deep in nats
_PARTS = 8  # in which a row is looked through for it
_HEAD = 128  # how many of the largest logits are looked at before a nucleus is searched for


class Head(NamedTuple):
    """Each row's largest values, (rows, n) float32 in falling order, and their tokens."""

    values: Tensor
    token_ids: Tensor


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's most likely token, the lowest index among equals, and its log-probability.

    Args:
        logits: (rows, vocab), floating, on the CPU.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row.
    """
    logits, maxima, top = _survey(logits)
    logprobs = log_probability(torch.zeros_like(top), _all_mass(logits, top, None))
    return best_token(logits, maxima), logprobs.squeeze(-1)


def best_token(logits: Tensor, maxima: Tensor) -> Tensor:
    """The lowest index of each row's maximum, (rows, 1), from the maxima of its blocks."""
    block = maxima.argmax(-1, keepdim=True)
    return block * BLOCK + take_blocks(logits, block).squeeze(1).argmax(-1, keepdim=True)


def likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each row's n most likely tokens, best first; any of those that are equally likely.

    Args:
        logits: (rows, vocab), floating, on the CPU.
        n: at most vocab.
    Returns:
        (rows, n) float32: log-probabilities, -inf for what cannot be chosen; (rows, n) int64: the tokens, any
        where the log-probability is -inf.
    """
    logits, maxima, top = _survey(logits)
    values, token_ids = largest(logits, maxima, n)
    return log_probability(values - top, _all_mass(logits, top, None)), token_ids


def draw(logits: Tensor, keys: Tensor, parameters: RowParameters) -> tuple[Tensor, Tensor]:
    """Draw each row's token, and its log-probability under the distribution that was drawn from.

    Args:
        logits: (rows, vocab), floating, on the CPU.
        keys: (rows,), int64.
        parameters: on the CPU.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row.
    """
    logits, maxima, top = _survey(logits)
    temperature = parameters.temperature
    cut, head = _cut(logits, maxima, top, parameters)
    few = None if cut is None or head is None else _few(head, cut, logits)
    if cut is not None and few is not None:
        token_ids, weight, mass = run_candidates(*few, top, temperature, cut, keys)
        return token_ids, log_probability(weight, mass).squeeze(-1)
    if cut is None:
        mass = _all_mass(logits, top, temperature)
        block = run_blocks(mass, keys)
        inside, before = take_blocks(logits, block).squeeze(1), torch.zeros_like(block)
    else:
        mass, ties, blocks = _mass_of(logits, maxima, top, temperature, cut)
        slot = run_blocks(mass, keys, blocks)
        block = slot if blocks is None else blocks.gather(-1, slot)
        inside = take_blocks(logits, block).squeeze(1)
        before = (ties.cumsum(-1) - ties).gather(-1, slot)
    token_ids, weight = run_tokens(inside, top, temperature, cut, before, block, keys)
    logprobs = log_probability(weight, mass)
    if cut is not None:  # which may reach few blocks, and those that stand in for a dead row's may be any
        token_ids.masked_fill_(logprobs.isneginf(), 0)
    return token_ids, logprobs.squeeze(-1)


def find_cut(logits: Tensor, parameters: RowParameters) -> Cut | None:
    """What `draw` keeps of each row; None for everything. Arguments: as for `draw`."""
    return _cut(*_survey(logits), parameters)[0]


def _survey(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits without NaN and +inf, the maxima of their blocks, and the rows' maxima (rows, 1) in float32."""
    logits = native(logits)
    maxima = block_maxima(logits)
    top = maxima.amax(-1, keepdim=True).float()
    if not math.isfinite(top.sum()):
        logits = logits.float().nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)
        maxima = block_maxima(logits)
        top = maxima.amax(-1, keepdim=True).clamp_(min=-_LARGEST)
    return logits, maxima, top


def _few(head: Head, cut: Cut, logits: Tensor) -> Head | None:
    """The part of the head that a cut keeps; None if that is not all, or too many to be compared pair by pair."""
    kept = max(1, int((head.values >= cut.threshold).sum(-1).amax()))
    if kept * kept > logits.shape[1] or kept == head.values.shape[1] < logits.shape[1]:
        return None
    return Head(head.values[:, :kept], head.token_ids[:, :kept])


def _cut(logits: Tensor, maxima: Tensor, top: Tensor, parameters: RowParameters) -> tuple[Cut | None, Head | None]:
    """What top-k, top-p and min-p keep of each row, None for everything; and the head that was looked at, if any."""
    temperature, top_k, top_p, min_p = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    vocab = logits.shape[1]
    cut, head = None, None
    if isinstance(top_k, Tensor):
        limited = top_k < vocab
        deepest = int(top_k.where(limited, 1).amax())
        head = Head(*largest(logits, maxima, min(deepest + 1, vocab)))
        cut = keep_from(head.values.gather(-1, top_k.clamp(max=deepest) - 1).masked_fill_(~limited, -math.inf))
    elif top_k is not None:
        head = Head(*largest(logits, maxima, min(top_k + 1, vocab)))
        cut = keep_from(head.values[:, top_k - 1 : top_k])
    if top_p is not None:
        head = Head(*largest(logits, maxima, min(_HEAD, vocab))) if head is None else head
        cut = within(_nucleus(logits, maxima, top, cut, head, temperature, top_p), cut, top_p)
    if min_p is not None:
        cut = tighter(cut, min_p_threshold(top, temperature, min_p))
    return cut, head


def _nucleus(
    logits: Tensor,
    maxima: Tensor,
    top: Tensor,
    cut: Cut | None,
    head: Head,
    temperature: Setting | None,
    top_p: Setting,
) -> Cut:
    """Top-p of what a cut left: in the head where that holds it, else in the whole row."""
    values = head.values
    if cut is not None:
        values = values.masked_fill(values < cut.threshold, -math.inf)
    mass = head_mass(values, top, temperature)
    if cut is None:
        total = _all_mass(logits, top, temperature).sum(-1, keepdim=True)
    elif values.shape[1] == logits.shape[1] or bool((head.values[:, -1:] < cut.threshold).all()):
        total = mass.sum(-1, keepdim=True)  # of all that the cut keeps
    else:
        total = _mass_of(logits, maxima, top, temperature, cut)[0].sum(-1, keepdim=True)
    goal = nucleus_goal(top_p, total)
    nucleus, found = nucleus_in_head(values, mass, goal)
    if isinstance(top_p, Tensor):
        found |= top_p >= 1  # those rows need no nucleus
    for row, enough in enumerate(found.flatten().tolist()):
        if not enough:
            wide = _wide_nucleus(logits[row], top[row], _rows(temperature, row), goal[row])
            nucleus.threshold[row], nucleus.quota[row] = wide
    return nucleus


def _wide_nucleus(values: Tensor, top: Tensor, temperature: Setting | None, goal: Tensor) -> Cut:
    """Top-p of one row with many likely tokens: the mass of slices of likelihood, then a sort of the last slice.

    Args:
        values: (vocab,), floating.
        top, temperature, goal: (1,).
    """
    slices = torch.empty_like(values, dtype=torch.int16)
    mass = torch.zeros(_SLICES, dtype=torch.float64, device=values.device)
    # in parts, to hold little at a time
    for part, into in zip(torch.chunk(values, _PARTS), torch.chunk(slices, _PARTS), strict=True):
        weight = log_weight(part.float(), top, temperature)
        into.copy_((weight * -(_SLICES / _DEPTH)).clamp_(max=_SLICES - 1))
        mass.scatter_add_(0, into.long(), weight.mul_(LOG2_E).exp2_().double())
    reached = mass.cumsum(0)
    last = (reached < goal).sum().clamp_(max=int(slices.amax()))
    ranked = values[slices == last].float().sort(descending=True).values.unsqueeze(0)
    return nucleus_in_head(ranked, head_mass(ranked, top, temperature), goal - reached[last] + mass[last])[0]


def _mass_of(
    logits: Tensor, maxima: Tensor, top: Tensor, temperature: Setting | None, cut: Cut
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What a cut keeps of the blocks that it reaches, or of all where those are many.

    Returns:
        As `race.kept_mass_` does, and the indices of the blocks (rows, n), rising; None for all.
    """
    reached = max(1, int((maxima >= cut.threshold).sum(-1).amax()))
    if 2 * reached < maxima.shape[1]:
        blocks = maxima.topk(reached, sorted=False).indices.sort(-1).values
        return *kept_mass_(take_blocks(logits, blocks), top, temperature, cut), blocks
    parts = [
        kept_mass_(_copy(logits[rows]), top[rows], _rows(temperature, rows), Cut(*(end[rows] for end in cut)))
        for rows in _chunks(logits)
    ]
    return torch.cat([mass for mass, _ in parts]), torch.cat([ties for _, ties in parts]), None


def _all_mass(logits: Tensor, top: Tensor, temperature: Setting | None) -> Tensor:
    """The mass of each block (rows, blocks)."""
    full = logits.shape[1] // BLOCK * BLOCK
    parts = []
    for rows in _chunks(logits):
        blocks = torch.unflatten(logits[rows, :full].float(), 1, (full // BLOCK, BLOCK))
        out = None if logits.dtype == torch.float32 else blocks  # the caller's are not written to
        parts.append(mass_of(blocks, top[rows], _rows(temperature, rows), out=out).sum(-1))
    mass = torch.cat(parts)
    if full == logits.shape[1]:
        return mass
    end = mass_of(logits[:, full:].float().unsqueeze(1), top, temperature)  # a padded copy would cost more
    return torch.cat((mass, end.sum(-1)), -1)


def _chunks(logits: Tensor) -> list[slice]:
    """Slices of a few rows each."""
    rows, vocab = logits.shape
    size = max(1, _CHUNK // vocab)
    return [slice(first, first + size) for first in range(0, rows, size)]


def _copy(logits: Tensor) -> Tensor:
    """All blocks (rows, blocks, 128), float32, as a copy; -inf past the end."""
    rows, vocab = logits.shape
    blocks = torch.full((rows, count_blocks(vocab) * BLOCK), -math.inf, dtype=torch.float32, device=logits.device)
    blocks[:, :vocab] = logits
    return blocks.view(rows, -1, BLOCK)


def _rows(setting: Setting | None, rows: slice | int) -> Setting | None:
    return setting[rows] if isinstance(setting, Tensor) else setting
