"""Attention of a step: a row's new tokens look at its own columns, and its keys are read once for all query heads.

Example: 4 query heads over 2 key heads. Query heads 0 and 1 use the keys of key head 0, so their queries are laid side
by side as two queries of one head: (rows, 4, 1, width) becomes (rows, 2, 2, width). The keys are not copied.
"""

import torch
from torch import Tensor
from torch.nn import functional

from gen.attention.plan import Plan, Run
from gen.devices import runs_triton
from gen.runtime.one_call import one_call

Apart = tuple[tuple[int, Tensor, Tensor], ...]
"""Rows whose columns have memory of their own: which row, its keys and its values, (1, key_heads, room, width)."""

_TRITONS = {torch.float32, torch.float16, torch.bfloat16}
_CACHED = 2**17  # numbers of a row's keys in a layer that stay in a CPU's cache, so that they are read again quickly
_MOST_QUERIES, _MOST_WIDTH = 128, 256  # that Triton's kernels take: queries a key head, numbers a query


@one_call
def attend_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    plan: Plan,
    scale: float | None,
    apart: Apart = (),
) -> Tensor:
    """Attention of each row's tokens over its columns, `softmax(query @ keys * scale + mask) @ values`.

    A recording's call reads the plan's numbers again each time.

    Args:
        query: (n, heads, tokens, width), of the rows' new tokens; floating, any device.
        keys: (n, key_heads, view, width); `heads` is a multiple of `key_heads`.
        values: (n, key_heads, view, value_width).
        mask: (n, 1, tokens, view), numbers to add, of the query's dtype; it hides columns that a row does not look at.
            If rows are apart, it has as many columns as the longest of them looks at.
        plan: how far each row looks.
        scale: None is `width ** -0.5`.
        apart: rows that look at columns of their own, in order; `keys` and `values` mean nothing for them.
    Returns:
        (n, tokens, heads, value_width), contiguous. Host sync: none.
    """
    view = keys.shape[2]
    runs = plan.runs or _all_runs(len(query), view, mask.shape[3], apart)
    if len(runs) == 1 and not apart and runs[0][2] == view:  # as in most steps: nothing has to be cut out
        return _attend(query, keys, values, mask, scale, view)
    own = {row: (its_keys, its_values) for row, its_keys, its_values in apart}
    longest = max(view for *_, view in runs)
    answers = []
    for first, end, view in runs:
        rows = slice(first, end)
        # in a run with other rows, a row that is apart is free or being read
        read, told = own[first] if first in own and end == first + 1 else (keys[rows], values[rows])
        cut = (query[rows], read[:, :, :view], told[:, :, :view], mask[rows, ..., :view])
        answers.append(_attend(*cut, scale, longest))
    return answers[0] if len(answers) == 1 else torch.cat(answers)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, longest: int) -> Tensor:
    """The attention of rows that look equally far; `longest` is how far any row of the step looks."""
    if runs_triton(query) and _fits_triton(query, keys, values):
        from gen.attention import triton_steps  # needs triton

        return triton_steps.attend(query, keys, values, mask, scale)
    if query.shape[2] > 1 and query.is_cpu and longest * keys.shape[1] * query.shape[3] <= _CACHED:
        return _each_token(query, keys, values, mask, scale)
    return _all_tokens(query, keys, values, mask, scale)


def _all_tokens(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """The attention of all tokens of rows that look equally far: keys and values are read once."""
    (count, heads, tokens, width), key_heads = query.shape, keys.shape[1]
    packed = query.reshape(count, key_heads, -1, width)
    if tokens > 1 and heads > key_heads:
        mask = mask.repeat(1, 1, heads // key_heads, 1)
    found = functional.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scale)
    if tokens == 1:
        return found.reshape(count, 1, heads, -1)
    return found.reshape(count, heads, tokens, -1).transpose(1, 2).contiguous()


def _each_token(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """The attention of several tokens, each summed as in a step of its own; it reads keys and values for each again.

    The tokens are laid side by side as heads that share a key head, and the query heads as queries of these heads.
    """
    (count, heads, tokens, width), key_heads = query.shape, keys.shape[1]
    asked = (
        query.view(count, key_heads, -1, tokens, width).transpose(2, 3).reshape(count, key_heads * tokens, -1, width)
    )
    mask = mask.expand(-1, key_heads, -1, -1).reshape(count, key_heads * tokens, 1, -1)
    found = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)
    by_token = found.view(count, key_heads, tokens, heads // key_heads, -1).transpose(1, 2)
    return by_token.reshape(count, tokens, heads, -1)


def _all_runs(count: int, view: int, longest: int, apart: Apart) -> tuple[Run, ...]:
    """Runs in which all rows look at all columns: rows that are apart at their own, the others at the first `view`."""
    runs: list[Run] = []
    before = 0
    for row, keys, _ in apart:
        runs += [(before, row, view)] if row > before else []
        runs.append((row, row + 1, min(longest, keys.shape[2])))
        before = row + 1
    return (*runs, (before, count, view)) if before < count else tuple(runs)


def _fits_triton(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    _, heads, tokens, width = query.shape
    small = heads // keys.shape[1] * tokens <= _MOST_QUERIES and max(width, values.shape[3]) <= _MOST_WIDTH
    return small and query.dtype in _TRITONS and keys.stride(3) == values.stride(3) == 1
