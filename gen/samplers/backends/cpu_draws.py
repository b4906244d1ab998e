"""The draw on the CPU, in the way that suits the logits: from all at once, block by block, or from the few largest."""

from functools import lru_cache

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, largest, whole_blocks
from gen.samplers.backends.cpu_cuts import cut_, cut_head_, depth_of, rank
from gen.samplers.backends.cpu_passes import (
    all_finite,
    block_masses,
    cleaned,
    survey,
    tokens_of,
)
from gen.samplers.backends.cpu_settings import Settings, settings_of_row
from gen.samplers.backends.race import counters, log_probability, mass_of, none_of_dead_, winner
from gen.samplers.backends.random import log_uniform, weyl

_SHIFT = BLOCK.bit_length() - 1


def draw_whole(logits: Tensor, keys: Tensor, settings: Settings, *, wide: bool = False) -> tuple[Tensor, Tensor]:
    """A draw from all logits at once. For `wide` see `cpu_cuts.rank`."""
    values = whole_blocks(logits)
    ranked, top, alive = _ranked(values, settings, wide=wide)
    if not alive:
        values = cleaned(values)
        ranked, top, alive = _ranked(values, settings, wide=wide)
    mass = mass_of(values, top, settings.scale)  # NaN in a dead row, where the top is -inf
    if settings.cuts:
        cut_(mass, values, ranked, settings, wide=wide, alive=alive)
    by_block = torch.unflatten(mass, 1, (-1, BLOCK))
    blocks = by_block.sum(-1)
    inside, among = torch.split(
        log_uniform(keys.unsqueeze(1), _distances(blocks.shape[1])), [BLOCK, blocks.shape[1]], 1
    )
    rows, block = _rows(len(keys)), winner(among, blocks, keepdim=False)
    token_ids = torch.add(winner(inside, by_block[rows, block], keepdim=False), block, alpha=BLOCK)
    if settings.cold is not None:
        token_ids = torch.where(settings.cold.squeeze(1), values.argmax(-1), token_ids)
    logprobs = mass[rows, token_ids]
    torch.log(logprobs / blocks.sum(-1, dtype=torch.float64), out=logprobs)
    return token_ids.unsqueeze(1), logprobs if alive else none_of_dead_(logprobs)


def _ranked(values: Tensor, settings: Settings, *, wide: bool) -> tuple[tuple[Tensor, Tensor | None], Tensor, bool]:
    """The result of `cpu_cuts.rank`; each row's largest value (rows, 1); and whether all of these are finite."""
    head, index = rank(values, settings, wide=wide)
    top = values.amax(-1, keepdim=True) if index is None else head[:, :1]
    return (head, index), top, all_finite(top)


def draw_from_all(logits: Tensor, keys: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """A draw from large logits without cuts; no row is greedy."""
    logits, _, top, _ = survey(logits)
    blocks = block_masses(logits, top, settings.scale)
    inside, among = torch.split(
        log_uniform(keys.unsqueeze(1), _distances(blocks.shape[1])), [BLOCK, blocks.shape[1]], 1
    )
    token_ids = tokens_of(winner(among, blocks))
    last = logits.shape[1] - 1
    values = logits.gather(1, token_ids.clamp(max=last) if logits.shape[1] % BLOCK else token_ids)
    mass = mass_of(values.float(), top, settings.scale)
    if logits.shape[1] % BLOCK:
        mass.mul_(token_ids <= last)
    place = winner(inside, mass)
    token_ids, mass = token_ids.gather(1, place), mass.gather(1, place)
    return token_ids, log_probability(mass, blocks.sum(-1, keepdim=True, dtype=torch.float64))


def draw_from_few(logits: Tensor, keys: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """A draw from the largest values of each row of large logits; all rows have the same kind of cut.

    A row for which these values are not enough, see `cut_head_`, is drawn from all its logits. That adds up the masses
    in another order, so only a row's own values and settings may decide whether it happens.
    """
    half = logits.dtype != torch.float32
    logits, maxima, top, alive = survey(logits)
    head, token_ids = largest(logits, maxima, depth_of(settings, logits.shape[1], half=half))
    if half:
        token_ids, order = token_ids.sort(-1)
        head, order = head.gather(1, order).sort(dim=-1, descending=True, stable=True)
        token_ids = token_ids.gather(1, order)
    # in whole blocks: torch's exp2 may give other last bits for the numbers left over at the end of a tensor
    mass = mass_of(whole_blocks(head), top, settings.scale)[:, : head.shape[1]]
    whole = cut_head_(mass, head, settings, half=half, all_mass=lambda: block_masses(logits, top, settings.scale))
    block = token_ids >> _SHIFT
    distances = weyl(torch.cat((token_ids & BLOCK - 1, block + BLOCK), 1))
    inside, among = torch.split(log_uniform(keys.unsqueeze(1), distances), mass.shape[1], 1)
    by_block = torch.zeros(maxima.shape, dtype=torch.float32, device="cpu").scatter_add_(1, block, mass)
    first = block.gather(1, winner(among, by_block.gather(1, block)))
    chosen = winner(inside, mass * (block == first))
    token_ids = token_ids.gather(1, chosen)
    logprobs = log_probability(mass.gather(1, chosen), mass.sum(-1, keepdim=True, dtype=torch.float64))
    if not alive:
        token_ids.masked_fill_(logprobs.isneginf().unsqueeze(1), 0)
    for row in whole:
        here, own = slice(row, row + 1), settings_of_row(logits.shape[1], settings, row)
        token_ids[here], logprobs[here] = draw_whole(logits[here], keys[here], own, wide=True)
    return token_ids, logprobs


@lru_cache(maxsize=64)
def _rows(count: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count, device="cpu")


@lru_cache(maxsize=64)
def _distances(blocks: int) -> Tensor:
    """The distances of `race.counters`, cached."""
    with torch.inference_mode(False):
        return counters(blocks, torch.device("cpu"))[1]
