"""Sampling on the CPU, where the host may look at the numbers: it reads the logits once or twice and sorts few.

Small logits are worked on whole, since there every operation counts. Of large ones the maxima of all blocks are found
first, and with them the largest values, which are most often all that a cut keeps. A row's result does not depend on
the other rows of the batch, to the last bit.
"""

import itertools
import math
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, block_maxima, largest, whole_blocks
from gen.samplers.backends.cpu_cuts import cut_, cut_head_, depth_of, rank
from gen.samplers.backends.cpu_settings import Settings, read_settings, settings_of_row
from gen.samplers.backends.race import LOG2_E, counters, log_probability, mass_of, none_of_dead_, winner
from gen.samplers.backends.random import log_uniform
from gen.samplers.logits import native
from gen.samplers.parameters import Column

_LARGEST = torch.finfo(torch.float32).max
_NARROW, _SMALL = 2**12, 2**16  # rows so long, or so many logits where nothing is cut, are worked on whole
_SHIFT = BLOCK.bit_length() - 1
_LOG2_E = float(LOG2_E)
_CHUNK = 2**18  # how many logits are worked on at a time: what they become stays in the cache


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As `torch_path.most_likely`."""
    logits = native(logits)
    if logits.numel() > _SMALL:
        logits, maxima, top = _survey(logits)
        return best_token(logits, maxima), log_probability(1.0, _total(_all_mass(logits, top, _LOG2_E)))
    values = whole_blocks(logits)
    top, token_ids = values.max(-1, keepdim=True)
    if not _all_finite(top):
        values = _cleaned(values)
        top, token_ids = values.max(-1, keepdim=True)
    blocks = torch.unflatten(mass_of(values, top, _LOG2_E), 1, (-1, BLOCK)).sum(-1)
    return token_ids, log_probability(1.0, _total(blocks))


def best_token(logits: Tensor, maxima: Tensor) -> Tensor:
    """The lowest index of each row's maximum, (rows, 1), from the maxima of its blocks."""
    token_ids = _tokens_of(maxima.argmax(-1, keepdim=True))
    if logits.shape[1] % BLOCK:
        token_ids.clamp_(max=logits.shape[1] - 1)  # the last one again, and the first of equals is taken
    return token_ids.gather(1, logits.gather(1, token_ids).argmax(-1, keepdim=True))


def _tokens_of(block: Tensor) -> Tensor:
    """The tokens (rows, 128) of a block each (rows, 1), beyond the end of the vocabulary too."""
    return torch.add(_counters(1)[0], block, alpha=BLOCK)


def likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """As `torch_path.likeliest`."""
    logits, maxima, top = _survey(native(logits))
    values, token_ids = largest(logits, maxima, n)
    logprobs = (values - top - _total(_all_mass(logits, top, _LOG2_E)).log_()).float()
    return logprobs.nan_to_num_(nan=-math.inf, neginf=-math.inf), token_ids


def draw(
    logits: Tensor, keys: Tensor, temperature: Column, top_k: Column, top_p: Column, min_p: Column
) -> tuple[Tensor, Tensor]:
    """As `torch_path.draw`."""
    logits = native(logits)
    settings = read_settings(logits.shape[1], temperature, top_k, top_p, min_p)
    if logits.shape[1] <= _NARROW or (logits.numel() <= _SMALL and not settings.cuts):
        token_ids, logprobs = _draw_whole(logits, keys, settings)
    elif not settings.cuts:
        token_ids, logprobs = _draw_from_all(logits, keys, settings)
    elif len(set(settings.kinds)) == 1:
        token_ids, logprobs = _draw_from_few(logits, keys, settings)
    else:
        token_ids = torch.empty((len(keys), 1), dtype=torch.int64, device="cpu")
        logprobs = torch.empty(len(keys), dtype=torch.float32, device="cpu")
        for kind in set(settings.kinds):
            rows = torch.tensor([row for row, other in enumerate(settings.kinds) if other == kind], device="cpu")
            columns = (temperature, top_k, top_p, min_p)
            own = (column[rows] if column is not None and column.dim() else column for column in columns)
            token_ids[rows], logprobs[rows] = draw(logits[rows], keys[rows], *own)
    if settings.dead is not None:
        token_ids.masked_fill_(settings.dead, 0)
        logprobs.masked_fill_(settings.dead.squeeze(1), -math.inf)
    return token_ids, logprobs


