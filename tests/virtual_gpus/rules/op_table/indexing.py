"""Operators with special rules: indices, masks, chosen values.

Sources: aten/src/ATen/native/TensorAdvancedIndexing.cpp, TensorCompare.cpp, TensorShape.cpp, and for the other
operators the check that torchgen writes if they have no `device_check: NoCheck`.
"""

from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.virtual_gpus.rules.op_table.cases import (
    GPU0,
    GPU1,
    HOST,
    REFUSED,
    WAITS_OF_A_NUMBER,
    Case,
    counts,
    floats,
    index,
    mask,
)


def _set(tensor: Tensor, where: Any, value: Any) -> Tensor:
    tensor[where] = value
    return tensor


def _put(tensor: Tensor, where: Tensor, value: Tensor) -> Tensor:
    return tensor.index_put_((where,), value)


def _drawn(tensor: Tensor, chances: Tensor) -> Tensor:
    return tensor.bernoulli_(chances / 4) * 0


# Kernels of two tensors that take no scalar from the CPU, and compositions that do: cuda/BinaryMiscOpsKernels.cu and
# Loss.cu have gpu_kernel, which asserts that all are on a GPU; Loss.cpp has neg, mul_ and exp_.
_LOSSES = [
    Case(f"{name}: a CPU scalar as {where}", run, operands, GPU0 if fine else REFUSED)
    for name, run, takes_input, takes_target in (
        ("mse_loss", functional.mse_loss, False, False),
        ("smooth_l1_loss", functional.smooth_l1_loss, False, False),
        ("huber_loss", functional.huber_loss, False, False),
        ("binary_cross_entropy", lambda a, b: functional.binary_cross_entropy(a / 2, b / 2), False, False),
        ("binary_cross_entropy_with_logits", functional.binary_cross_entropy_with_logits, True, False),
        ("soft_margin_loss", functional.soft_margin_loss, False, True),
        ("l1_loss", functional.l1_loss, True, True),
    )
    for where, operands, fine in (
        ("input", (floats(HOST), floats(GPU0)), takes_input),
        ("target", (floats(GPU0), floats(HOST)), takes_target),
    )
]
# A scalar from the CPU must be beside a tensor on a GPU, not only go into one: TensorIterator.cpp, and the check of
# `out` in structured kernels.
_OUT = [
    Case(
        f"{name}: CPU scalars into GPU", lambda a, out, run=run: run(a, out=out), (floats(HOST), floats(GPU0)), REFUSED
    )
    for name, run in (
        ("exp", torch.exp),
        ("neg", torch.neg),
        ("add a number", lambda a, out: torch.add(a, 2, out=out)),
        ("mul twice", lambda a, out: torch.mul(a, a, out=out)),
        ("amax", lambda a, out: torch.amax(a, 0, out=out)),
        ("sum", lambda a, out: torch.sum(a, 0, out=out)),
        ("cumsum", lambda a, out: torch.cumsum(a, 0, out=out)),
        ("clamp", lambda a, out: torch.clamp(a, 0, 1, out=out)),
    )
]

