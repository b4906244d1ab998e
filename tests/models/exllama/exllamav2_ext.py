"""Stands for exllamav2's compiled extension in plain torch: the functions that gen's models need, number for number.

Each function refuses tensors of two devices, where the kernels would read wrong memory. Functions for EXL2 weights are
in `exl2_ext`. `test_on_a_gpu.py` compares each function with the compiled one.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from virtual_gpus.plain_tensors import as_plain
from virtual_gpus.virtual_tensor import VirtualTensor, on_gpu

Function = TypeVar("Function", bound=Callable[..., Any])
BLOCK = 512  # values of a cache that are quantised together
SIZES = {4: (4, 4), 6: (8, 4), 8: (8, 8)}  # bits of keys and of values, by the cache's number of bits


def check_devices(*tensors: Tensor | None) -> None:
    devices = {tensor.device for tensor in tensors if tensor is not None and not tensor.is_meta}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but the extension was given {devices}")


def kernel(function: Function) -> Function:
    """A function as one launch: a virtual GPU sees only its inputs and outputs, as with compiled functions."""

    @wraps(function)
    def launch(*given: Any) -> Any:
        tensors = [one for one in given if isinstance(one, Tensor)]
        check_devices(*tensors)
        with as_plain():
            made = function(*given)
        gpu = next((one._gpu for one in tensors if isinstance(one, VirtualTensor)), None)
        return made if gpu is None else on_gpu(made, gpu)

    launched: Any = launch
    return launched  # type: ignore[no-any-return]


@kernel
def rms_norm(x: Tensor, weight: Tensor, y: Tensor, epsilon: float) -> None:
    y.copy_(normed(x, weight, epsilon))


@kernel
def head_norm(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, epsilon: float, rms: bool) -> None:
    y.copy_(normed(x if rms else x.float() - x.float().mean(-1, keepdim=True), weight, epsilon))


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm, in float32."""
    values = x.float()
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * weight.float()


@kernel
def rope_(
    x: Tensor, sin: Tensor, cos: Tensor, past_len: int, heads: int, head_dim: int, offsets: Tensor, neox: bool
) -> None:
    assert neox and x.dim() == 4
    x.copy_(turned(x, sin, cos, past_len, offsets))


def turned(x: Tensor, sin: Tensor, cos: Tensor, past_len: int, offsets: Tensor) -> Tensor:
    """x rotated by the angles of its positions, in float32."""
    rows, width, _, size = x.shape
    positions = (torch.arange(width, device=x.device)[None] + past_len).expand(rows, width)
    if not offsets.is_meta:
        assert offsets.dtype == torch.int32 and offsets.numel() == rows
        positions = positions + offsets.view(rows, 1)
    flat = positions.clamp_min(0).long().reshape(-1)  # fails beyond the tables' end; the kernel reads on
    sines = sin[0, 0].index_select(0, flat).view(rows, width, 1, -1).float()
    cosines = cos[0, 0].index_select(0, flat).view(rows, width, 1, -1).float()
    values = x.float()
    other = torch.cat((-values[..., size // 2 :], values[..., : size // 2]), -1)
    return values * cosines + other * sines


@kernel
def stloader_read(filename: str, offset: int, size: int, target: Tensor) -> None:
    with open(filename, "rb") as file:
        file.seek(offset)
        data = bytearray(file.read(size))
    target.copy_(torch.frombuffer(data, dtype=target.dtype).view(target.shape))


@kernel
def softcap_(x: Tensor, cap: float) -> None:
    x.copy_(torch.tanh(x.float() / cap) * cap)


@kernel
def fp16_to_q_kv(
    keys: Tensor,
    key_codes: Tensor,
    key_scales: Tensor,
    values: Tensor,
    value_codes: Tensor,
    value_scales: Tensor,
    rows: int,
    offset: int,
    width: int,
    page_size: int,
    lengths: Tensor,
    table: Tensor,
    bits: int,
) -> None:
    assert page_size == 0
    begin, end = _blocks(keys, key_codes, offset, width)
    parts = ((keys, key_codes, key_scales), (values, value_codes, value_scales))
    for (source, codes, scales), size in zip(parts, SIZES[bits], strict=True):
        levels = 2 ** (size - 1)
        turned = _groups(_rotated(_groups(source[:rows, begin:end].flatten(2), 64)).flatten(-2), 32)
        largest = turned.abs().amax(-1, keepdim=True)  # of 32 values side by side
        turned = turned / largest
        code = (turned.float() * levels + levels).half().nan_to_num(0.0).round().clamp(0, 2 * levels - 1)
        code = code.to(torch.uint8).flatten(2)
        packed = code if size == 8 else code[..., ::2] | (code[..., 1::2] << 4)
        codes[:rows, begin:end].copy_(packed.view_as(codes[:rows, begin:end]))
        scales[:rows, begin:end].copy_((largest / levels).view_as(scales[:rows, begin:end]))


@kernel
def q_to_fp16_kv(
    key_codes: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    value_codes: Tensor,
    values: Tensor,
    value_scales: Tensor,
    rows: int,
    offset: int,
    width: int,
    page_size: int,
    lengths: Tensor,
    table: Tensor,
    bits: int,
) -> None:
    assert page_size == 0
    begin, end = _blocks(keys, key_codes, offset, width)
    parts = ((key_codes, keys, key_scales), (value_codes, values, value_scales))
    for (codes, target, scales), size in zip(parts, SIZES[bits], strict=True):
        code = codes[:rows, begin:end].flatten(2)
        if size == 4:
            code = torch.stack((code & 15, code >> 4), -1).flatten(-2)
        scale = scales[:rows, begin:end].flatten(2).unsqueeze(-1)
        turned = _groups((code.float() - 2 ** (size - 1)).half(), 32) * scale
        made = _rotated(_groups(turned.flatten(-2), 64)) / 32
        target[:rows, begin:end].copy_(made.view_as(target[:rows, begin:end]))


def _blocks(values: Tensor, codes: Tensor, offset: int, width: int) -> tuple[int, int]:
    """The columns of the whole blocks around some columns, as the kernels count them."""
    size = values.shape[2] * values.shape[3]
    while offset * size % BLOCK:
        offset -= 1
    while width * size % BLOCK:
        width += 1
    if offset + width > codes.shape[1]:
        raise RuntimeError(f"beyond the cache: {offset + width} > {codes.shape[1]}")
    return offset, offset + width


def _groups(values: Tensor, size: int) -> Tensor:
    """(..., n) as (..., n / size, size)."""
    return values.reshape(*values.shape[:-1], -1, size)


def _rotated(values: Tensor) -> Tensor:
    """Hadamard's rotation of the even and of the odd values among 64 (..., 64), in float16 as in the kernels."""
    turned = values.reshape(*values.shape[:-1], 32, 2)
    for step in (1, 2, 4, 8, 16):
        left, right = turned.reshape(*values.shape[:-1], -1, 2, step, 2).unbind(-3)
        turned = torch.stack((left + right, left - right), -3)
    return turned.reshape(values.shape)
