"""What Outlines calls logits processors: functions of logits that mask or rescale them, with its names and errors."""

import math
from collections.abc import Callable

from torch import Tensor

from gen.errors import ArgumentError, show
from gen.samplers.cuts import is_kept
from gen.samplers.parameters import Parameters
from gen.samplers.paths import path_of

LogitsProcessor = Callable[[Tensor], Tensor]


def keep_top_k_logits(k: int) -> LogitsProcessor:
    """Build a function that masks all logits but each row's k largest, ties at the k-th included.

    Args:
        k: at least 1; more than there are keeps everything.
    Returns:
        A function of logits (rows, vocab) that returns new ones, of the same type and device, with -inf for what is
        dropped. NaN is dropped too. Host sync: none on CUDA.
    Raises:
        ArgumentError: k is not a whole number above 0.
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ArgumentError(f"`k` must be a strictly positive integer, got {show(k)}")
    return keep(Parameters(top_k=k))


def keep_top_p_logits(p: float) -> LogitsProcessor:
    """Build a function that masks all logits but each row's largest until their probabilities add up to p.

    Args:
        p: above 0; 1 keeps everything. Among equals the lower index is kept first.
    Returns, Raises: as `keep_top_k_logits`.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1:
        raise ArgumentError(f"`p` must be a floating point number between 0 (excluded) and 1 (included), got {show(p)}")
    return keep(Parameters(top_p=p))


def rescale_logits(temperature: float) -> LogitsProcessor:
    """Build a function that divides logits by a temperature.

    Args:
        temperature: a float above 0; samplers take integers and 0 too.
    Returns:
        A function of logits that returns new ones, of the same type and device.
    Raises:
        ArgumentError: it is not a float, or not above 0.
    """
    if not isinstance(temperature, float) or not temperature >= 0:
        raise ArgumentError(f"`temperature` must be a strictly positive floating point number, got {show(temperature)}")
    if temperature == 0:
        raise ArgumentError("Please use the greedy sampler instead of setting the temperature to 0.")
    return lambda logits: logits / temperature


def processors_of(parameters: Parameters) -> list[LogitsProcessor]:
    """Processors that, each on what the one before it gave, lead to what a sampler draws from; none for temperature 0.

    The first divides by the temperature, if there is one; one other masks, if there is anything that does.
    """
    temperature = parameters.temperature
    if not isinstance(temperature, Tensor) and temperature == 0:
        return []
    masking = Parameters(top_k=parameters.top_k, top_p=parameters.top_p, min_p=parameters.min_p)
    processors = [] if temperature is None else [temper(temperature)]
    return processors + ([keep(masking)] if any(value is not None for value in vars(masking).values()) else [])


def temper(temperature: float | Tensor) -> LogitsProcessor:
    """Divide by a temperature, which may be a tensor (rows,)."""
    divisor = temperature.unsqueeze(1) if isinstance(temperature, Tensor) else temperature
    return lambda logits: (logits / divisor).to(logits.dtype)


def keep(parameters: Parameters) -> LogitsProcessor:
    """Mask what top-k, top-p and min-p drop."""

    def processor(logits: Tensor) -> Tensor:
        cut = path_of(logits).find_cut(logits, parameters.for_rows(logits))
        return logits.masked_fill(~is_kept(logits, cut), -math.inf)

    return processor
