"""Triton kernels of a step's attention: one computes pieces of 256 columns, the other joins a row's pieces.

Example, with pieces of 2: a row looks at columns 0 to 2 with the scores log 8, log 4, log 2. Piece 0 has the largest
score log 8 and the sum 1 + 1/2, piece 1 has log 2 and 1. Relative to log 8 the sum is 1 + 1/2 + 1/4, and the values of
piece 1 have a quarter of the weight that they have in their piece.

Pieces begin at multiples of 256 and are joined in order, so a row's result depends neither on other rows nor on how far
these look. Columns that the mask hides are not read: of a piece beyond a row's end, or before its window, only the mask
is read.

Importing this needs triton. With TRITON_INTERPRET=1 set before the import the kernels run on the CPU, slowly.
"""

import triton
import triton.language as tl

PIECE = 256


@triton.jit
def look(
    query,
    keys,
    values,
    mask,
    bests,
    sums,
    parts,
    scale,
    hidden,
    key_row,
    key_head,
    key_column,
    value_row,
    value_head,
    value_column,
    mask_row,
    mask_token,
    asked,
    tokens,
    view,
    ASKED: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    VALUE_WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECE: tl.constexpr,
    MULTIPLIED: tl.constexpr,
):
    """Compute a piece's largest score, and relative to it the sum and the values. Grid: (rows, key_heads, pieces).

    Args:
        asked: how many queries share a key head: those of its query heads, each with all tokens.
        hidden: where the mask is at or below this number, a token does not look.
        MULTIPLIED: the type of the numbers that are multiplied; sums are float32.
    """
    row, head, piece = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    place = (row * tl.num_programs(1) + head) * tl.num_programs(2) + piece
    number, wide, value_wide = tl.arange(0, ASKED), tl.arange(0, WIDE), tl.arange(0, VALUE_WIDE)
    own = query + (row * tl.num_programs(1) + head) * asked * WIDTH
    queries = tl.load(
        own + number[:, None] * WIDTH + wide[None, :],
        mask=(number[:, None] < asked) & (wide[None, :] < WIDTH),
        other=0.0,
    ).to(MULTIPLIED)
    keys += row * key_row + head * key_head
    values += row * value_row + head * value_head
    mask += row * mask_row + (number % tokens)[:, None] * mask_token
    best = tl.full((ASKED,), float("-inf"), tl.float32)
    total = tl.zeros((ASKED,), tl.float32)
    found = tl.zeros((ASKED, VALUE_WIDE), tl.float32)
    for first in range(piece * PIECE, tl.minimum(view, (piece + 1) * PIECE), COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        there = (number[:, None] < asked) & (column[None, :] < view)
        added = tl.load(mask + column[None, :], mask=there, other=float("-inf")).to(tl.float32)
        seen = added > hidden
        read = tl.max(seen.to(tl.int32), 0) > 0  # a column that no token sees may hold anything
        if tl.max(read.to(tl.int32), 0) > 0:
            key = tl.load(
                keys + column[None, :] * key_column + wide[:, None],
                mask=read[None, :] & (wide[:, None] < WIDTH),
                other=0.0,
            )
            score = tl.dot(queries, key.to(MULTIPLIED), input_precision="ieee") * scale + added
            score = tl.where(seen, score, float("-inf"))
            larger = tl.maximum(best, tl.max(score, 1))
            base = tl.where(larger > float("-inf"), larger, 0.0)
            weight, shrink = tl.exp(score - base[:, None]), tl.exp(best - base)
            value = tl.load(
                values + column[:, None] * value_column + value_wide[None, :],
                mask=read[:, None] & (value_wide[None, :] < VALUE_WIDTH),
                other=0.0,
            )
            total = total * shrink + tl.sum(weight, 1)
            found = found * shrink[:, None] + tl.dot(
                weight.to(MULTIPLIED), value.to(MULTIPLIED), input_precision="ieee"
            )
            best = larger
    tl.store(bests + place * ASKED + number, best)
    tl.store(sums + place * ASKED + number, total)
    tl.store(parts + (place * ASKED + number[:, None]) * VALUE_WIDE + value_wide[None, :], found)


@triton.jit
def join(
    bests,
    sums,
    parts,
    answer,
    asked,
    tokens,
    pieces,
    ASKED: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    VALUE_WIDE: tl.constexpr,
):
    """Join all pieces of a row. Grid: (rows, key_heads); the answer is (rows, tokens, heads, value_width)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number, value_wide = tl.arange(0, ASKED), tl.arange(0, VALUE_WIDE)
    best = tl.full((ASKED,), float("-inf"), tl.float32)
    total = tl.zeros((ASKED,), tl.float32)
    found = tl.zeros((ASKED, VALUE_WIDE), tl.float32)
    for piece in range(0, pieces):
        place = (row * tl.num_programs(1) + head) * pieces + piece
        its_best = tl.load(bests + place * ASKED + number)
        larger = tl.maximum(best, its_best)
        base = tl.where(larger > float("-inf"), larger, 0.0)
        shrink, its_shrink = tl.exp(best - base), tl.exp(its_best - base)
        part = tl.load(parts + (place * ASKED + number[:, None]) * VALUE_WIDE + value_wide[None, :])
        total = total * shrink + tl.load(sums + place * ASKED + number) * its_shrink
        found = found * shrink[:, None] + part * its_shrink[:, None]
        best = larger
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    groups = asked // tokens
    to = (row * tokens + number % tokens) * tl.num_programs(1) * groups + head * groups + number // tokens
    tl.store(
        answer + to[:, None] * VALUE_WIDTH + value_wide[None, :],
        found.to(answer.dtype.element_ty),
        mask=(number[:, None] < asked) & (value_wide[None, :] < VALUE_WIDTH),
    )
