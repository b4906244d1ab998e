"""Sampling with Triton kernels on a CUDA device: the logits are read once, and again only for cuts."""

import torch
import triton
from torch import Tensor

from gen.runtime.one_call import one_call
from gen.samplers.backends import torch_backend, triton_cuts, triton_kernels
from gen.samplers.backends.blocks import count_blocks
from gen.samplers.backends.cuts import Column
from gen.samplers.backends.race import LOG2_E
from gen.samplers.logits import native

likeliest = torch_backend.likeliest  # no kernel, so nothing is compiled when top_logprobs or beams first need it
highest = torch_backend.highest

_SURVEYED, _SEARCHED = 8, 32  # blocks that a program processes at a time
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}  # multiplication and addition are not fused, as in torch


@one_call
def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `torch_backend.most_likely`. Two kernels; host sync: none."""
    logits = _rows(logits)
    rows, vocab = logits.shape
    with _on(logits):
        maxima, masses = _survey(logits, torch.full((rows,), float(LOG2_E), dtype=torch.float32, device=logits.device))
        token_ids, logprobs = _results(logits)
        triton_kernels.most_likely[(rows,)](
            logits,
            logits.stride(0),
            maxima,
            masses,
            token_ids,
            logprobs,
            vocab,
            maxima.shape[1],
            WIDTH=_width(maxima),
            **_OPTIONS,
        )
    return token_ids, logprobs


@one_call
def draw(
    logits: Tensor,
    keys: Tensor,
    scale: Tensor,
    cold: Column,
    top_k: Column,
    top_p: Column,
    min_p: Column,
    wanted: Column = None,
) -> tuple[Tensor, Tensor]:
    """See `torch_backend.draw`. Two kernels, four with top-k, top-p or min-p; host sync: none."""
    logits, keys = _rows(logits), keys.contiguous()
    rows, vocab = logits.shape
    has = {"HAS_TOP_K": top_k is not None, "HAS_TOP_P": top_p is not None, "HAS_MIN_P": min_p is not None}
    # a kernel never looks at a column that is not given
    columns = [(scale if column is None else column).contiguous() for column in (scale, top_k, top_p, min_p)]
    with _on(logits):
        maxima, masses = _survey(logits, columns[0])
        blocks = maxima.shape[1]
        token_ids, logprobs = _results(logits)
        floors, thresholds = torch.empty((2, rows), dtype=torch.float32, device=logits.device)
        quotas = torch.empty(rows, dtype=torch.int64, device=logits.device)
        listed = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
        counts = torch.empty(rows, dtype=torch.int32, device=logits.device)
        if any(has.values()):
            triton_cuts.list_blocks[(rows,)](
                maxima,
                masses,
                *columns,
                listed,
                counts,
                floors,
                blocks,
                HAS_TOP_K=has["HAS_TOP_K"],
                HAS_TOP_P=has["HAS_TOP_P"],
                WIDTH=_width(maxima),
                **_OPTIONS,
            )
            triton_cuts.find_cut[(rows,)](
                logits,
                logits.stride(0),
                maxima,
                masses,
                *columns,
                listed,
                counts,
                floors,
                thresholds,
                quotas,
                vocab,
                blocks,
                **has,
                WIDTH=_width(maxima),
                GROUP=_SEARCHED,
                **_OPTIONS,
            )
        triton_kernels.draw[(rows,)](
            logits,
            logits.stride(0),
            keys,
            maxima,
            masses,
            columns[0],
            listed,
            counts,
            thresholds,
            quotas,
            token_ids,
            logprobs,
            vocab,
            blocks,
            HAS_CUT=any(has.values()),
            WIDTH=_width(maxima),
            GROUP=_SEARCHED,
            **_OPTIONS,
        )
    if cold is not None:
        best, best_logprobs = most_likely(logits)
        token_ids = torch.where(cold, best, token_ids)
        logprobs = torch.where(cold.squeeze(1), best_logprobs, logprobs)
    return token_ids, logprobs


def _rows(logits: Tensor) -> Tensor:
    """Logits whose rows are contiguous, as the kernels require."""
    logits = native(logits)
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _on(logits: Tensor) -> torch.cuda.device:
    """Make the tensor's device the current one, on which Triton launches; for a CPU tensor, -1 changes nothing."""
    return torch.cuda.device(logits.device.index if logits.is_cuda else -1)


def _survey(logits: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    rows, vocab = logits.shape
    blocks = count_blocks(vocab)
    maxima, masses = torch.empty((2, rows, blocks), dtype=torch.float32, device=logits.device)
    triton_kernels.survey[(rows, triton.cdiv(blocks, _SURVEYED))](
        logits, logits.stride(0), scale, maxima, masses, vocab, blocks, GROUP=_SURVEYED, enable_fp_fusion=False
    )
    return maxima, masses


def _results(logits: Tensor) -> tuple[Tensor, Tensor]:
    token_ids = torch.empty((len(logits), 1), dtype=torch.int64, device=logits.device)
    return token_ids, torch.empty(len(logits), dtype=torch.float32, device=logits.device)


def _width(maxima: Tensor) -> int:
    return int(triton.next_power_of_2(maxima.shape[1]))
