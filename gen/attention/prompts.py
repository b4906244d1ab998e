"""Attention of prompts in blocks of 64 queries at absolute positions: a token's bits only depend on the tokens before.

Example: a prompt of 100 tokens is read in two parts, of 70 and of 30 tokens. The first part has queries for tokens 0 to
63, a whole block, and for tokens 64 to 69 of the next block; the second part has queries for tokens 70 to 99 of that
block. All queries of a block look at all columns up to the block's end, and the mask hides what a token does not see.
So tokens 64 to 69 get what they would get if all were read at once. A few queries are summed in another order than
many; so if a part does not begin or end at a multiple of 16, queries of zeros are added. The second part then has
queries for tokens 64 to 111.
"""

import torch
from torch import Tensor
from torch.nn import functional

BLOCK, _QUERIES = 64, 16


def whole_blocks(columns: int) -> int:
    """As many columns as the fewest blocks that hold them."""
    return -(-columns // BLOCK) * BLOCK


def attend_blocks(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, start: int, scale: float | None) -> Tensor:
    """Attention of the tokens of prompts over the columns before them and their own.

    Args:
        query: (n, heads, tokens, width), of the tokens at columns `start` to `start + tokens - 1`; floating.
        keys: (n, key_heads, view, width), of the first columns; `view` is a multiple of 32.
        values: (n, key_heads, view, value_width).
        mask: (n, 1, tokens, view), numbers to add, of the query's dtype; or one row for all.
        scale: None is `width ** -0.5`.
    Returns:
        (n, tokens, heads, value_width); zeros for tokens beyond the view, which are padding. Host sync: none.
    """
    count, heads, tokens, _ = query.shape
    found = query.new_zeros((count, tokens, heads, values.shape[-1]))
    if mask.stride(0) == 0:
        mask = mask[:1]
    for begin in range(start // BLOCK * BLOCK, min(start + tokens, keys.shape[2]), BLOCK):
        end = min(begin + BLOCK, keys.shape[2])
        own = slice(max(begin - start, 0), min(end - start, tokens))
        missing = begin + BLOCK - end  # columns of the block for which rows have no room
        before, after = (start + own.start) % _QUERIES, -(start + own.stop) % _QUERIES
        asked, seen, read, told = query[:, :, own], mask[:, :, own, :end], keys[:, :, :end], values[:, :, :end]
        if before or after:
            asked, seen = (functional.pad(part, (0, 0, before, after)) for part in (asked, seen))
        if missing:
            seen = functional.pad(seen, (0, missing), value=torch.finfo(seen.dtype).min)
            read, told = (functional.pad(part, (0, 0, 0, missing)) for part in (read, told))
        answer = functional.scaled_dot_product_attention(
            asked, read, told, attn_mask=seen, scale=scale, enable_gqa=heads != keys.shape[1]
        )
        found[:, own] = answer.transpose(1, 2)[:, before : before + own.stop - own.start]
    return found


def attend_groups(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """The same in one piece, for devices whose kernels take a mask, but not fewer key heads than query heads.

    There is one call for each of the query heads that share a key head; neither keys nor mask are copied.
    """
    count, heads, tokens, _ = query.shape
    key_heads = keys.shape[1]
    found = query.new_empty((count, tokens, heads, values.shape[-1]))
    by_key_head = torch.unflatten(query, 1, (key_heads, -1)).unbind(2)
    for asked, answer in zip(by_key_head, torch.unflatten(found, 2, (key_heads, -1)).unbind(3), strict=True):
        answer.copy_(
            functional.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=scale).transpose(1, 2)
        )
    return found
