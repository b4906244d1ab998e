"""The draw: an exponential race, in two levels, keyed on (key, index) alone.

Whoever has the smallest exponential noise divided by its mass wins with a probability proportional to the mass; the
logarithm of it is Gumbel-max. First a block of 128 token ids runs by its mass, then a token inside it, which is exact
by the chain rule. Sources: Gumbel 1954; Maddison, Tarlow & Minka 2014, arXiv:1411.0030.
"""

import torch
from torch import Tensor

from gen.samplers.blocks import BLOCK
from gen.samplers.cuts import Cut, Setting, log_weight, mass_of
from gen.samplers.random import BLOCK_NOISE, TOKEN_NOISE, exponential


def kept_mass_(values: Tensor, top: Tensor, temperature: Setting | None, cut: Cut) -> tuple[Tensor, Tensor]:
    """The mass that a cut keeps of each block; overwrites the values.

    Args:
        values: (rows, n, 128), float32, no NaN, the blocks in rising order.
        top: (rows, 1), float32: the row's maximum.
    Returns:
        (rows, n) float32: the mass; (rows, n) int64: how many tokens are at the threshold. Memory: half the values'.
    """
    threshold = cut.threshold.unsqueeze(-1)
    above, ties = [], []
    for half in torch.split(values, -(-values.shape[1] // 2), dim=1):
        hits = torch.empty_like(half)  # comparisons written as numbers: masks of bool take several times as long
        ties.append(torch.eq(half, threshold, out=hits).sum(-1).long())
        torch.gt(half, threshold, out=hits)
        above.append(mass_of(half, top, temperature, out=half).mul_(hits).sum(-1))
        del hits  # before the next are made
    tie = torch.cat(ties, -1)
    kept = torch.minimum((cut.quota - (tie.cumsum(-1) - tie)).clamp_(min=0), tie)
    return torch.cat(above, -1) + kept * log_weight(cut.threshold, top, temperature).exp_(), tie


def run_blocks(mass: Tensor, keys: Tensor, ids: Tensor | None = None) -> Tensor:
    """Draw a block of each row: (rows, 1), int64, an index into `mass`.

    Args:
        mass: (rows, n), float32.
        keys: (rows,), int64.
        ids: (rows, n), int64: which blocks these are; None for all in order.
    """
    counter = (torch.arange(mass.shape[1], device=mass.device) if ids is None else ids) + BLOCK_NOISE
    return exponential(keys.unsqueeze(1), counter).div_(mass).argmin(-1, keepdim=True)


def run_tokens(
    inside: Tensor,
    top: Tensor,
    temperature: Setting | None,
    cut: Cut | None,
    before: Tensor,
    block: Tensor,
    keys: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw a token inside each row's block.

    Args:
        inside: (rows, 128), float32: the block's values.
        before: (rows, 1), int64: how many tokens at the threshold come before it.
        block: (rows, 1), int64: its index in the vocabulary.
    Returns:
        (rows, 1) int64: the token id; (rows, 1) float32: its log-weight. A block without mass gives its first token.
    """
    weight = log_weight(inside, top, temperature)
    mass = weight.exp()
    if cut is not None:
        tie = inside == cut.threshold
        rank = before + tie.cumsum(-1)  # counted from 1
        mass = mass.mul_((inside > cut.threshold) | (tie & (rank <= cut.quota)))
    counter = block * BLOCK + torch.arange(TOKEN_NOISE, TOKEN_NOISE + BLOCK, device=keys.device)
    winner = exponential(keys.unsqueeze(1), counter).div_(mass).argmin(-1, keepdim=True)
    return block * BLOCK + winner, weight.gather(-1, winner)


def run_candidates(
    values: Tensor, token_ids: Tensor, top: Tensor, temperature: Setting | None, cut: Cut, keys: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw from a few tokens: the same token as from all blocks, if no other token is kept.

    Args:
        values, token_ids: (rows, n), float32 and int64, in any order.
    Returns:
        (rows, 1) int64: the token id, 0 in a row without mass; (rows, 1) float32: its log-weight; (rows, n) float32:
        the mass of each. Memory: rows * n * n numbers.
    """
    weight = log_weight(values, top, temperature)
    tie = values == cut.threshold
    earlier = token_ids.unsqueeze(1) <= token_ids.unsqueeze(2)
    rank = (earlier & tie.unsqueeze(1)).sum(-1)
    mass = weight.exp().mul_((values > cut.threshold) | (tie & (rank <= cut.quota)))
    block = token_ids // BLOCK
    block_mass = ((block.unsqueeze(2) == block.unsqueeze(1)) * mass.unsqueeze(1)).sum(-1)
    noise = exponential(keys.view(-1, 1, 1), torch.stack((block + BLOCK_NOISE, token_ids + TOKEN_NOISE), 1))
    best = block.gather(-1, (noise[:, 0] / block_mass).argmin(-1, keepdim=True))
    winner = (noise[:, 1] / mass.masked_fill(block != best, 0)).argmin(-1, keepdim=True)
    drawn = token_ids.gather(-1, winner).masked_fill_(mass.sum(-1, keepdim=True) <= 0, 0)
    return drawn, weight.gather(-1, winner), mass


def log_probability(weight: Tensor, mass: Tensor) -> Tensor:
    """The log-probabilities of tokens of log-weights (rows, n) in rows of masses (rows, m): -inf in a dead row."""
    total = mass.sum(-1, keepdim=True)
    # a dead row has a mass of 0: -inf - log(0) would be NaN
    return torch.where(total > 0, weight - total.log(), -torch.inf)