def _draw_whole(logits: Tensor, keys: Tensor, settings: Settings, *, wide: bool = False) -> tuple[Tensor, Tensor]:
    """A draw from all logits at once. For `wide` see `cpu_cuts.rank`."""
    values = whole_blocks(logits)
    ranked, top, alive = _ranked(values, settings, wide=wide)
    if not alive:
        values = _cleaned(values)
        ranked, top, alive = _ranked(values, settings, wide=wide)
    mass = mass_of(values, top, settings.scale)  # NaN in a dead row, where the top is -inf
    if settings.cuts:
        cut_(mass, values, ranked, settings, wide=wide, alive=alive)
    by_block = torch.unflatten(mass, 1, (-1, BLOCK))
    blocks = by_block.sum(-1)
    _, distances = _counters(blocks.shape[1])
    inside, among = torch.split(log_uniform(keys.unsqueeze(1), distances), [BLOCK, blocks.shape[1]], 1)
    rows, block = _rows(len(keys)), winner(among, blocks, keepdim=False)
    token_ids = torch.add(winner(inside, by_block[rows, block], keepdim=False), block, alpha=BLOCK)
    if settings.cold is not None:
        token_ids = torch.where(settings.cold.squeeze(1), values.argmax(-1), token_ids)
    logprobs = mass[rows, token_ids]
    torch.log(logprobs / blocks.sum(-1, dtype=torch.float64), out=logprobs)
    return token_ids.unsqueeze(1), logprobs if alive else none_of_dead_(logprobs)


def _ranked(values: Tensor, settings: Settings, *, wide: bool) -> tuple[tuple[Tensor, Tensor | None], Tensor, bool]:
    """What `cpu_cuts.rank` gives; each row's largest value (rows, 1), and whether all of these are numbers."""
    head, index = rank(values, settings, wide=wide)
    top = values.amax(-1, keepdim=True) if index is None else head[:, :1]
    return (head, index), top, _all_finite(top)


