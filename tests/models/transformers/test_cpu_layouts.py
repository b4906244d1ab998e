"""Products with weights in a CPU's own layouts: the oracle is float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from gen.models.transformers.cpu_layouts import can_pack, layout_of, multiply

SHAPES = [(1,), (7,), (0, 3), (1, 1), (2, 1), (3, 1), (8, 1), (3, 4), (2, 70)]


def needs(dtype: torch.dtype) -> None:
    if not can_pack(torch.zeros((512, 512), dtype=dtype)):
        pytest.skip(f"torch has no layout for {dtype} here")


@pytest.mark.parametrize(
    ("dtype", "inputs"), [*((torch.float16, n) for n in (256, 300, 512, 576, 700, 800, 1536)), (torch.float32, 300)]
)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_weights_are_exact_and_their_products_those_of_float64(dtype: torch.dtype, inputs: int, bias: bool) -> None:
    needs(dtype)
    torch.manual_seed(0)
    layer = nn.Linear(inputs, 70, bias=bias)
    weight = layer.weight.to(dtype)
    if dtype == torch.float16:
        weight[0, :4] = torch.tensor([65504.0, 6e-8, -6e-8, 0.0])  # the largest number and the smallest ones
    rtol, atol = (1e-4, 0.5) if dtype == torch.float16 else (1e-5, 1e-5)  # of the largest number
    packed = layout_of(weight)
    assert torch.equal(packed.unpacked(), weight.float()) and packed.shape == weight.shape
    if dtype == torch.float16:
        assert 2 * weight.numel() <= packed.nbytes <= 4 * 80 * (inputs + 256)
    for rows in SHAPES:
        states = torch.randn(*rows, inputs)
        expected = functional.linear(states.double(), weight.double(), layer.bias.double() if bias else None)
        found = multiply(states, packed, layer.bias)
        assert found.shape == (*rows, 70) and found.is_contiguous()
        torch.testing.assert_close(found.double()[..., 1:], expected[..., 1:], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.double()[..., 0], expected[..., 0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("rows", [1, 3, 4, 40])
@torch.inference_mode()
def test_in_bfloat16_they_are_as_exact_as_torchs_of_several_rows(rows: int) -> None:
    needs(torch.bfloat16)
    torch.manual_seed(0)
    layer, given = nn.Linear(300, 70).bfloat16(), torch.randn(rows, 300).bfloat16()
    packed = layout_of(layer.weight)
    assert torch.equal(packed.unpacked(), layer.weight)
    expected = functional.linear(given.double(), layer.weight.double(), layer.bias.double())
    found = multiply(given, packed, layer.bias)
    torchs = layer(functional.pad(given, (0, 0, 0, 4)))[:rows]  # a single row has a kernel of its own there
    assert found.dtype == torch.bfloat16
    assert (found - expected).square().mean() <= 1.05 * (torchs - expected).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_row_has_the_same_bits_beside_others_where_instructions_are_wide(dtype: torch.dtype) -> None:
    needs(dtype)
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("without AVX-512 oneDNN sums few rows in another order")
    packed, states = layout_of(torch.randn(576, 1536).to(dtype)), torch.randn(8, 1536).to(dtype)
    together = multiply(states, packed, None)
    for count in range(1, 8):
        assert torch.equal(multiply(states[:count], packed, None), together[:count])


def test_only_matrices_on_a_cpu_have_a_layout() -> None:
    assert not can_pack(torch.zeros(8, 512, device="meta"))
    assert not can_pack(torch.zeros(8)) and not can_pack(torch.zeros(0, 8))
    assert not can_pack(torch.zeros((8, 512), dtype=torch.float64))
    assert not can_pack(torch.zeros((8, 512), dtype=torch.int8))
    assert not can_pack(torch.zeros((8, 255), dtype=torch.float16))  # it would take more memory than in float32
