"""Rows of logits as blocks of 128 token ids: the unit in which rows are searched and drawn from.

Example, with blocks of 2: the logits 2, 1, 0, 5 have the block maxima 2 and 5. The largest logit is in the block with
the largest maximum, block 1, at place 1: token 1 x 2 + 1 = 3. The two largest logits are always in the two blocks with
the largest maxima.
"""

import math

import torch
from torch import Tensor

BLOCK = 128
PIECES = 16  # the pieces of a block, see `largest`
FEW = 64  # `largest` cuts blocks into pieces to find more values than this
_SHIFT = BLOCK.bit_length() - 1


def count_blocks(vocab: int) -> int:
    """How many blocks hold a vocabulary; the last one may be partly filled."""
    return -(-vocab // BLOCK)


def block_maxima(values: Tensor) -> Tensor:
    """The largest value of each block; NaN if the block has one.

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


def whole_blocks(values: Tensor) -> Tensor:
    """All blocks (rows, blocks * 128), float32, -inf past the end of the vocabulary; copied only if necessary."""
    values = values if values.dtype == torch.float32 else values.float()
    padding = -values.shape[1] % BLOCK
    return torch.nn.functional.pad(values, (0, padding), value=-math.inf) if padding else values


def take_blocks(values: Tensor, blocks: Tensor) -> Tensor:
    """Copy some blocks of each row.

    Args:
        values: (rows, vocab), floating.
        blocks: (rows, n), int64, on the same device: the numbers of the blocks.
    Returns:
        (rows, n, 128), float32; -inf past the end of the vocabulary. Host sync: none.
    """
    rows, vocab = values.shape
    if vocab < BLOCK or rows == 0:
        return _end(values).repeat(1, blocks.shape[1], 1)
    if values.stride(1) != 1:
        values = values.contiguous()
    # A view that has each run of 128 numbers in memory as a row: selecting rows is far faster than gathering numbers.
    last = (rows - 1) * values.stride(0) + vocab - BLOCK
    runs = values.as_strided((last + 1, BLOCK), (1, 1))
    row = torch.arange(rows, device=values.device).unsqueeze(1)
    first = (row * values.stride(0)).add(blocks, alpha=BLOCK)
    if vocab % BLOCK:
        first.clamp_(max=last)
    taken = runs.index_select(0, first.flatten()).view(*blocks.shape, BLOCK).float()
    return torch.where((blocks == vocab // BLOCK).unsqueeze(-1), _end(values), taken) if vocab % BLOCK else taken


def _end(values: Tensor) -> Tensor:
    """The partly filled block, (rows, 1, 128) float32: -inf past the end of the vocabulary."""
    return whole_blocks(values[:, values.shape[1] // BLOCK * BLOCK :]).unsqueeze(1)


def largest(values: Tensor, maxima: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest values of each row, in falling order. The row is not sorted: they are in the n blocks with the
    largest maxima.

    Args:
        values: (rows, vocab), floating, no NaN.
        maxima: (rows, blocks), from `block_maxima`.
        n: at most vocab.
    Returns:
        (rows, n) float32: the values; (rows, n) int64: their tokens; of those that equal the last value, any.
        Host sync: none.
    """
    if 2 * n >= maxima.shape[1]:
        ranked = values.topk(n)
        return ranked.values.float(), ranked.indices
    blocks = maxima.topk(n, sorted=False).indices
    taken = take_blocks(values, blocks)
    if n <= FEW:
        ranked = taken.flatten(1).topk(n)
        slot, place = ranked.indices >> _SHIFT, ranked.indices & BLOCK - 1
        return ranked.values, place.add_(blocks.gather(-1, slot), alpha=BLOCK)
    # The same again inside these blocks: a piece has the tokens of a block whose indices are equal modulo 16.
    pieces = taken
    while pieces.shape[-1] > PIECES:
        pieces = torch.maximum(*pieces.chunk(2, -1))
    best = pieces.flatten(1).topk(n, sorted=False).indices
    slot, piece = best // PIECES, best % PIECES
    row = torch.arange(len(values), device=values.device).unsqueeze(1)
    ranked = torch.unflatten(taken, -1, (BLOCK // PIECES, PIECES))[row, slot, :, piece].flatten(1).topk(n)
    depth = BLOCK // PIECES
    first = blocks.gather(-1, slot).mul_(BLOCK).add_(piece)  # the first token of each piece
    return ranked.values, first.gather(-1, ranked.indices // depth) + ranked.indices % depth * PIECES
