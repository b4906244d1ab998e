"""Rows of logits as blocks of 128 token ids: the unit in which they are searched and drawn from."""

import math

import torch
from torch import Tensor

BLOCK = 128


def count_blocks(vocab: int) -> int:
    """How many blocks hold a vocabulary; the last one may be partly filled."""
    return -(-vocab // BLOCK)


def block_maxima(values: Tensor) -> Tensor:
    """The largest value of each block; NaN where there is one.

    Args:
        values: (rows, vocab), floating, any device.
    Returns:
        (rows, blocks), same dtype and device. Host sync: none.
    """
    vocab = values.shape[1]
    full = vocab // BLOCK
    maxima = torch.unflatten(values[:, : full * BLOCK], 1, (full, BLOCK)).amax(-1)
    if vocab % BLOCK == 0:
        return maxima
    return torch.cat((maxima, values[:, full * BLOCK :].amax(-1, keepdim=True)), -1)


def take_blocks(values: Tensor, blocks: Tensor) -> Tensor:
    """Copy some blocks of each row.

    Args:
        values: (rows, vocab), floating.
        blocks: (rows, n), int64, on the same device: which ones.
    Returns:
        (rows, n, 128), float32; -inf past the end of the vocabulary. Host sync: none.
    """
    rows, vocab = values.shape
    row = torch.arange(rows, device=values.device).view(rows, 1)
    if vocab % BLOCK == 0:
        return torch.unflatten(values, 1, (vocab // BLOCK, BLOCK))[row, blocks].float()
    token = blocks.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=values.device)
    taken = values[row.unsqueeze(-1), token.clamp(max=vocab - 1)].float()
    return taken.masked_fill_(token >= vocab, -math.inf)


def largest(values: Tensor, maxima: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest values of each row, in falling order, without sorting the row: they lie in the n best blocks.

    Args:
        values: (rows, vocab), floating, no NaN.
        maxima: (rows, blocks), what `block_maxima` gives for them.
        n: at most vocab.
    Returns:
        (rows, n) float32: the values; (rows, n) int64: their tokens, any of those that equal the last value.
        Host sync: none.
    """
    if 2 * n >= maxima.shape[1]:
        ranked = values.topk(n)
        return ranked.values.float(), ranked.indices
    blocks = maxima.topk(n, sorted=False).indices
    ranked = take_blocks(values, blocks).flatten(1).topk(n)
    return ranked.values, blocks.gather(-1, ranked.indices // BLOCK) * BLOCK + ranked.indices % BLOCK
