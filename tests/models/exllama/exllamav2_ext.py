"""Stands for exllamav2's compiled extension in plain torch: what weights in float16 and quantised caches need of it.

Each function refuses tensors of two devices, as its kernels would by reading wrong memory. The quantised caches keep a
scale for 32 values, without the rotation of the real ones, so that their numbers are others.
"""

import torch
from torch import Tensor


def check_devices(*tensors: Tensor | None) -> None:
    devices = {tensor.device for tensor in tensors if tensor is not None and not tensor.is_meta}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but the extension was given {devices}")


def rms_norm(x: Tensor, weight: Tensor, y: Tensor, epsilon: float) -> None:
    check_devices(x, weight, y)
    values = x.float()
    y.copy_((values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * weight.float()).to(y.dtype))


def head_norm(x: Tensor, weight: Tensor, bias: Tensor, y: Tensor, epsilon: float, rms: bool) -> None:
    check_devices(x, weight, y)
    values = x.float() if rms else x.float() - x.float().mean(-1, keepdim=True)
    y.copy_((values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * weight.float()).to(y.dtype))


def rope_(
    x: Tensor, sin: Tensor, cos: Tensor, past_len: int, heads: int, head_dim: int, offsets: Tensor, neox: bool
) -> None:
    assert neox and x.dim() == 4
    check_devices(x, sin, cos, offsets)
    rows, width, _, size = x.shape
    positions = (torch.arange(width, device=x.device)[None] + past_len).expand(rows, width)
    if not offsets.is_meta:
        assert offsets.dtype == torch.int32 and offsets.numel() == rows
        positions = positions + offsets.view(rows, 1)
    flat = positions.clamp_min(0).long().reshape(-1)  # beyond the tables' end it fails, where the kernel reads on
    sines = sin[0, 0].index_select(0, flat).view(rows, width, 1, -1).float()
    cosines = cos[0, 0].index_select(0, flat).view(rows, width, 1, -1).float()
    values = x.float()
    turned = torch.cat((-values[..., size // 2 :], values[..., : size // 2]), -1)
    x.copy_((values * cosines + turned * sines).to(x.dtype))


def stloader_read(filename: str, offset: int, size: int, target: Tensor) -> None:
    with open(filename, "rb") as file:
        file.seek(offset)
        data = bytearray(file.read(size))
    target.copy_(torch.frombuffer(data, dtype=target.dtype).view(target.shape))


def softcap_(x: Tensor, cap: float) -> None:
    x.copy_(torch.tanh(x.float() / cap) * cap)


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
    *paging: object,
) -> None:
    check_devices(keys, key_codes, key_scales, values, value_codes, value_scales)
    _check_room(offset + width, keys, key_codes)
    for source, codes, scales in ((keys, key_codes, key_scales), (values, value_codes, value_scales)):
        per_byte = source.shape[-1] // codes.shape[-1]
        top = 127 if per_byte == 1 else 7
        blocks = source[:rows, offset : offset + width].float().unflatten(-1, (-1, 32))  # type: ignore[no-untyped-call]
        scale = (blocks.abs().amax(-1, keepdim=True) / top).clamp_min(1e-8).half()
        code = (blocks / scale.float()).round().clamp(-top, top).add(top).flatten(-2).to(torch.uint8)
        codes[:rows, offset : offset + width].copy_(code if per_byte == 1 else code[..., ::2] | (code[..., 1::2] << 4))
        scales[:rows, offset : offset + width].copy_(scale.squeeze(-1))


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
    *paging: object,
) -> None:
    check_devices(keys, key_codes, key_scales, values, value_codes, value_scales)
    _check_room(offset + width, keys, key_codes)
    for codes, target, scales in ((key_codes, keys, key_scales), (value_codes, values, value_scales)):
        per_byte = target.shape[-1] // codes.shape[-1]
        code = codes[:rows, offset : offset + width]
        if per_byte == 2:
            code = torch.stack((code & 15, code >> 4), -1).flatten(-2)
        blocks = (code.float() - (127 if per_byte == 1 else 7)).unflatten(-1, (-1, 32))  # type: ignore[no-untyped-call]
        scale = scales[:rows, offset : offset + width].float().unsqueeze(-1)
        target[:rows, offset : offset + width].copy_((blocks * scale).flatten(-2))


def _check_room(end: int, *tensors: Tensor) -> None:
    for tensor in tensors:
        if end > tensor.shape[1]:
            raise RuntimeError(f"beyond the cache: {end} > {tensor.shape[1]}")