INDEXING = [
    Case(
        "lstm: a first state on the CPU",
        lambda a, h: nn.LSTM(2, 2).to(GPU0)(a, (h, h)),
        (floats(GPU0, 3, 1, 2), floats(HOST, 1, 1, 2)),
        REFUSED,
    ),
    Case("cat: an empty CPU tensor", lambda a, b: torch.cat([a, b]), (floats(GPU0, 2), floats(HOST, 0)), REFUSED),
    Case(
        "attention: mask on the CPU",
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (floats(GPU0, 1, 1, 2, 4), mask(HOST, 2, 2)),
        REFUSED,
    ),
    Case(
        "attention: mask on its GPU",
        lambda q, m: functional.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (floats(GPU1, 1, 1, 2, 4), mask(GPU1, 2, 2)),
        GPU1,
    ),
    Case(
        "index_select: a scalar index on the CPU",
        lambda a, i: a.index_select(0, i),
        (floats(GPU0, 2), index(HOST)),
        REFUSED,
    ),
    Case("index: CPU indices", lambda a, i: a[i], (floats(GPU0, 2), index(HOST, 2)), GPU0, 1),
    Case("index: a CPU mask", lambda a, m: a[m], (floats(GPU0, 2), mask(HOST, 2)), GPU0, 1),
    Case("index: indices on another GPU", lambda a, i: a[i], (floats(GPU0, 2), index(GPU1, 2)), REFUSED),
    Case("set: indices on another GPU", _put, (floats(GPU0, 2), index(GPU1, 2), floats(GPU0, 2)), GPU0),
    Case("set: indices on a GPU, CPU in place", _put, (floats(HOST, 2), index(GPU1, 2), floats(HOST, 2)), HOST, 1),
    Case("set: a mask on another GPU", _put, (floats(GPU0, 2), mask(GPU1, 2), floats(GPU0, 1)), GPU0, 1),
    Case("set: a mask on another GPU, CPU scalar", _put, (floats(GPU0, 2), mask(GPU1, 2), floats(HOST)), GPU0, 2),
    Case("set: indices and values on another GPU", _put, (floats(GPU0, 2), index(GPU1, 2), floats(GPU1, 2)), REFUSED),
    Case("index: a CPU tensor by GPU indices", lambda a, i: a[i], (floats(HOST, 2), index(GPU0, 2)), REFUSED),
    Case("set: a CPU scalar by a mask", _set, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST)), GPU0),
    Case(
        "set: a number by indices",
        lambda a, i: _set(a, i, 0.0),
        (floats(GPU0, 2), index(GPU0, 2)),
        GPU0,
        WAITS_OF_A_NUMBER,
    ),
    Case("set: a number by a list", lambda a: _set(a, [0, 1], 0), (floats(GPU0, 2),), GPU0, 2),
    Case("set: a number in a row by a list", lambda a: _set(a, (1, [0, 1]), 0.0), (floats(GPU0, 2, 2),), GPU0, 2),
    Case("set: a number by a CPU array", lambda a: _set(a, numpy.array([0, 1]), 0.0), (floats(GPU0, 2),), GPU0, 2),
    Case("set: a number by CPU indices", lambda a, i: _set(a, i, 0), (floats(GPU0, 2), index(HOST, 2)), GPU0, 2),
    Case(
        "set: a CPU vector by a slice", lambda a, b: _set(a, slice(2), b), (floats(GPU0, 2), floats(HOST, 2)), GPU0, 1
    ),
    Case("set: another GPU's by a slice", lambda a, b: _set(a, slice(2), b), (floats(GPU0, 2), floats(GPU1, 2)), GPU0),
    Case("set: CPU values by GPU indices", _set, (floats(GPU0, 2), index(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("masked_fill: a CPU scalar", torch.masked_fill, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST)), GPU0),
    Case("where: a number", lambda m, a: torch.where(m, 0.0, a), (mask(GPU0, 2), floats(GPU0, 2)), GPU0),
    Case("where: a CPU scalar", torch.where, (mask(GPU0, 2), floats(GPU0, 2), floats(HOST)), GPU0, 1),
    Case("where: a CPU vector", torch.where, (mask(GPU0, 2), floats(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("where: condition on another GPU", torch.where, (mask(GPU1, 2), floats(GPU0, 2), floats(GPU0, 2)), REFUSED),
    Case("fill_: a CPU scalar", lambda a, b: a.fill_(b), (floats(GPU0, 2), floats(HOST)), GPU0),
    Case("fill_: a GPU scalar", lambda a, b: a.fill_(b), (floats(GPU0, 2), floats(GPU0)), GPU0),
    Case("expand_as: a shape from the CPU", lambda a, b: a.expand_as(b), (floats(GPU0, 2), floats(HOST, 2, 2)), GPU0),
    Case("repeat_interleave: repeats on the CPU", torch.repeat_interleave, (floats(GPU0, 2), counts(HOST, 2)), REFUSED),
    Case("set: a CPU vector of one by indices", _set, (floats(GPU0, 2), index(GPU0, 2), floats(HOST, 1)), GPU0, 1),
    Case("set: a CPU vector of one by a mask", _set, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST, 1)), GPU0),
    Case("index_put_: a CPU vector of one by a mask", _put, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST, 1)), GPU0),
    Case("index_put_: a CPU vector of one", _put, (floats(GPU0, 2), index(GPU0, 2), floats(HOST, 1)), REFUSED),
    Case("set: a CPU vector of two by a mask", _set, (floats(GPU0, 2), mask(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("set: by a CPU mask", lambda a, m: _set(a, m, 0.0), (floats(GPU0, 2), mask(HOST, 2)), GPU0, 2),
    *_LOSSES,
    *_OUT,
    Case("bernoulli_: chances on the CPU", _drawn, (floats(GPU0, 2), floats(HOST, 2)), GPU0, 1),
    Case("bernoulli_: chances on another GPU", _drawn, (floats(GPU0, 2), floats(GPU1, 2)), GPU0),
    Case("bernoulli_: a CPU tensor by GPU chances", _drawn, (floats(HOST, 2), floats(GPU0, 2)), REFUSED),
    Case("resize_as_: a shape from the CPU", lambda a, b: a.resize_as_(b), (floats(GPU0, 4), floats(HOST, 2)), GPU0),
    Case("fill: a CPU scalar", torch.fill, (floats(GPU0, 2), floats(HOST)), GPU0),
    Case("fill: another GPU's scalar", torch.fill, (floats(GPU0, 2), floats(GPU1)), GPU0, 1),
    Case("ldexp: a CPU scalar", torch.ldexp, (floats(GPU0, 2), floats(HOST)), GPU0),
    Case("ldexp: a CPU vector", torch.ldexp, (floats(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("allclose: a CPU scalar", torch.allclose, (floats(GPU0, 2), floats(HOST)), "host", 1),
    Case("allclose: a CPU vector", torch.allclose, (floats(GPU0, 2), floats(HOST, 2)), REFUSED),
    Case("isclose: a CPU scalar", torch.isclose, (floats(GPU0, 2), floats(HOST)), GPU0),
    Case("binomial: chances on the CPU", torch.binomial, (floats(GPU0, 2), floats(HOST)), REFUSED),
]
