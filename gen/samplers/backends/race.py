"""The draw: an exponential race on two levels, whose noise depends on (key, block) and (key, place in a block) alone.

Each runner gets exponential noise and arrives at noise / mass. The first to arrive is the winner, with a probability
proportional to its mass; taking logarithms gives the Gumbel-max trick. First the blocks of 128 token ids race with
their masses, then the tokens of the block that won. All blocks share the noise inside a block, and the result is still
exact, because that noise has no part in the draw of the block. Sources: Gumbel 1954; Maddison, Tarlow & Minka 2014,
arXiv:1411.0030.

Example, with blocks of 2: tokens a, b, c, d have the masses 1, 1/2, 1/4, 1/4, their blocks 3/2 and 1/2. The key gives
the blocks the noise 0.9 and 0.6: they arrive at 0.9 / (3/2) = 0.6 and 0.6 / (1/2) = 1.2, and the first block wins. The
key gives the places in a block the noise 0.5 and 0.2: a arrives at 0.5 / 1 = 0.5, b at 0.2 / (1/2) = 0.4. So b is
drawn. Of all keys, 3/4 x 1/3 = 1/4 draw b.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK, whole_blocks
from gen.samplers.backends.random import log_uniform, weyl

LOG2_E = torch.tensor(1.4426950408889634, dtype=torch.float32, device="cpu")
PIECE = 2**18  # how many numbers `block_masses` computes at a time


def distances_of(blocks: int, device: torch.device) -> Tensor:
    """The distances from the key, see `random.weyl`, of the places in a block and then of the blocks: (128 + blocks,).

    They are made once for each CUDA stream: those that another stream makes may not be ready yet. Host sync: none.
    """
    return _distances(blocks, device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None)


@lru_cache(maxsize=256)
def _distances(blocks: int, device: torch.device, stream: int | None) -> Tensor:
    with torch.inference_mode(False):
        return weyl(torch.arange(BLOCK + blocks, device=device))


def mass_of(values: Tensor, top: Tensor, scale: Tensor) -> Tensor:
    """exp((values - top) / temperature), float32.

    It is computed as a power of two: on some CPUs torch's exp2 takes a third of the time of its exp.

    Args:
        scale: LOG2_E / temperature, float32.
    """
    return torch.sub(values, top).mul_(scale).exp2_()


def by_block(mass: Tensor) -> Tensor:
    """The mass of each block (rows, blocks), from that of all tokens in whole blocks."""
    return torch.unflatten(mass, 1, (-1, BLOCK)).sum(-1)


def block_masses(values: Tensor, top: Tensor, scale: Tensor) -> Tensor:
    """The mass of each block, (rows, blocks) float32; a few rows at a time, so that they stay in a CPU's cache.

    Args: as for `mass_of`; values (rows, vocab), of any type that `gen.samplers.logits.native` gives.
    """
    vocab = values.shape[1]
    if values.numel() <= PIECE:
        return by_block(mass_of(whole_blocks(values), top, scale))
    if vocab % BLOCK and vocab > BLOCK:  # only the end is padded: a padded copy of all would cost more
        parts = torch.split(values, [vocab // BLOCK * BLOCK, vocab % BLOCK], 1)
        return torch.cat([block_masses(part, top, scale) for part in parts], 1)
    size = max(1, PIECE // vocab)
    rows = (torch.split(one, size) for one in (values, top, scale.expand(len(values), 1)))
    return torch.cat([by_block(mass_of(whole_blocks(one), *rest)) for one, *rest in zip(*rows, strict=True)])


def race(keys: Tensor, blocks: Tensor, inside: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Both races: the token that wins in each row, and its mass, (rows, 1) each.

    Args:
        keys: (rows,), int64.
        blocks: (rows, blocks), float32: the masses of blocks.
        inside: gives the masses (rows, 128) in the blocks (rows, 1) that have won.
    """
    noise = log_uniform(keys.unsqueeze(1), distances_of(blocks.shape[1], blocks.device))
    block = winner(noise[:, BLOCK:], blocks)
    mass = inside(block)
    place = winner(noise[:, :BLOCK], mass)
    return torch.add(place, block, alpha=BLOCK), mass.gather(1, place)


def winner(noise: Tensor, mass: Tensor) -> Tensor:
    """The index of the first to arrive in each row, (rows, 1); 0 if none has mass.

    Args:
        noise: (rows, n), float64: the negative of exponential noise.
        mass: (rows, n), float32.
    """
    return (noise / mass).argmax(-1, keepdim=True)


def log_probability(mass: Tensor, total: Tensor) -> Tensor:
    """The log-probabilities (rows,), float32, of masses (rows, 1); -inf if the total is 0 or NaN."""
    share = mass / total  # float64
    return none_of_dead_(torch.log(share, out=torch.empty_like(share, dtype=torch.float32)).squeeze(1))


def none_of_dead_(logprobs: Tensor) -> Tensor:
    """Put -inf where a row had no mass."""
    return logprobs.nan_to_num_(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)


def running_sum(mass: Tensor) -> Tensor:
    """The cumulative sum of each row (rows, n), float64.

    In torch's deterministic mode it is computed by doubling, because CUDA has no deterministic cumsum of floats.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return mass.cumsum(-1, dtype=torch.float64)
    mass, step = mass.double(), 1
    while step < mass.shape[1]:
        mass = mass + torch.nn.functional.pad(mass[:, :-step], (step, 0))
        step *= 2
    return mass
