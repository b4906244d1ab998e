"""Layouts of weights that a CPU multiplies with faster than with plain ones, which MKL and oneDNN copy in each step.

Two kernels: FBGEMM's for float16 weights, which take half of the memory, and oneDNN's for float32 and bfloat16. Which
one runs depends on the dtype alone, so the same call gives the same bits in every process.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gen.runtime.one_call import one_call

_BLOCK = 512  # inputs that FBGEMM packs together
_LEAST_INPUTS = 256  # with fewer, a block takes more memory than float32
_LEAST_ROWS = 4  # that oneDNN sums in the order of many


class HalfLayout:
    """Float16 weights, packed for FBGEMM: it multiplies them with float32 states, and sums in float32.

    FBGEMM packs blocks of 512 inputs, and fills the last one up with zeros. If that block would be mostly zeros, its
    weights are kept in float32 instead. Example: of 576 inputs, 512 are packed, and 64 are float32.

    Attributes:
        shape: of the weights (outputs, inputs).
        dtype: in which layers compute.
        stored: the dtype of the weights.
        nbytes: how many bytes they take.
    """

    dtype, stored = torch.float32, torch.float16

    def __init__(self, weight: Tensor) -> None:
        self.shape = weight.shape
        outputs, inputs = weight.shape
        rest = inputs % _BLOCK
        self._packed_inputs = inputs - (rest if rest < _LEAST_INPUTS and rest < inputs else 0)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"  # packing needs it; products do not
        try:
            packed = weight[:, : self._packed_inputs].float()
            self._packed: Any = torch.ops.quantized.linear_prepack_fp16(packed, None)
        finally:
            torch.backends.quantized.engine = before
        self._multiply: Any = torch.ops.quantized.linear_dynamic_fp16.default  # not looked up in each product
        left = weight[:, self._packed_inputs :].t().float().contiguous()  # (inputs, outputs), as their product reads it
        self._rest = left if left.numel() else None
        blocks, columns = -(-self._packed_inputs // _BLOCK), -(-outputs // 16)
        self.nbytes = 2 * _BLOCK * blocks * 16 * columns + left.nbytes

    def product(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """(..., inputs) to (..., outputs), contiguous; both `dtype`, on the CPU. Host sync: none."""
        packed = self._packed_inputs
        made: Tensor = self._multiply(states[..., :packed], self._packed)
        if self._rest is not None:
            rest = states[..., packed:].reshape(-1, self._rest.shape[0])
            made.view(-1, made.shape[-1]).addmm_(rest, self._rest)
        return made if bias is None else made.add_(bias)

    def unpacked(self) -> Tensor:
        """The same numbers in a plain tensor of `dtype`, as new memory."""
        packed: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return packed if self._rest is None else torch.cat((packed, self._rest.t()), 1)


class OneDnnLayout:
    """Float32 or bfloat16 weights in oneDNN's own layout, into which it would otherwise bring them in each step.

    Of fewer than four rows, those that lack are zeros: so rows are summed in one order, however many they are.
    """

    def __init__(self, weight: Tensor) -> None:
        self.shape, self.nbytes = weight.shape, weight.nbytes
        self.dtype = self.stored = weight.dtype
        self._linear: Any = torch.ops.mkldnn._linear_pointwise.default  # not looked up in each product
        # the layout that suits four rows suits more rows, too
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _LEAST_ROWS)

    def product(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """See `HalfLayout.product`."""
        count = states.numel() // states.shape[-1]
        if count >= _LEAST_ROWS or not count:
            return self._multiply(states, bias)
        rows = pad(states.reshape(count, -1), (0, 0, 0, _LEAST_ROWS - count))
        return self._multiply(rows, bias)[:count].view(*states.shape[:-1], -1)

    def unpacked(self) -> Tensor:
        """See `HalfLayout.unpacked`."""
        return self._packed.to_dense()

    def _multiply(self, states: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = self._linear(states, self._packed, bias, "none", [], "")
        return made


Layout = HalfLayout | OneDnnLayout


def layout_of(weight: Tensor) -> Layout:
    """Bring weights into the layout for their dtype; `can_pack` says whether there is one."""
    return HalfLayout(weight) if weight.dtype == torch.float16 else OneDnnLayout(weight)


def can_pack(weight: Tensor) -> bool:
    """Whether this machine has a layout for weights: of a plain matrix on the CPU, for a dtype that it multiplies."""
    if not weight.is_cpu or weight.layout != torch.strided or weight.dim() != 2:
        return False
    if weight.dtype == torch.float16:
        return "fbgemm" in torch.backends.quantized.supported_engines and weight.shape[1] >= _LEAST_INPUTS
    if not torch._C._has_mkldnn or not weight.numel():
        return False
    bfloat16 = weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bfloat16 or weight.dtype == torch.float32


@one_call
def multiply(states: Tensor, layout: Layout, bias: Tensor | None) -> Tensor:
    """`layout.product`."""
    return layout.product(states, bias)
