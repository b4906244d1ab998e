"""Random numbers that depend on a key and a counter, and on nothing else, in torch integers.

A draw keyed so is the same for any batch size, row order and device. All come from SplitMix64, started at a key and
read at any place: a seed is the key of the rows' keys, one for each number of tokens, and a row's key is that of the
noise of one step. Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators". The tests use
its published vectors.

Example: under seed 7 the key of the first new token is output number 2**32 of the generator that starts at 7, which is
-5447111994751043391. Outputs number 0 to 3 of the generator that starts there give the uniform numbers 0.608, 0.925,
0.333 and 0.365, whose logarithms are -0.498, -0.078, -1.100 and -1.009: were four tokens of a block equally likely,
token 1 would arrive first. Whoever asks for token 2 alone reads output number 2 alone.
"""

import secrets

import torch
from torch import Tensor

from gen.arguments import read_whole

_GAMMA, _MIX_1, _MIX_2 = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
# Counters under a seed, so that no two uses meet; the noise counts from 0 under keys of its own.
_ROW_KEY, _SAMPLE_SEED = 2**32, 2**33
# Tensors of no dimension may meet those of any device, and keep an operation from rounding to its other type.
_HALF = torch.tensor(0.5 + 2.0**-53, dtype=torch.float64, device="cpu")


def row_keys(seeds: Tensor, steps: int) -> Tensor:
    """The keys of every step of a generation: one for each row and number of tokens generated.

    Args:
        seeds: (rows,), int64, any device.
        steps: how many steps.
    Returns:
        (steps, rows), int64, on the same device. Host sync: none.
    """
    counter = torch.arange(_ROW_KEY, _ROW_KEY + steps, device=seeds.device)
    return splitmix64(seeds, counter.unsqueeze(1))


def splitmix64(key: Tensor, counter: Tensor) -> Tensor:
    """64 random bits for each key and counter: the output number `counter` of the generator that starts from the key.

    Args:
        key, counter: int64, of shapes that broadcast; all 64 bits used.
    Returns:
        int64, all 64 bits used, of the broadcast shape. Host sync: none.
    """
    bits = _mixed(key, weyl(counter))
    return (bits >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(bits)


def weyl(counter: Tensor) -> Tensor:
    """How far each counter (int64) is from the key: what `log_uniform` is given."""
    return counter * _GAMMA  # which wraps


def log_uniform(key: Tensor, distance: Tensor) -> Tensor:
    """The logarithm of a uniform number of 52 bits for each key and counter: minus standard exponential noise.

    SplitMix64 without its last step, which would not touch the upper 31 bits.

    Args:
        key: int64.
        distance: int64, on the key's device, of a shape that broadcasts with it: what `weyl` gives for counters.
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
    """The seed of a prompt's n-th sample, as `multinomial(samples=n)` draws it: with it the sample comes alone.

    Args:
        seed: the prompt's, at least 0 and below 2**63.
        sample: which of them, from 0.
    Returns:
        The prompt's own seed for sample 0; for others one derived from it, of 53 bits.
    Raises:
        ArgumentError: one of them is no such number.
    """
    if read_whole("sample", sample) == 0:
        return read_whole("seed", seed)
    words = torch.tensor([read_whole("seed", seed), _SAMPLE_SEED + sample], dtype=torch.int64, device="cpu")
    return (int(splitmix64(words[0], words[1])) >> 11) % 2**53
