"""Triton kernels: a survey of the logits, the most likely token and the draw, with the meaning of the torch backend.

Example, with blocks of 2: tokens a, b, c, d have the logits log 8, log 4, log 2, log 2. The survey finds the maxima
log 8 and log 2, and masses relative to these: 1 + 1/2 = 3/2 and 1 + 1 = 2. Relative to the row's best they are 3/2 and
2 x exp(log 2 - log 8) = 1/2, together 2: a is the most likely token, with the log-probability -log 2.

Values are compared as they came (NaN as -inf, +inf as the largest number); masses are relative to the row's best token.
Importing this needs triton. With TRITON_INTERPRET=1 set before the import the kernels run on the CPU, slowly.
"""

import triton
import triton.language as tl

BLOCK = tl.constexpr(128)
LOG2_E = tl.constexpr(1.4426950408889634)
LARGEST = tl.constexpr(3.4028234663852886e38)
SMALLEST = tl.constexpr(1.1754943508222875e-38)
GAMMA, MIX_1 = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def survey(logits, stride, scales, maxima, masses, vocab, blocks, GROUP: tl.constexpr):
    """The maximum of each block of 128, and the block's mass relative to it. Grid: (rows, groups of blocks)."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    values = load_blocks(logits + row * stride, block, vocab)
    best = tl.max(values, 1)
    temperature = LOG2_E / tl.load(scales + row)
    weight = tl.exp((values - tl.maximum(best, -LARGEST)[:, None]) / temperature)
    tl.store(maxima + row * blocks + block, best, mask=block < blocks)
    tl.store(masses + row * blocks + block, tl.sum(weight, 1), mask=block < blocks)


@triton.jit
def most_likely(logits, stride, maxima, masses, token_ids, logprobs, vocab, blocks, WIDTH: tl.constexpr):
    """The lowest index of each row's maximum and its log-probability. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, WIDTH)
    best = tl.load(maxima + row * blocks + index, mask=index < blocks, other=float("-inf"))
    mass = tl.load(masses + row * blocks + index, mask=index < blocks, other=0.0)
    top = tl.maximum(tl.max(best, 0), -LARGEST)
    block = tl.argmax(best, 0)
    inside = load_blocks(logits + row * stride, block + tl.arange(0, 1), vocab)
    token = block * BLOCK + tl.argmax(tl.reshape(inside, (BLOCK,)), 0)
    total = tl.sum(mass * tl.exp(best - top), 0)
    tl.store(token_ids + row, tl.where(total > 0, token, 0).to(tl.int64))
    tl.store(logprobs + row, tl.where(total > 0, -tl.log(tl.maximum(total, SMALLEST)), float("-inf")))


@triton.jit
def draw(
    logits,
    stride,
    keys,
    maxima,
    masses,
    scales,
    listed,
    counts,
    thresholds,
    quotas,
    token_ids,
    logprobs,
    vocab,
    blocks,
    HAS_CUT: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The race on two levels, see `gen.samplers.backends.race`. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    index = tl.arange(0, WIDTH)
    best = tl.load(maxima + row * blocks + index, mask=index < blocks, other=float("-inf"))
    top = tl.maximum(tl.max(best, 0), -LARGEST)
    temperature = LOG2_E / tl.load(scales + row)
    key = tl.load(keys + row)
    earlier = tl.zeros((), tl.int64)
    if HAS_CUT:
        threshold = tl.load(thresholds + row)
        quota = tl.load(quotas + row)
        tie_mass = tl.exp((threshold - top) / temperature)
        total = tl.zeros((), tl.float32)
        shortest = tl.full((), float("inf"), tl.float64)
        block = tl.zeros((), tl.int32)
        ties_so_far = tl.zeros((), tl.int64)
        count = tl.load(counts + row)
        for first in range(0, count, GROUP):
            group = load_listed(listed + row * blocks, first, count, blocks, GROUP)
            values = load_blocks(logits, group, vocab)
            ties = tl.sum((values == threshold).to(tl.int64), 1)
            before = ties_so_far + tl.cumsum(ties, 0) - ties
            kept = tl.minimum(tl.maximum(quota - before, 0), ties)
            weight = tl.exp((values - top) / temperature)
            mass = tl.sum(tl.where(values > threshold, weight, 0.0), 1) + kept.to(tl.float32) * tie_mass
            time = run(noise_at(key, group + BLOCK), mass)
            total += tl.sum(mass, 0)
            ties_so_far += tl.sum(ties, 0)
            if tl.min(time, 0) < shortest:
                shortest = tl.min(time, 0)
                fastest = tl.arange(0, GROUP) == tl.argmin(time, 0)
                block = tl.sum(tl.where(fastest, group, 0), 0)
                earlier = tl.sum(tl.where(fastest, before, 0), 0)
    else:
        mass = tl.load(masses + row * blocks + index, mask=index < blocks, other=0.0)
        mass = mass * tl.exp((best - top) / temperature)
        total = tl.sum(mass, 0)
        block = tl.argmin(run(noise_at(key, index + BLOCK), mass), 0)
    values = tl.reshape(load_blocks(logits, block + tl.arange(0, 1), vocab), (BLOCK,))
    weight = (values - top) / temperature
    mass = tl.exp(weight)
    if HAS_CUT:
        tie = values == threshold
        rank = earlier + tl.cumsum(tie.to(tl.int64), 0)
        mass = tl.where((values > threshold) | (tie & (rank <= quota)), mass, 0.0)
    winner = tl.argmin(run(noise_at(key, tl.arange(0, BLOCK)), mass), 0)
    chosen = tl.sum(tl.where(tl.arange(0, BLOCK) == winner, weight, 0.0), 0)
    tl.store(token_ids + row, tl.where(total > 0, block * BLOCK + winner, 0).to(tl.int64))
    tl.store(logprobs + row, tl.where(total > 0, chosen - tl.log(tl.maximum(total, SMALLEST)), float("-inf")))


@triton.jit
def load_blocks(logits, block, vocab):
    """Blocks (n,) of a row as (n, 128) float32: -inf for NaN and past the end, the largest number for +inf."""
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    values = tl.where(values != values, float("-inf"), values)
    return tl.minimum(values, LARGEST)


@triton.jit
def load_listed(listed, first, count, blocks, GROUP: tl.constexpr):
    """The next blocks of a row's list (GROUP,); past the list's end, a block that is past the vocabulary."""
    slot = first + tl.arange(0, GROUP)
    return tl.load(listed + slot, mask=slot < count, other=blocks)


@triton.jit
def noise_at(key, counter):
    """Exponential noise at counters, float64: the negative of `gen.samplers.backends.random.log_uniform`."""
    bits = key.to(tl.uint64) + counter.to(tl.uint64) * GAMMA
    bits = (bits ^ (bits >> 30)) * MIX_1
    bits = ((bits ^ (bits >> 27)) * MIX_2).to(tl.int64) >> 12
    return -tl.log((bits.to(tl.float64) + 2251799813685248.5) * 2.220446049250313e-16)


@triton.jit
def run(noise, mass):
    """When each arrives; infinity if it has no mass."""
    return tl.where(mass > 0, noise / tl.where(mass > 0, mass, 1.0).to(tl.float64), float("inf"))
