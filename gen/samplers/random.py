"""Random numbers that depend on a key and a counter, and on nothing else: Philox-4x32-10 in torch integers.

A draw keyed so is the same for any batch size, row order and device. Source: Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3" (Random123), whose published vectors the tests use.
"""

import secrets

import torch
from torch import Tensor

Word = Tensor | int

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

# The last word of a counter says what the number is for, so that no two uses of one key meet.
_ROW_KEY, _SAMPLE_SEED, BLOCK_NOISE, TOKEN_NOISE = range(4)


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
    key = key[(None,) * (len(shape) - key.dim())]
    for round_key in (torch.stack((key, key >> 32)) + rounds * weyl).unbind():
        # Only the low 32 bits count and are cut out before they are multiplied; products wrap, which leaves their 64
        # bits right.
        product = outer.flip(0).bitwise_and_(_MASK).mul_(multiplier)
        outer = (product >> 32).bitwise_xor_(inner).bitwise_xor_(round_key)
        inner = product
    outer, inner = outer.bitwise_and_(_MASK), inner.bitwise_and_(_MASK)
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


def exponential(keys: Tensor, first: Tensor, use: int) -> Tensor:
    """Standard exponential noise for runs of four consecutive indices: -log of a uniform number of 32 bits.

    Args:
        keys: (rows,), int64.
        first: (rows or 1, n), int64, on the keys' device: a quarter of the first index of each run.
        use: BLOCK_NOISE or TOKEN_NOISE.
    Returns:
        (rows, 4 n), float32, on the keys' device, between 1.1e-10 and 22.9. Host sync: none.
    """
    return _exponential(torch.stack(philox((first, 0, 0, use), keys.unsqueeze(1)), -1).flatten(1))


def exponential_at(keys: Tensor, index: Tensor, use: int | Tensor) -> Tensor:
    """The same noise at any indices.

    Args:
        keys: int64, of a shape that broadcasts with the indices.
        index: int64.
        use: BLOCK_NOISE or TOKEN_NOISE, or a tensor of these that broadcasts with the indices.
    Returns:
        float32, of the indices' shape. Host sync: none.
    """
    words = torch.stack(philox((index >> 2, 0, 0, use), keys), -1)
    return _exponential(words.gather(-1, (index & 3).unsqueeze(-1)).squeeze(-1))


def _exponential(bits: Tensor) -> Tensor:
    return bits.double().add_(0.5).mul_(2.0**-32).log_().neg_().float()


def draw_seed() -> int:
    """A fresh seed from the operating system; 53 bits, so that it survives JSON."""
    return secrets.randbits(53)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a prompt's n-th sample: its own seed for sample 0, others derived from it (53 bits)."""
    if sample == 0:
        return seed
    high, low, *_ = philox((sample, 0, 0, _SAMPLE_SEED), torch.tensor(seed, dtype=torch.int64, device="cpu"))
    return ((int(high) << 32) | int(low)) >> 11
