"""Random numbers that depend on a key and a counter, and on nothing else, in torch integers.

A draw keyed so is the same for any batch size, row order and device. Philox-4x32-10 makes a key for each row and step
from the seed; SplitMix64, started at that key and read at any place, makes the noise of the step: in 13 operations,
where Philox takes 70. Sources: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Random123); Steele,
Lea & Flood 2014, "Fast splittable pseudorandom number generators". The tests use the published vectors of both.
"""

import secrets

import torch
from torch import Tensor

Word = Tensor | int

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_GAMMA, _MIX_1, _MIX_2 = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

# What a number is for, so that no two uses of one key meet: the last word of Philox's counter, and SplitMix64's first.
_ROW_KEY, _SAMPLE_SEED = 0, 1
BLOCK_NOISE, TOKEN_NOISE = 1, 2**32


def philox(counter: tuple[Word, Word, Word, Word], key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 random bits for each counter and key.

    Args:
        counter: four words, integers or int64 tensors below 2**32 that broadcast with `key`.
        key: int64, all 64 bits used.
    Returns:
        Four int64 tensors of values below 2**32, of the broadcast shape, on the key's device. Host sync: none.
    """
    zero = key & 0
    for word in counter:
        zero = zero + (word & 0) if isinstance(word, Tensor) else zero
    shape = zero.shape
    a, b, c, d = (zero + word for word in counter)
    # Both halves of a round in one operation: small tensors cost by the operation, not by the number.
    outer, inner = torch.stack((a, c)), torch.stack((b, d))
    lane = torch.arange(2, device=key.device).view(2, *[1] * len(shape))
    multiplier = torch.where(lane == 0, _MULTIPLIERS[1], _MULTIPLIERS[0])
    weyl = torch.where(lane == 0, _WEYL[0], _WEYL[1])
    rounds = torch.arange(_ROUNDS, device=key.device).view(_ROUNDS, 1, *[1] * len(shape))
    mask, half = (torch.full((), number, dtype=torch.int64, device=key.device) for number in (_MASK, 32))
    key = key[(None,) * (len(shape) - key.dim())]
    for round_key in (torch.stack((key, key >> 32)) + rounds * weyl).unbind():
        # Only the low 32 bits count and are cut out before they are multiplied; products wrap, which leaves their 64
        # bits right.
        product = outer.flip(0).bitwise_and_(mask).mul_(multiplier)
        outer = (product >> half).bitwise_xor_(inner).bitwise_xor_(round_key)
        inner = product
    outer, inner = outer.bitwise_and_(mask), inner.bitwise_and_(mask)
    return outer[0], inner[0], outer[1], inner[1]


def row_keys(seeds: Tensor, steps: int) -> Tensor:
    """The keys of every step of a generation: one for each row and number of tokens generated.

    Args:
        seeds: (rows,), int64, any device.
        steps: how many steps.
    Returns:
        (steps, rows), int64, on the same device. Host sync: none.
    """
    step = torch.arange(steps, device=seeds.device).unsqueeze(1)
    high, low, *_ = philox((step, 0, 0, _ROW_KEY), seeds)
    return (high << 32) | low


def splitmix64(key: Tensor, counter: Tensor) -> Tensor:
    """64 random bits for each key and counter: the output number `counter` of the generator that starts from the key.

    Args:
        key, counter: int64, of shapes that broadcast; all 64 bits used.
    Returns:
        int64, all 64 bits used, of the broadcast shape. Host sync: none.
    """
    bits = (counter * _GAMMA).add(key)  # which wraps
    for shift, multiplier in ((30, _MIX_1), (27, _MIX_2)):
        bits = (bits >> shift).bitwise_and_((1 << 64 - shift) - 1).bitwise_xor_(bits).mul_(multiplier)
    return (bits >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(bits)


def exponential(key: Tensor, counter: Tensor) -> Tensor:
    """Standard exponential noise for each key and counter: -log of a uniform number of 52 bits.

    Args:
        key: int64.
        counter: int64, on the key's device, of a shape that broadcasts with it: an index below 2**31, plus BLOCK_NOISE
            or TOKEN_NOISE.
    Returns:
        float32, of the broadcast shape, between 1.1e-16 and 36.8. Host sync: none.
    """
    uniform = (splitmix64(key, counter) >> 12).double().add_(2.0**51 + 0.5).mul_(2.0**-52)
    return uniform.log_().neg_().float()


def draw_seed() -> int:
    """A fresh seed from the operating system; 53 bits, so that it survives JSON."""
    return secrets.randbits(53)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a prompt's n-th sample: its own seed for sample 0, others derived from it (53 bits)."""
    if sample == 0:
        return seed
    high, low, *_ = philox((sample, 0, 0, _SAMPLE_SEED), torch.tensor(seed, dtype=torch.int64, device="cpu"))
    return ((int(high) << 32) | int(low)) >> 11
