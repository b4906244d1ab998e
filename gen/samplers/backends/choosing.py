"""Chooses the backend that samples from a tensor; for equal logits, all backends give the same result.

On CUDA devices Triton's kernels sample, if they are in use; all other tensors use the torch backend. On a CPU it may
read values, and it and Triton's kernels are registered as torch operations: a recording or a graph capture of a step
sees one call. Elsewhere it has no host syncs and is seen as many calls.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gen.devices import runs_triton
from gen.samplers.backends import torch_backend
from gen.samplers.logits import check_logits
from gen.samplers.parameters import Table

_OPERATIONS = {
    "most_likely": "(Tensor logits) -> (Tensor, Tensor)",
    "likeliest": "(Tensor logits, int n) -> (Tensor, Tensor)",
    "highest": "(Tensor values, int n) -> (Tensor, Tensor)",
    "draw": "(Tensor logits, Tensor keys, Tensor scale, Tensor? cold, Tensor? top_k, Tensor? top_p, Tensor? min_p,"
    " Tensor? wanted=None) -> (Tensor, Tensor)",
}
_NAMES = torch.ops.gen
for _name, _schema in _OPERATIONS.items():
    if not hasattr(_NAMES, _name):  # torch keeps the operation if gen is imported again
        torch.library.define(f"gen::{_name}", _schema)
        torch.library.impl(f"gen::{_name}", "CPU", partial(getattr(torch_backend, _name), reads=True))


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
    """A module with `most_likely`, `likeliest`, `highest` and `draw`, or torch's operations of these names."""
    check_logits(logits)
    if logits.shape[0] == 0:
        return torch_backend  # it works without rows too, because it never looks at values
    if logits.is_cpu:
        return _NAMES
    if runs_triton(logits):
        from gen.samplers.backends import triton_backend  # needs triton

        return triton_backend.operations()
    return torch_backend
