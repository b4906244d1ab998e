"""Functions that mask or rescale logits, with the names and errors of Outlines, which calls them logits processors."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gen.errors import ArgumentError, show
from gen.samplers.backends import torch_backend
from gen.samplers.logits import check_logits, native
from gen.samplers.parameters import LARGEST, SMALLEST, Parameters

LogitsProcessor = Callable[[Tensor], Tensor]


def keep_top_k_logits(k: int) -> LogitsProcessor:
    """Build a function that masks all logits but each row's k largest, ties at the k-th included.

    Args:
        k: at least 1; a k above the number of logits keeps everything.
    Returns:
        A function of logits (rows, vocab) that returns new logits, of the same type and device, with -inf for masked
        ones. NaN is masked too. Host sync: none on CUDA.
    Raises:
        ArgumentError: k is not a whole number above 0.
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ArgumentError(f"`k` must be a strictly positive integer, got {show(k)}")
    return partial(_process, Parameters(top_k=k))


def keep_top_p_logits(p: float) -> LogitsProcessor:
    """Build a function that masks all logits but each row's largest until their probabilities add up to p.

    Args:
        p: above 0; 1 keeps everything. Among equals, the lower index is kept first.
    Returns, Raises: as for `keep_top_k_logits`.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1:
        raise ArgumentError(f"`p` must be a floating point number between 0 (excluded) and 1 (included), got {show(p)}")
    return partial(_process, Parameters(top_p=p))


def rescale_logits(temperature: float) -> LogitsProcessor:
    """Build a function that divides logits by a temperature.

    Args:
        temperature: a float above 0; samplers take integers and 0 too.
    Returns:
        A function of logits that returns new logits, of the same type and device; a quotient beyond the type's range
        is infinite.
    Raises:
        ArgumentError: it is not a float, or not above 0.
    """
    if not isinstance(temperature, float) or not 0 <= temperature < math.inf:
        raise ArgumentError(f"`temperature` must be a strictly positive floating point number, got {show(temperature)}")
    if temperature == 0:
        raise ArgumentError("Please use the greedy sampler instead of setting the temperature to 0.")
    return partial(_divide, temperature)


def processors_of(parameters: Parameters) -> list[LogitsProcessor]:
    """Processors that, applied one after the other, give the logits that a sampler draws from; none for temperature 0.

    The first divides by the temperature, if there is one; another masks, if there is a cut. They can be pickled.
    """
    if parameters.greedy:
        return []
    tempering = Parameters(temperature=parameters.temperature)
    masking = Parameters(top_k=parameters.top_k, top_p=parameters.top_p, min_p=parameters.min_p)
    return [partial(_process, one) for one in (tempering, masking) if one.given]


def warp(parameters: Parameters, logits: Tensor) -> Tensor:
    """The logits that are drawn from, with -inf for masked ones: (rows, vocab), float32.

    With a temperature, they are relative to the row's best logit, which becomes 0, so that none is beyond float32. Host
    sync: none on CUDA.
    """
    check_logits(logits)
    if parameters.greedy:  # the most likely token stays; as a row's own temperature 0 can be given
        parameters = Parameters(temperature=torch.zeros(len(logits), device=logits.device))
    kept = torch_backend.keeps(logits, *parameters.for_rows(logits))
    values = native(logits).float()
    if (temperature := parameters.temperature) is not None:
        values = values.clamp(max=torch.finfo(torch.float32).max)
        top = values.masked_fill(~kept, -math.inf).amax(-1, keepdim=True)
        divisor = (
            temperature.view(-1, 1) if isinstance(temperature, Tensor) else torch.tensor(temperature, device="cpu")
        )
        values = (values - top) / divisor.clamp(SMALLEST, LARGEST).float()
    return values.masked_fill(~kept, -math.inf)


def _process(parameters: Parameters, logits: Tensor) -> Tensor:
    return warp(parameters, logits).to(logits.dtype)


def _divide(temperature: float, logits: Tensor) -> Tensor:
    divisor = min(max(temperature, SMALLEST), LARGEST)
    return logits.clone() if divisor == 1 else (native(logits).float() / divisor).to(logits.dtype)
