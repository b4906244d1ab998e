"""Warpers: each takes log-weights and returns them with less likely tokens at -inf, or flatter.

Log-weights are logits less their row's maximum: float32, at most 0. All functions leave their arguments alone, work on
the device they find and have no host sync.
"""

import math

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


def log_weights(logits: Tensor) -> Tensor:
    """Logits less their row's maximum, in float32, with NaN as -inf and +inf above every number.

    Args:
        logits: (rows, vocab), floating, any device.
    Returns:
        (rows, vocab), float32: 0 at each row's maximum; all -inf in a row with nothing but -inf and NaN.
    """
    finite = logits.float().nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)
    return finite - finite.amax(-1, keepdim=True).clamp(min=-_LARGEST)


def temper(weights: Tensor, temperature: float) -> Tensor:
    """Divide by a temperature > 0. Source: Ackley, Hinton & Sejnowski 1985."""
    return weights / temperature


def keep_top_k(weights: Tensor, k: int) -> Tensor:
    """Keep each row's k largest, ties at the k-th included. Source: Fan et al. 2018, arXiv:1805.04833.

    Args:
        weights: (rows, vocab), floating.
        k: at least 1; more than vocab keeps everything.
    """
    kth = weights.topk(min(k, weights.shape[-1])).values[:, -1:]
    return weights.masked_fill(weights < kth, -math.inf)


def keep_top_p(weights: Tensor, p: float) -> Tensor:
    """Keep each row's most likely tokens until their mass reaches p. Source: Holtzman et al. 2019, arXiv:1904.09751.

    A token stays if the mass of those before it is below p, so that at least one does. Among equals the lower index
    comes first.

    Args:
        weights: (rows, vocab), floating.
        p: above 0; 1 keeps everything.
    """
    if p >= 1:
        return weights
    ranked, order = weights.sort(dim=-1, descending=True, stable=True)
    mass = ranked.double().softmax(-1)
    dropped = mass.cumsum(-1) - mass >= p
    return weights.masked_fill(dropped.scatter(-1, order, dropped), -math.inf)


def keep_min_p(weights: Tensor, p: float) -> Tensor:
    """Keep the tokens at least p times as likely as the row's best. Source: Nguyen et al. 2024, arXiv:2407.01082.

    Args:
        weights: (rows, vocab), float32, with 0 at each row's maximum.
        p: from 0, which keeps everything, to 1.
    """
    return weights if p == 0 else weights.masked_fill(weights < math.log(p), -math.inf)
