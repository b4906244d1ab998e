"""The draw: an exponential race, in two levels, keyed on (key, block) and (key, place in a block) alone.

Whoever has the smallest exponential noise divided by its mass wins with a probability proportional to the mass; the
logarithm of it is Gumbel-max. First a block of 128 token ids runs by its mass, then a token inside it. The noise inside
is the same for every block, which is exact: the block has been drawn without it. Sources: Gumbel 1954; Maddison, Tarlow
& Minka 2014, arXiv:1411.0030.

Example, with blocks of 2: tokens a, b, c, d have the masses 1, 1/2, 1/4, 1/4, their blocks 3/2 and 1/2. The key gives
the blocks the noise 0.9 and 0.6: they arrive at 0.9 / (3/2) = 0.6 and 0.6 / (1/2) = 1.2, and the first one wins. It
gives the places in a block the noise 0.5 and 0.2: a arrives at 0.5 / 1 = 0.5, b at 0.2 / (1/2) = 0.4. So b is drawn,
which happens to 3/4 x 1/3 = 1/4 of the keys.
"""

from functools import lru_cache

import torch
from torch import Tensor

from gen.samplers.backends.blocks import BLOCK
from gen.samplers.backends.random import weyl

LOG2_E = torch.tensor(1.4426950408889634, dtype=torch.float32, device="cpu")


def counters(blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the noise is read: the places in a block (128,), and how far from the key these are, then the blocks.

    They are made once for each stream: what another stream makes may not be ready yet.

    Returns:
        (128,) and (128 + blocks,), int64. Host sync: none.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    return _counters(blocks, device, stream)


@lru_cache(maxsize=256)
def _counters(blocks: int, device: torch.device, stream: int | None) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        counter = torch.arange(BLOCK + blocks, device=device)
        return counter[:BLOCK], weyl(counter)


def mass_of(values: Tensor, top: Tensor, scale: float | Tensor, out: Tensor | None = None) -> Tensor:
    """exp((values - top) / temperature), float32; written to `out`, which may be the values.

    As a power of two: on some CPUs torch's exp2 takes a third of the time of its exp.

    Args:
        scale: LOG2_E / temperature, float32.
    """
    return torch.sub(values, top, out=out).mul_(scale).exp2_()


def winner(noise: Tensor, mass: Tensor, *, keepdim: bool = True) -> Tensor:
    """Whoever arrives first in each row, (rows, 1), or (rows,) without `keepdim`; the first if all have no mass.

    Args:
        noise: (rows, n), float64: minus exponential noise.
        mass: (rows, n), float32.
    """
    return (noise / mass).argmax(-1, keepdim=keepdim)


def log_probability(mass: Tensor | float, total: Tensor) -> Tensor:
    """The log-probabilities (rows,), float32, of masses (rows, 1); -inf where the total is 0, or NaN."""
    share = mass / total  # float64
    return none_of_dead_(torch.log(share, out=torch.empty_like(share, dtype=torch.float32)).squeeze(1))


def none_of_dead_(logprobs: Tensor) -> Tensor:
    """-inf where a row had no mass."""
    return logprobs.nan_to_num_(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)


def running_sum(mass: Tensor) -> Tensor:
    """The cumulative sum of each row (rows, n), float64.

    In torch's deterministic mode by doubling: on CUDA there is no cumsum of floating numbers then.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return mass.cumsum(-1, dtype=torch.float64)
    mass, step = mass.double(), 1
    while step < mass.shape[1]:
        mass = mass + torch.nn.functional.pad(mass[:, :-step], (step, 0))
        step *= 2
    return mass
