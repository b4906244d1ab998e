"""Random numbers that depend on a key and a counter, and on nothing else, computed with torch's integers.

So a draw is the same for any batch size, row order and device. All numbers come from SplitMix64, a generator that
starts at a key and whose outputs can be computed in any order. A row's seed is the key of a generator whose outputs are
the row's keys, one for each number of new tokens; each of these is the key of a generator for the noise of one step.
Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators". The tests use its published vectors.

Example: for seed 7, the key of the first new token is output 2**32 of the generator that starts at 7, which is
-5447111994751043391. Outputs 0 to 3 of the generator that starts at this key give the uniform numbers 0.608, 0.925,
0.333 and 0.365, whose logarithms are -0.498, -0.078, -1.100 and -1.009: if four tokens of a block are equally likely,
token 1 arrives first. To find the noise of token 2, only output 2 is computed.
"""

import secrets

import torch
from torch import Tensor

from gen.arguments import read_whole

_GAMMA, _MIX_1, _MIX_2 = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
# The counters under a seed, far apart so that no two uses meet; the noise counts from 0 under the rows' keys.
_ROW_KEY, _SAMPLE_SEED = 2**32, 2**33
# A CPU tensor without dimensions works with tensors on any device. With int64 this one gives float64, where a Python
# number would give float32.
_HALF = torch.tensor(0.5 + 2.0**-53, dtype=torch.float64, device="cpu")


def row_keys(seeds: Tensor, steps: int, first: int = 0) -> Tensor:
    """The keys of steps of a generation: one for each row and each number of new tokens.

    Args:
        seeds: (rows,), int64, any device.
        steps, first: how many steps, and how many new tokens there are before the first of them.
    Returns:
        (steps, rows), int64, on the same device. Host sync: none.
    """
    counter = torch.arange(_ROW_KEY + first, _ROW_KEY + first + steps, device=seeds.device)
    return splitmix64(seeds, counter.unsqueeze(1))


def splitmix64(key: Tensor, counter: Tensor) -> Tensor:
    """64 random bits for each key and counter: output number `counter` of the generator that starts at the key.

    Args:
        key, counter: int64, of shapes that broadcast; all 64 bits used.
    Returns:
        int64, all 64 bits used, of the broadcast shape. Host sync: none.
    """
    bits = _mixed(key, weyl(counter))
    return (bits >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(bits)


def weyl(counter: Tensor) -> Tensor:
    """The distance of each counter (int64) from the key, for `log_uniform`."""
    return counter * _GAMMA  # wraps around at 64 bits


def log_uniform(key: Tensor, distance: Tensor) -> Tensor:
    """The logarithm of a uniform number of 52 bits for each key and counter: minus standard exponential noise.

    This is SplitMix64 without its last step, which would not change the upper 31 bits.

    Args:
        key: int64.
        distance: int64, on the key's device, of a shape that broadcasts with the key's: from `weyl`.
    Returns:
        float64, of the broadcast shape, from -36.8 to -1.1e-16. Host sync: none.
    """
    return torch.add(_HALF, _mixed(key, distance) >> 12, alpha=2.0**-52).log_()


def _mixed(key: Tensor, distance: Tensor) -> Tensor:
    bits = distance + key
    for shift, multiplier in ((30, _MIX_1), (27, _MIX_2)):
        bits = (bits >> shift).bitwise_and_((1 << 64 - shift) - 1).bitwise_xor_(bits).mul_(multiplier)
    return bits


def draw_seed() -> int:
    """A fresh seed from the operating system; 53 bits, so that it survives JSON."""
    return secrets.randbits(53)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of the samples that `multinomial(samples=n)` draws: with this seed, a call draws it alone.

    Args:
        seed: the prompt's seed, at least 0 and below 2**63.
        sample: the number of the sample, from 0.
    Returns:
        The prompt's own seed for sample 0; for other samples a seed derived from it, of 53 bits.
    Raises:
        ArgumentError: `seed` or `sample` is no whole number in its range.
    """
    if read_whole("sample", sample) == 0:
        return read_whole("seed", seed)
    words = torch.tensor([read_whole("seed", seed), _SAMPLE_SEED + sample], dtype=torch.int64, device="cpu")
    return (int(splitmix64(words[0], words[1])) >> 11) % 2**53
