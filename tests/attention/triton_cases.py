"""A step's Triton kernels, compared with softmax in float64; not collected by itself, see `test_triton_steps`.

With TRITON_INTERPRET=1 the kernels run on the CPU, else on cuda:0.
"""

import os

import pytest
import torch
from torch import Tensor

from gen.attention import steps, triton_steps
from gen.attention.plan import Plan
from tests.triton_interpreter import swap_once

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda:0"
if DEVICE == "cpu":
    swap_once()
EXACT = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def drawn(
    lengths: list[int], heads: int, key_heads: int, width: int, *, tokens: int, window: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, keys, values and mask; columns that rows do not look at are NaN."""
    generator = torch.Generator().manual_seed(sum(lengths) + width)
    view = -(-max(lengths) // 32) * 32
    query = torch.randn((len(lengths), heads, tokens, width), generator=generator)
    kept = torch.randn((2, len(lengths), key_heads, view + 64, width), generator=generator)  # rows have more room
    own = (torch.tensor(lengths) - tokens)[:, None, None] + torch.arange(tokens)[:, None]
    columns = torch.arange(view + 64)
    seen = (columns <= own) & (columns > own - window)
    kept[:, ~seen.any(1)[:, None].expand(-1, key_heads, -1)] = torch.nan
    mask = torch.where(seen[..., :view], 0.0, torch.finfo(dtype).min).unsqueeze(1)
    query, keys, values, mask = (one.to(dtype).to(DEVICE) for one in (query, *kept[..., :view, :], mask))
    return query, keys, values, mask


def expected(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The result in float64, with a copy of the keys for every query head."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (each.double().nan_to_num().repeat_interleave(groups, 1) for each in (keys, values))
    made: Tensor = ((query.double() @ keys.mT * scale + mask.double()).softmax(-1) @ values).transpose(1, 2)
    return made


@pytest.mark.parametrize(
    ("heads", "key_heads", "width", "tokens", "window", "dtype"),
    [
        (3, 1, 64, 1, 2**20, torch.float32),
        (4, 2, 80, 1, 2**20, torch.bfloat16),
        (4, 2, 128, 3, 70, torch.float16),
        (2, 2, 256, 1, 300, torch.float32),
    ],
    ids=str,
)
def test_a_row_finds_what_softmax_finds_and_the_same_bits_in_any_batch(
    heads: int, key_heads: int, width: int, tokens: int, window: int, dtype: torch.dtype
) -> None:
    lengths, scale = [700, 5, 256, 33], 0.11
    given = drawn(lengths, heads, key_heads, width, tokens=tokens, window=window, dtype=dtype)
    together = triton_steps.attend(*given, scale)
    torch.testing.assert_close(together.double(), expected(*given, scale), atol=EXACT[dtype], rtol=EXACT[dtype])
    for row, length in enumerate(lengths):
        query, keys, values, mask = (each[row : row + 1] for each in given)
        own = -(-length // 32) * 32
        alone = triton_steps.attend(query, keys[:, :, :own], values[:, :, :own], mask[..., :own], scale)
        assert torch.equal(alone, together[row : row + 1])


def test_values_may_have_another_width_than_keys() -> None:
    query, keys, values, mask = drawn([40, 300], 2, 1, 96, tokens=1, window=2**20, dtype=torch.float32)
    found = triton_steps.attend(query, keys, values[..., :64], mask, None)
    assert found.shape == (2, 1, 2, 64) and found.is_contiguous()
    torch.testing.assert_close(
        found.double(), expected(query, keys, values[..., :64], mask, 96**-0.5), atol=3e-6, rtol=3e-6
    )


def test_a_step_takes_the_kernels_for_what_they_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "runs_triton", lambda tensor: True)
    given = drawn([40, 70], 4, 2, 64, tokens=1, window=2**20, dtype=torch.float32)
    assert torch.equal(steps.attend_rows(*given, Plan(), None), triton_steps.attend(*given, None))
    query, keys, values, mask = drawn([40], 2, 2, 320, tokens=1, window=2**20, dtype=torch.float32)
    wide = query, keys.nan_to_num(), values.nan_to_num(), mask
    torch.testing.assert_close(
        steps.attend_rows(*wide, Plan(), None).double(), expected(*wide, 320**-0.5), atol=3e-6, rtol=3e-6
    )


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter captures nothing")
def test_it_is_captured() -> None:
    given = drawn([300, 40], 4, 2, 64, tokens=1, window=2**20, dtype=torch.float32)
    once = triton_steps.attend(*given, None).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = triton_steps.attend(*given, None)
    found.zero_()
    graph.replay()
    assert torch.equal(found, once)