def _draw_from_all(logits: Tensor, keys: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """A draw from large logits of which nothing is cut."""
    logits, maxima, top = _survey(logits)
    blocks = _all_mass(logits, top, settings.scale)
    _, distances = _counters(blocks.shape[1])
    inside, among = torch.split(log_uniform(keys.unsqueeze(1), distances), [BLOCK, blocks.shape[1]], 1)
    token_ids = _tokens_of(winner(among, blocks))
    last = logits.shape[1] - 1
    values = logits.gather(1, token_ids.clamp(max=last) if logits.shape[1] % BLOCK else token_ids)
    mass = mass_of(values.float(), top, settings.scale)
    if logits.shape[1] % BLOCK:
        mass.mul_(token_ids <= last)
    place = winner(inside, mass)
    token_ids, mass = token_ids.gather(1, place), mass.gather(1, place)
    if settings.cold is not None:
        token_ids = torch.where(settings.cold, best_token(logits, maxima), token_ids)
        mass.masked_fill_(settings.cold, 1)
    return token_ids, log_probability(mass, _total(blocks))


def _draw_from_few(logits: Tensor, keys: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """A draw from large logits of which all rows are cut in one way: from each row's largest values.

    Rows where more is kept, or what is kept is not known, are drawn whole, one by one. A row's own values and settings
    alone decide about that, since it adds up the masses in another order.
    """
    half = logits.dtype != torch.float32
    logits, maxima, top = _survey(logits)
    blocks = maxima.shape[1]
    head, token_ids = largest(logits, maxima, depth_of(settings, logits.shape[1], half=half))
    if half:
        token_ids, order = token_ids.sort(-1)
        head, order = head.gather(1, order).sort(dim=-1, descending=True, stable=True)
        token_ids = token_ids.gather(1, order)
    # of whole blocks: torch's exp2 may give other bits for what is left over at the end
    mass = mass_of(whole_blocks(head), top, settings.scale)[:, : head.shape[1]]
    whole = cut_head_(mass, head, settings, half=half, all_mass=lambda: _all_mass(logits, top, settings.scale))
    block = token_ids >> _SHIFT
    _, distances = _counters(blocks)
    distances = distances[torch.cat((token_ids & BLOCK - 1, block + BLOCK), 1)]
    inside, among = torch.split(log_uniform(keys.unsqueeze(1), distances), mass.shape[1], 1)
    by_block = torch.zeros((len(mass), blocks), dtype=torch.float32, device="cpu").scatter_add_(1, block, mass)
    first = block.gather(1, winner(among, by_block.gather(1, block)))
    chosen = winner(inside, mass * (block == first))
    logprobs = log_probability(mass.gather(1, chosen), _total(mass))
    token_ids = token_ids.gather(1, chosen).masked_fill_(logprobs.isneginf().unsqueeze(1), 0)
    for row in whole:
        here, own = slice(row, row + 1), settings_of_row(logits.shape[1], settings, row)
        token_ids[here], logprobs[here] = _draw_whole(logits[here], keys[here], own, wide=True)
    return token_ids, logprobs


def _survey(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits without NaN and +inf, the maxima of their blocks, and the rows' maxima (rows, 1) in float32."""
    maxima = block_maxima(logits)
    top = maxima.amax(-1, keepdim=True).float()
    if not _all_finite(top):
        logits = _cleaned(logits.float())
        maxima = block_maxima(logits)
        top = maxima.amax(-1, keepdim=True).clamp_(min=-_LARGEST)
    return logits, maxima, top


def _all_finite(top: Tensor) -> bool:
    return all(math.isfinite(value) for [value] in top.tolist())


def _cleaned(values: Tensor) -> Tensor:
    return values.nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)


def _all_mass(logits: Tensor, top: Tensor, scale: float | Tensor) -> Tensor:
    """The mass of each block (rows, blocks)."""
    vocab = logits.shape[1]
    full = vocab // BLOCK * BLOCK
    size = min(max(1, _CHUNK // vocab), len(logits))
    buffer = torch.empty((size, full // BLOCK, BLOCK), dtype=torch.float32, device="cpu")  # pages cost more than sums
    blocks = torch.unflatten(logits[:, :full], 1, buffer.shape[1:])
    tops = top.unsqueeze(2)
    scales: Iterable[float | Tensor] = itertools.repeat(scale)
    if isinstance(scale, Tensor):
        scales = torch.split(scale.unsqueeze(2), size)
    parts = []
    for values, highest, own in zip(torch.split(blocks, size), torch.split(tops, size), scales, strict=False):
        out = buffer if len(values) == size else buffer[: len(values)]
        if logits.dtype != torch.float32:  # the caller's are not written to
            values = out.copy_(values)
        parts.append(mass_of(values, highest, own, out=out).sum(-1))
    mass = torch.cat(parts)
    if full == vocab:
        return mass
    end = mass_of(whole_blocks(logits[:, full:]), top, scale)  # a padded copy of all would cost more
    return torch.cat((mass, end.sum(-1, keepdim=True)), -1)


def _total(blocks: Tensor) -> Tensor:
    return blocks.sum(-1, keepdim=True, dtype=torch.float64)


@lru_cache(maxsize=64)
def _rows(count: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count, device="cpu")


@lru_cache(maxsize=64)
def _counters(blocks: int) -> tuple[Tensor, Tensor]:
    """As `race.counters`, kept."""
    with torch.inference_mode(False):
        return counters(blocks, torch.device("cpu"))
