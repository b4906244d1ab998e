"""The oracle: transformers' processors in transformers' order, in float64 and with a sort; and difficult logits."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reference:
    """Which tokens of each row are to be kept, and their probabilities; all (rows, vocab).

    Attributes:
        kept: bool, the tokens that are kept.
        either: bool, tokens whose float64 mass or probability is so near the limit that they may be kept or not.
        probabilities: float64, zeros in a dead row.
    """

    kept: Tensor
    either: Tensor
    probabilities: Tensor


class Ranked:
    """Logits with their order. No parameter changes the order, so they are sorted once and cut many times."""

    def __init__(self, logits: Tensor) -> None:
        self.values = logits.double().nan_to_num(nan=-math.inf, posinf=1e300, neginf=-math.inf)
        self.sorted, self.order = self.values.sort(dim=-1, descending=True, stable=True)
        self.top = self.sorted[:, :1].clamp(min=-1e300)

    def cut(self, temperature: Any = 1.0, top_k: Any = None, top_p: Any = 1.0, min_p: Any = 0.0) -> Reference:
        """Apply the cuts; each parameter is a number, or a list with one for each row."""
        rows, vocab = self.values.shape
        heat, share, floor = (
            torch.tensor(value, dtype=torch.float64).view(-1, 1) for value in (temperature, top_p, min_p)
        )
        ranks = torch.tensor(vocab if top_k is None else top_k).view(-1, 1).clamp(max=vocab).expand(rows, 1)
        kept = (self.sorted >= self.sorted.gather(-1, ranks - 1)) & self.sorted.isfinite()
        mass = ((self.sorted - self.top) / heat).exp() * kept
        mass /= mass.sum(-1, keepdim=True).clamp(min=1e-300)
        before = mass.cumsum(-1) - mass
        kept &= (before < share) | (share >= 1)
        either = (before - share).abs() < 1e-5
        likelihood = ((self.sorted - self.top) / heat).exp()
        kept &= likelihood >= floor
        either |= (likelihood - floor).abs() < 1e-5 * floor
        mass = likelihood * kept
        mass /= mass.sum(-1, keepdim=True).clamp(min=1e-300)
        back = [torch.empty_like(part).scatter_(-1, self.order, part) for part in (kept, either, mass)]
        return Reference(*back)


def hard_logits(vocab: int, dtype: torch.dtype) -> Tensor:
    """Rows (14, vocab) of the kinds that break samplers."""
    generator = torch.Generator().manual_seed(vocab)
    normal = torch.randn(14, vocab, generator=generator)
    ranks = torch.rand(vocab, generator=generator).argsort() + 1
    rows = 3 * normal
    rows[1] = 12 - 1.5 * ranks.float().log() + 0.1 * normal[1]  # Zipf, as language has it
    rows[2] = normal[2]  # many likely tokens
    rows[3] = (2 * normal[3]).round()  # ties everywhere
    rows[4] = 0.25  # flat
    rows[5] = -100
    rows[5, vocab // 2] = 100  # one-hot
    rows[6] = rows[6].masked_fill(torch.rand(vocab, generator=generator) < 0.9, -math.inf)
    rows[7] = -math.inf
    rows[7, vocab - 1] = -3  # one token allowed, the last
    rows[8] = rows[8].masked_fill(torch.rand(vocab, generator=generator) < 0.3, math.nan)
    rows[9, :: max(1, vocab // 3)] = math.inf
    rows[10] = -math.inf  # dead
    rows[11] = math.nan  # dead too
    rows[12] = 1e4 * normal[12]
    rows[13] = 1e-8 * normal[13]  # almost equal: only the order differs
    return rows.to(dtype)


def extreme_logits(vocab: int, dtype: torch.dtype) -> Tensor:
    """Rows with finite logits up to the dtype's limits, with one live token, with equal logits; and dead rows."""
    largest = min(torch.finfo(dtype).max, 1e299)  # the reference can tell this from infinity
    generator = torch.Generator().manual_seed(vocab)
    normal = torch.randn(12, vocab, generator=generator, dtype=torch.float64)
    rows = normal.sign() * largest  # 0: both ends
    rows[1] = largest
    rows[2] = -largest
    rows[3] = normal[3].clamp(-1, 1) * largest
    rows[4] = normal[4] - largest
    rows[4, vocab // 2] = 0  # as transformers masks
    rows[5] = -math.inf
    rows[6] = 7.5
    rows[7] = torch.finfo(dtype).smallest_normal
    rows[8] = -math.inf
    rows[8, -1] = -largest  # one live token, the last
    rows[9] = math.nan
    rows[10, :] = -math.inf
    rows[10, vocab // 2 :] = largest
    rows[11] = normal[11] * math.sqrt(largest)
    return rows.to(dtype)
