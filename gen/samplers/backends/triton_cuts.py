"""Triton kernels that find where top-k, top-p and min-p cut a row; see `gen.samplers.backends.cuts`.

The first kernel lists the blocks that can hold a kept token; the second finds the threshold in them by bisection. A cut
is a threshold and a quota. The quota says how many of the tokens that equal the threshold are kept: those with the
lowest indices.

Example: tokens a, b, c, d have the logits log 8, log 4, log 2, log 2 and the masses 1, 1/2, 1/4, 1/4. A top-p of 0.8
needs 0.8 x 2 = 1.6. Tokens at or above log 2 have the mass 2, tokens above it 3/2: log 2 is the threshold. 0.1 is
missing, and each token at the threshold has 1/4: the quota is 1, and a, b, c are kept.

Importing this needs triton.
"""

import triton
import triton.language as tl

from gen.samplers.backends.triton_kernels import BLOCK, LARGEST, LOG2_E, SMALLEST, load_blocks, load_listed

ALL = tl.constexpr(2**62)
# The order of floating-point numbers as integers, see `_key`: from -inf to the largest number.
LOWEST_KEY, HIGHEST_KEY = tl.constexpr(0x007FFFFF), tl.constexpr(0x7F7FFFFF + 2**31)


@triton.jit
def list_blocks(
    maxima,
    masses,
    scales,
    top_k,
    top_p,
    min_p,
    listed,
    counts,
    floors,
    blocks,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Find a floor below which no token is kept, and list the blocks that reach it, in rising order. Grid: (rows,).

    The floor follows from the blocks' maxima and masses; the search for the cut then reads the listed blocks only.
    """
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, WIDTH)
    best = tl.load(maxima + row * blocks + index, mask=index < blocks, other=float("-inf"))
    top = tl.maximum(tl.max(best, 0), -LARGEST)
    temperature = LOG2_E / tl.load(scales + row)
    if HAS_TOP_K:
        # Each block has a token at its maximum, so the k-th largest maximum is at most the k-th largest logit.
        goal = tl.load(top_k + row).to(tl.float32)
        lowest = sure_floor(best, best, top, temperature, goal, True)
    elif HAS_TOP_P:
        mass = tl.load(masses + row * blocks + index, mask=index < blocks, other=0.0) * tl.exp(
            (best - top) / temperature
        )
        goal = tl.sum(mass, 0) * tl.load(top_p + row).to(tl.float32) * 1.00001  # sums in float32 are not exact
        lowest = sure_floor(best, mass, top, temperature, goal, False)
    else:
        lowest = min_p_key(top, temperature, tl.load(min_p + row))
    floor = _value(lowest)
    reaches = (best >= floor) & (index < blocks)
    slot = tl.cumsum(reaches.to(tl.int32), 0) - 1
    tl.store(listed + row * blocks + slot, index, mask=reaches)
    tl.store(counts + row, tl.sum(reaches.to(tl.int32), 0))
    tl.store(floors + row, floor)


@triton.jit
def find_cut(
    logits,
    stride,
    maxima,
    masses,
    scales,
    top_k,
    top_p,
    min_p,
    listed,
    counts,
    floors,
    thresholds,
    quotas,
    vocab,
    blocks,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Find the threshold and the quota of each row. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    listed += row * blocks
    count = tl.load(counts + row)
    index = tl.arange(0, WIDTH)
    best = tl.load(maxima + row * blocks + index, mask=index < blocks, other=float("-inf"))
    top = tl.maximum(tl.max(best, 0), -LARGEST)
    temperature = LOG2_E / tl.load(scales + row)
    floor = _key(tl.load(floors + row))
    lowest = tl.full((), LOWEST_KEY, tl.int64)
    quota = tl.full((), ALL, tl.int64)
    if HAS_TOP_K:
        k = tl.load(top_k + row)
        if k < vocab:
            lowest = search(
                logits, listed, count, vocab, blocks, top, temperature, k.to(tl.float64), floor, True, GROUP
            )
    if HAS_TOP_P:
        p = tl.load(top_p + row)
        if p < 1:
            if HAS_TOP_K:
                total = mass_from(
                    logits, listed, count, vocab, blocks, top, temperature, _value(lowest), False, False, GROUP
                )
            else:
                mass = tl.load(masses + row * blocks + index, mask=index < blocks, other=0.0)
                total = tl.sum((mass * tl.exp((best - top) / temperature)).to(tl.float64), 0)
            goal = tl.maximum(total * p, SMALLEST)
            nucleus = search(logits, listed, count, vocab, blocks, top, temperature, goal, floor, False, GROUP)
            if nucleus >= lowest:
                lowest = nucleus
                above = mass_from(
                    logits, listed, count, vocab, blocks, top, temperature, _value(lowest), False, True, GROUP
                )
                each = tl.maximum(tl.exp((_value(lowest) - top) / temperature), SMALLEST)
                wanted = tl.ceil(((goal - above) / each.to(tl.float64)).to(tl.float64))
                quota = tl.minimum(tl.maximum(wanted, 1.0), 9007199254740992.0).to(tl.int64)
    if HAS_MIN_P:
        likely = min_p_key(top, temperature, tl.load(min_p + row))
        if likely > lowest:
            lowest = likely
            quota = tl.full((), ALL, tl.int64)
    tl.store(thresholds + row, _value(lowest))
    tl.store(quotas + row, quota)


@triton.jit
def sure_floor(best, mass, top, temperature, goal, COUNT: tl.constexpr):
    """The key of the largest value at or above which there surely are `goal` tokens, or the mass `goal`; else -inf's.

    In each block, the tokens below a value have at most 128 times the mass of a token at the value.
    """
    lowest = tl.full((), LOWEST_KEY, tl.int64)
    highest = tl.full((), HIGHEST_KEY, tl.int64)
    while lowest < highest:
        middle = (lowest + highest + 1) >> 1
        value = _value(middle)
        if COUNT:
            sure = tl.full(best.shape, 1.0, tl.float32)
        else:
            sure = tl.maximum(tl.exp((best - top) / temperature), mass - BLOCK * tl.exp((value - top) / temperature))
        enough = tl.sum(tl.where(best >= value, sure, 0.0), 0) >= goal
        lowest = tl.where(enough, middle, lowest)
        highest = tl.where(enough, highest, middle - 1)
    return lowest


@triton.jit
def min_p_key(top, temperature, share):
    """The key of the smallest float32 whose token is at least `share` times as likely as the row's best."""
    exact = top.to(tl.float64) + tl.log(tl.maximum(share, 1e-300)) * temperature.to(tl.float64)
    exact = tl.where(share > 0, exact, -LARGEST)
    rounded = tl.maximum(exact, -LARGEST).to(tl.float32)
    return _key(rounded) + (rounded.to(tl.float64) < exact).to(tl.int64)


@triton.jit
def mass_from(
    logits,
    listed,
    count,
    vocab,
    blocks,
    top,
    temperature,
    threshold,
    COUNT: tl.constexpr,
    STRICT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The mass, or the number, of the listed tokens at or above a threshold (above it if STRICT), in float64."""
    total = tl.zeros((), tl.float64)
    for first in range(0, count, GROUP):
        values = load_blocks(logits, load_listed(listed, first, count, blocks, GROUP), vocab)
        hit = values > threshold if STRICT else values >= threshold
        weight = tl.full(values.shape, 1.0, tl.float32) if COUNT else tl.exp((values - top) / temperature)
        total += tl.sum(tl.sum(tl.where(hit, weight, 0.0), 1), 0).to(tl.float64)
    return total


@triton.jit
def search(
    logits, listed, count, vocab, blocks, top, temperature, goal, floor, COUNT: tl.constexpr, GROUP: tl.constexpr
):
    """The key of the largest threshold, not below `floor`, for which `mass_from` gives at least `goal`."""
    lowest = floor
    highest = tl.maximum(_key(top), floor)
    while lowest < highest:
        middle = (lowest + highest + 1) >> 1
        mass = mass_from(logits, listed, count, vocab, blocks, top, temperature, _value(middle), COUNT, False, GROUP)
        lowest = tl.where(mass >= goal, middle, lowest)
        highest = tl.where(mass >= goal, highest, middle - 1)
    return lowest


@triton.jit
def _key(value):
    """A float32 as an int64; the order stays the same."""
    pattern = value.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(pattern < 0, -1 - pattern, pattern + 2147483648)


@triton.jit
def _value(key):
    """The inverse of `_key`."""
    return tl.where(key < 2147483648, -1 - key, key - 2147483648).to(tl.int32).to(tl.float32, bitcast=True)
