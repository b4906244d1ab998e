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


def philox(counter: tuple[Word, Word, Word, Word], key: Tensor) -> list[Tensor]:
    """Four words of 32 random bits for each counter and key.

    Args:
        counter: four words, integers or int64 tensors below 2**32 that broadcast with `key`.
        key: int64, all 64 bits used.
    Returns:
        Four int64 tensors of values below 2**32, of the broadcast shape, on the key's device. Host sync: none.
    """
    a, b, c, d = counter
    low, high = key & _MASK, (key >> 32) & _MASK
    for _ in range(_ROUNDS):
        # int64 products wrap, which leaves their 64 bits right; the shift's copies of the sign are masked away
        x, y = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = ((y >> 32) & _MASK) ^ b ^ low, y & _MASK, ((x >> 32) & _MASK) ^ d ^ high, x & _MASK
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return [word for word in (a, b, c, d) if isinstance(word, Tensor)]


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


def gumbel(keys: Tensor, first: Tensor, use: int) -> Tensor:
    """Standard Gumbel noise for runs of four consecutive indices.

    Args:
        keys: (rows,), int64.
        first: (rows or 1, n), int64, on the keys' device: a quarter of the first index of each run.
        use: BLOCK_NOISE or TOKEN_NOISE.
    Returns:
        (rows, 4 n), float32, on the keys' device, between -3.2 and 22.9. Host sync: none.
    """
    bits = torch.stack(philox((first, 0, 0, use), keys.unsqueeze(1)), -1).flatten(1)
    uniform = (bits.double() + 0.5) * 2.0**-32
    return -(-uniform.log()).log().float()


def draw_seed() -> int:
    """A fresh seed from the operating system; 53 bits, so that it survives JSON."""
    return secrets.randbits(53)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a prompt's n-th sample: its own seed for sample 0, others derived from it (53 bits)."""
    if sample == 0:
        return seed
    high, low, *_ = philox((sample, 0, 0, _SAMPLE_SEED), torch.tensor(seed, dtype=torch.int64, device="cpu"))
    return ((int(high) << 32) | int(low)) >> 11
