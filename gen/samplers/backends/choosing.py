"""Chooses the backend that samples from a tensor; for equal logits, all backends give the same result.

On CUDA devices Triton's kernels sample, if they are in use; all other tensors use the torch backend, which may read
values on a CPU, where a recording of a step sees one call. Elsewhere it has no host syncs, and is seen as many calls.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from gen.devices import runs_triton
from gen.runtime.one_call import one_call
from gen.samplers.backends import torch_backend
from gen.samplers.logits import check_logits
from gen.samplers.parameters import Table

ON_CPU = SimpleNamespace(
    **{
        name: one_call(partial(getattr(torch_backend, name), reads=True))
        for name in ("most_likely", "likeliest", "highest", "draw")
    }
)


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's most likely token, the lowest index among equals, and its log-probability.

    Args:
        logits: (rows, vocab), floating, any device.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row, in which no token can be chosen.
        Host sync: none on CUDA.
    Raises:
        ArgumentError: these are no logits (rows, vocab).
    """
    token_ids, logprobs = _backend(logits).most_likely(logits)
    return token_ids, logprobs


def likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each row's n most likely tokens, best first; any of those that are equally likely.

    Args:
        logits: (rows, vocab), floating, any device.
        n: at most vocab.
    Returns:
        (rows, n) float32: log-probabilities, -inf for tokens that cannot be chosen; (rows, n) int64: the tokens, or
        any tokens where the log-probability is -inf. Host sync: none on CUDA.
    Raises:
        ArgumentError: as for `most_likely`.
    """
    logprobs, token_ids = _backend(logits).likeliest(logits, n)
    return logprobs, token_ids


def highest(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """As `likeliest`, for log-probabilities or other numbers (rows, vocab), which are given back as they are."""
    best, token_ids = _backend(values).highest(values, n)
    return best, token_ids


def draw(logits: Tensor, keys: Tensor, table: Table, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draw each row's token; returns it and its log-probability under the distribution that was drawn from.

    Args:
        logits: (rows, vocab), floating, any device.
        keys: (rows,), int64, on the same device.
        table: the rows' parameters, on the same device.
        wanted: (rows,) bool; the other rows may get any result. On a CPU only the wanted rows are drawn.
    Returns:
        (rows, 1) int64 and (rows,) float32; token 0 and -inf for a dead row. Host sync: none on CUDA.
    Raises:
        ArgumentError: these are no logits (rows, vocab).
    """
    token_ids, logprobs = _backend(logits).draw(logits, keys, *table, wanted)
    return token_ids, logprobs


def _backend(logits: Tensor) -> Any:
    """What has `most_likely`, `likeliest`, `highest` and `draw` for these logits."""
    check_logits(logits)
    if logits.shape[0] == 0:
        return torch_backend  # it works without rows too, because it never looks at values
    if logits.is_cpu:
        return ON_CPU
    if runs_triton(logits):
        from gen.samplers.backends import triton_backend  # needs triton

        return triton_backend
    return torch_backend
