"""What tests need of the machine that they run on."""

from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from gen.models.transformers import exactness


def needs_kernels_that_agree(model: Any) -> None:
    """The machine gives a row the same bits beside others; on one that does not, `gen` refuses exact=True."""
    with torch.inference_mode():
        _, reason = exactness._try(model)
    if reason:
        pytest.skip(f"on this machine {reason}")


def needs_float16_products_that_agree() -> None:
    """The machine gives a row of a float16 product the same bits beside any number of others."""
    weight, given = torch.randn((2, 64, 64), generator=torch.Generator().manual_seed(0)).half()
    all_rows = linear(given, weight)
    if not all(torch.equal(linear(given[:count], weight), all_rows[:count]) for count in range(1, 64)):
        pytest.skip("on this machine a row of a float16 product has other bits beside others")
