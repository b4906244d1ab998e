"""Stands for the part of exllamav2's extension that EXL2 weights need: matrices of few bits, and attention and MLPs.

A matrix (inputs, outputs) has rows in groups. A group has a number of bits, a scale of 4 bits for each column, and one
in float16 for all; its numbers are packed down the columns, the lowest bits first, without gaps in 32 rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.models.exllama.exllamav2_ext import check_devices, kernel, normed, turned

Loras = Mapping[int, Tensor]


@dataclass
class _Matrix:
    weight: Tensor  # float16 values in float64, since torch's product of float16 takes far longer
    bias: Tensor | None
    packed: Tensor  # the matrix is on its device

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.matmul(x.double(), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias


@dataclass
class _Layer:
    """Attention, or an MLP: a norm and its matrices, with the LoRAs that are on them."""

    norm: Tensor
    epsilon: float
    matrices: Sequence[_Matrix]
    heads: tuple[int, int, int] = (0, 0, 0)  # of queries, of keys; and their size
    head_norms: Sequence[Tensor] = ()
    loras: Sequence[tuple[Loras, Loras]] = field(default_factory=list)

    def check_devices(self, x: Tensor, loras: Sequence[int]) -> None:
        """Refuse inputs and LoRAs that are on another device than the layer."""
        on_it = [half[lora] for pair in self.loras for half in pair for lora in loras if lora in half]
        check_devices(x, self.norm, *(matrix.packed for matrix in self.matrices), *on_it)

    def normed(self, x: Tensor) -> Tensor:
        return normed(x, self.norm, self.epsilon).to(x.dtype)

    def apply(self, number: int, x: Tensor, loras: Sequence[int]) -> Tensor:
        """x times one of the matrices, with LoRAs."""
        y = self.matrices[number](x)
        for lora in loras:
            a, b = (half.get(lora) for half in self.loras[number])
            if a is not None and b is not None:
                y = y + x @ a @ b
        return y


_handles = count(1)
_matrices: dict[int, _Matrix] = {}
_layers: dict[int, _Layer] = {}


def _given(tensor: Tensor) -> Tensor | None:
    """A tensor, or None: exllamav2 gives a tensor on the meta device for none."""
    return None if tensor.is_meta else tensor


def make_group_map(groups: Tensor, packed_rows: int) -> Tensor:
    """For each row its group, and how many rows of the group are left; int16."""
    pairs, made = groups.view(-1, 2).tolist(), []
    ends = [first for _, first in pairs[1:]] + [packed_rows]
    for number, ((bits, first), end) in enumerate(zip(pairs, ends, strict=True)):
        rows = (end - first) * 32 // bits
        made += [entry for row in range(rows) for entry in (number, rows - row)]
    return torch.tensor(made, dtype=torch.int16, device="cpu")


@kernel
def make_q_matrix(
    packed: Tensor,
    perm: Tensor,
    inverse_perm: Tensor,
    scales: Tensor,
    largest_scales: Tensor,
    groups: Tensor,
    group_map: Tensor,
    gptq_zeros: Tensor,
    gptq_scales: Tensor,
    gptq_groups: Tensor,
    bias: Tensor,
    scratch: Tensor,
    scratch_rows: int,
) -> int:
    assert gptq_zeros.is_meta, "GPTQ is not in the stub"
    parts = []
    pairs = groups.view(-1, 2).tolist()
    ends = [first for _, first in pairs[1:]] + [len(packed)]
    for number, ((bits, first), end) in enumerate(zip(pairs, ends, strict=True)):
        words = packed[first:end].to(torch.int64) & 0xFFFFFFFF
        places = torch.arange((end - first) * 32 // bits, device=packed.device) * bits
        low = words[places // 32] >> (places % 32).unsqueeze(1)
        high = words[(places // 32 + 1).clamp(max=len(words) - 1)] << (32 - places % 32).unsqueeze(1)
        codes = (low | high) & (2**bits - 1)
        scale = (scales[number].unsqueeze(-1) >> (4 * torch.arange(8, device=packed.device))) & 15
        scale = ((scale + 1) ** 2).flatten().half() * largest_scales[number]
        parts.append((codes - 2 ** (bits - 1)).half() * scale)
    rows = torch.cat(parts)
    order = _given(perm)
    weight = rows if order is None else torch.empty_like(rows).index_copy_(0, order.long() & 0xFFFF, rows)
    handle = next(_handles)
    _matrices[handle] = _Matrix(weight.double(), _given(bias), packed)
    return handle


def free_q_matrix(handle: int) -> None:
    del _matrices[handle]


@kernel
def reconstruct(handle: int, output: Tensor) -> None:
    check_devices(output, _matrices[handle].packed)
    output.copy_(_matrices[handle].weight)


@kernel
def gemm_half_q_half(x: Tensor, handle: int, output: Tensor, force_cuda: bool) -> None:
    check_devices(x, _matrices[handle].packed)
    output.copy_(_matrices[handle](x))


@kernel
def tensor_remap(tensor: Tensor, index: Tensor) -> None:
    """Put columns into another order, on the CPU."""
    tensor.copy_(tensor[:, index.long()])


@kernel
def tensor_remap_4bit(tensor: Tensor, index: Tensor) -> None:
    """The same for columns of 4 bits, 8 in each number."""
    shifts = 4 * torch.arange(8, device="cpu")
    columns = ((tensor.unsqueeze(-1) >> shifts) & 15).flatten(1)[:, index.long()]
    packed = (columns.view(len(tensor), -1, 8).to(torch.int64) << shifts).sum(-1)
    tensor.copy_(torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32))


def make_q_attn(
    norm: Tensor,
    norm_bias: Tensor,
    norm_is_rms: bool,
    head_norm_is_rms: bool,
    epsilon: float,
    q: int,
    k: int,
    v: int,
    o: int,
    scratch: Tensor,
    dequantised: Tensor,
    rows: int,
    hidden_size: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    context: int,
    residual: bool,
    rope_style: int,
    rotated: int,
    q_norm: Tensor,
    k_norm: Tensor,
    after: Tensor,
    after_bias: Tensor,
    residual_in_float32: bool,
    graphs: bool,
) -> int:
    assert norm_is_rms and residual and after.is_meta and not residual_in_float32 and rotated == head_size
    norms = [norm for norm in (q_norm, k_norm) if not norm.is_meta]
    assert rope_style == 2 and (head_norm_is_rms or not norms)
    handle = next(_handles)
    matrices = [_matrices[one] for one in (q, k, v, o)]
    _layers[handle] = _Layer(norm, epsilon, matrices, (heads, kv_heads, head_size), norms)
    return handle


def free_q_attn(handle: int) -> None:
    del _layers[handle]


@kernel
def q_attn_forward_1(
    handle: int,
    x: Tensor,
    rows: int,
    width: int,
    past_len: int,
    offsets: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sin: Tensor,
    cos: Tensor,
    loras: Sequence[int],
    scratch: Tensor,
) -> None:
    layer = _layers[handle]
    layer.check_devices(x, loras)
    heads, kv_heads, size = layer.heads
    values = layer.normed(x.view(rows * width, -1))
    for number, (target, count_of_heads) in enumerate(((q, heads), (k, kv_heads), (v, kv_heads))):
        made = layer.apply(number, values, loras).view(rows, width, count_of_heads, size)
        if number < 2:
            if layer.head_norms:
                made = normed(made, layer.head_norms[number], layer.epsilon).to(x.dtype)
            made = turned(made, sin, cos, past_len, offsets)
        target.view(rows, width, count_of_heads, size).copy_(made)


@kernel
def q_attn_forward_2(
    handle: int, x: Tensor, attended: Tensor, rows: int, width: int, loras: Sequence[int], scratch: Tensor
) -> None:
    layer = _layers[handle]
    layer.check_devices(x, loras)
    made = layer.apply(3, attended.reshape(rows * width, -1), loras)
    x.add_(made.view_as(x))


def q_attn_set_loras(
    handle: int,
    q_a: Loras,
    q_b: Loras,
    k_a: Loras,
    k_b: Loras,
    v_a: Loras,
    v_b: Loras,
    o_a: Loras,
    o_b: Loras,
) -> int:
    return _set_loras(handle, (q_a, q_b), (k_a, k_b), (v_a, v_b), (o_a, o_b))


def make_q_mlp(
    norm: Tensor,
    norm_bias: Tensor,
    norm_is_rms: bool,
    epsilon: float,
    gate: int,
    up: int,
    down: int,
    scratch: Tensor,
    first: Tensor,
    second: Tensor,
    dequantised: Tensor,
    rows: int,
    gelu: bool,
    residual: bool,
    after: Tensor,
    after_bias: Tensor,
    residual_in_float32: bool,
    graphs: bool,
) -> int:
    assert norm_is_rms and residual and after.is_meta and not residual_in_float32 and not gelu
    handle = next(_handles)
    _layers[handle] = _Layer(norm, epsilon, [_matrices[one] for one in (gate, up, down)])
    return handle


def free_q_mlp(handle: int) -> None:
    del _layers[handle]


@kernel
def q_mlp_forward_(handle: int, x: Tensor, loras: Sequence[int], scratch: Tensor) -> None:
    layer = _layers[handle]
    layer.check_devices(x, loras)
    values = layer.normed(x.view(-1, x.shape[-1]))
    held = silu(layer.apply(0, values, loras)) * layer.apply(1, values, loras)
    x.add_(layer.apply(2, held, loras).view_as(x))


def q_mlp_set_loras(
    handle: int, gate_a: Loras, gate_b: Loras, up_a: Loras, up_b: Loras, down_a: Loras, down_b: Loras
) -> int:
    return _set_loras(handle, (gate_a, gate_b), (up_a, up_b), (down_a, down_b))


def _set_loras(handle: int, *loras: tuple[Loras, Loras]) -> int:
    """Put LoRAs on a layer's matrices; returns the largest rank."""
    _layers[handle].loras = loras
    return max((a.shape[-1] for half, _ in loras for a in half.values()), default=0)
