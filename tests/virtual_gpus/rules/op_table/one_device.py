"""Operators whose tensors must all be on one device.

Source: native_functions.yaml has no `device_check: NoCheck` for them, so torchgen writes a check of all tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.virtual_gpus.rules.op_table.cases import (
    GPU0,
    GPU1,
    HOST,
    REFUSED,
    Case,
    Operand,
    counts,
    floats,
    index,
    mask,
)

_RULE = "native_functions.yaml: no NoCheck"
_square = floats(GPU0, 2, 2)

# Name: the operation and its tensors, all on GPU 0.
_OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Operand, ...]]] = {
    "mm": (torch.mm, (_square, _square)),
    "matmul": (torch.matmul, (_square, _square)),
    "bmm": (torch.bmm, (floats(GPU0, 1, 2, 2), floats(GPU0, 1, 2, 2))),
    "mv": (torch.mv, (_square, floats(GPU0, 2))),
    "dot": (torch.dot, (floats(GPU0, 2), floats(GPU0, 2))),
    "addmm": (torch.addmm, (floats(GPU0, 2), _square, _square)),
    "baddbmm": (torch.baddbmm, (floats(GPU0, 1, 2, 2), floats(GPU0, 1, 2, 2), floats(GPU0, 1, 2, 2))),
    "linear": (functional.linear, (_square, _square, floats(GPU0, 2))),
    "bilinear": (functional.bilinear, (_square, _square, floats(GPU0, 3, 2, 2))),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (_square, _square)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), (_square, _square)),
    "hfft": (lambda a, b: torch.fft.hfft(torch.complex(a, b)), (floats(GPU0, 5), floats(GPU0, 5))),
    "outer": (torch.outer, (floats(GPU0, 2), floats(GPU0, 2))),
    "kron": (torch.kron, (_square, _square)),
    "cat": (lambda a, b: torch.cat([a, b]), (_square, _square)),
    "stack": (lambda a, b: torch.stack([a, b]), (_square, _square)),
    "hstack": (lambda a, b: torch.hstack([a, b]), (_square, _square)),
    "cdist": (torch.cdist, (_square, _square)),
    "cross": (lambda a, b: torch.linalg.cross(a, b), (floats(GPU0, 3), floats(GPU0, 3))),
    "cosine_similarity": (functional.cosine_similarity, (_square, _square)),
    "conv1d": (functional.conv1d, (floats(GPU0, 1, 1, 4), floats(GPU0, 1, 1, 2))),
    "conv2d": (functional.conv2d, (floats(GPU0, 1, 1, 4, 4), floats(GPU0, 1, 1, 2, 2), floats(GPU0, 1))),
    "conv_transpose1d": (functional.conv_transpose1d, (floats(GPU0, 1, 1, 4), floats(GPU0, 1, 1, 2))),
    "embedding": (functional.embedding, (index(GPU0, 3), _square)),
    "embedding_bag": (functional.embedding_bag, (index(GPU0, 1, 2), _square)),
    "gather": (lambda a, i: a.gather(0, i), (floats(GPU0, 2), index(GPU0, 2))),
    "take": (torch.take, (floats(GPU0, 2), index(GPU0, 2))),
    "take_along_dim": (lambda a, i: torch.take_along_dim(a, i, 0), (floats(GPU0, 2), index(GPU0, 2))),
    "index_select": (lambda a, i: a.index_select(0, i), (floats(GPU0, 2), index(GPU0, 2))),
    "index_add": (lambda a, i, s: a.index_add(0, i, s), (floats(GPU0, 2), index(GPU0, 2), floats(GPU0, 2))),
    "index_copy": (lambda a, i, s: a.index_copy(0, i, s), (floats(GPU0, 2), index(GPU0, 2), floats(GPU0, 2))),
    "scatter": (lambda a, i, s: a.scatter(0, i, s), (floats(GPU0, 2), index(GPU0, 2), floats(GPU0, 2))),
    "scatter_add": (lambda a, i, s: a.scatter_add(0, i, s), (floats(GPU0, 2), index(GPU0, 2), floats(GPU0, 2))),
    "scatter_reduce": (
        lambda a, i, s: a.scatter_reduce(0, i, s, "sum"),
        (floats(GPU0, 2), index(GPU0, 2), floats(GPU0, 2)),
    ),
    "masked_scatter": (torch.masked_scatter, (floats(GPU0, 2), mask(GPU0, 2), floats(GPU0, 2))),
    "searchsorted": (torch.searchsorted, (floats(GPU0, 4), floats(GPU0, 2))),
    "bucketize": (torch.bucketize, (floats(GPU0, 2), floats(GPU0, 4))),
    "isin": (torch.isin, (index(GPU0, 4), index(GPU0, 2))),
    "layer_norm": (lambda a, w, b: functional.layer_norm(a, (2,), w, b), (_square, floats(GPU0, 2), floats(GPU0, 2))),
    "group_norm": (lambda a, w: functional.group_norm(a, 1, w), (floats(GPU0, 1, 2, 2), floats(GPU0, 2))),
    "batch_norm": (lambda a, m, v: functional.batch_norm(a, m, v), (_square, floats(GPU0, 2), floats(GPU0, 2))),
    "prelu": (functional.prelu, (_square, floats(GPU0, 1))),
    "nll_loss": (functional.nll_loss, (_square, index(GPU0, 2))),
    "cross_entropy": (functional.cross_entropy, (_square, index(GPU0, 2))),
    "grid_sample": (
        lambda a, g: functional.grid_sample(a, g, align_corners=True),
        (floats(GPU0, 1, 1, 2, 2), floats(GPU0, 1, 2, 2, 2)),
    ),
    "attention": (
        functional.scaled_dot_product_attention,
        (floats(GPU0, 1, 1, 2, 4), floats(GPU0, 1, 1, 2, 4), floats(GPU0, 1, 1, 2, 4)),
    ),
    "masked_fill": (lambda a, m: a.masked_fill(m, 0.0), (floats(GPU0, 2), mask(GPU0, 2))),
    "repeat_interleave": (lambda a, n: a.repeat_interleave(n, output_size=3), (floats(GPU0, 2), counts(GPU0, 2))),
    "equal": (torch.equal, (floats(GPU0, 2), floats(GPU0, 2))),
}


def _cases() -> list[Case]:
    """Each operator with one tensor elsewhere, in turn."""
    cases = []
    for name, (run, operands) in _OPERATORS.items():
        if name not in ("equal", "isin"):
            on_second = tuple(Operand(one.kind, GPU1, one.shape) for one in operands)
            cases.append(Case(f"{name}: all on GPU 1", run, on_second, GPU1, rule=_RULE))
        for position, operand in enumerate(operands):
            for place in (GPU1, HOST):
                moved = list(operands)
                moved[position] = Operand(operand.kind, place, operand.shape)
                cases.append(Case(f"{name}: {position} on {place}", run, tuple(moved), REFUSED, rule=_RULE))
    return cases


ONE_DEVICE = _cases()
