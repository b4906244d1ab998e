"""Masks are applied to logits of any dtype and layout, in the rows that are asked for."""

import numpy as np
import pytest
import torch

from gen.constraints.tables.masks import allow, bias_table
from virtual_gpus import virtual_gpus


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 61])
def test_what_is_not_allowed_has_no_chance(device: str, dtype: torch.dtype, size: int) -> None:
    bits = np.random.default_rng(0).integers(0, 256, (3, 8), np.uint8)[[0, 1, 0, 0, 2, 0]]  # repeated ones, too
    given = torch.randn(6, 80, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = torch.tensor([True, False, True, True, True, True])
    may = torch.from_numpy(np.unpackbits(bits, axis=1, bitorder="little")[:, :size]).bool()
    expected = torch.where(may, given[:, :size].float(), -torch.inf)
    with virtual_gpus(2):
        on = torch.device(device)
        logits = given.clone().to(on)[:, :size]  # the model has more logits than there are tokens
        masks, table = torch.from_numpy(bits).to(on), bias_table(on)
        assert torch.equal(allow(logits.clone(), masks, table).cpu(), expected)
        assert torch.equal(allow(logits, masks, table, wanted.to(on)).cpu()[wanted], expected[wanted])
    if device == "cpu" and dtype == torch.float32:
        assert torch.equal(logits[wanted], expected[wanted]) and torch.equal(logits[1], given[1, :size])
