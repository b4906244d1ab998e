"""Stands for exllamav3's compiled extension in plain torch: what weights in float16, or in EXL3 of 16 bits, need of it.

A trellis of 16 bits a weight holds float16 weights exactly (`trellis_of`), without the rotations of real ones: so the
quantised paths of the package's Python code run against the float16 model.
"""

from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from tests.models.exllama.exllamav2_ext import check_devices

# exllamav3 takes a module for a compiled extension by where it is
__spec__ = ModuleSpec(
    "exllamav3_ext", loader=SourceFileLoader("exllamav3_ext", __file__), origin=f"exllamav3_ext{EXTENSION_SUFFIXES[0]}"
)
CALLS: dict[str, int] = {}


def count(name: str) -> None:
    CALLS[name] = CALLS.get(name, 0) + 1


class BC_LinearFP16:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...


def hgemm(a: Tensor, b: Tensor, c: Tensor) -> None:
    count("hgemm")
    check_devices(a, b, c)
    c.copy_(torch.matmul(a.to(b.dtype), b).to(c.dtype))


hgemm_recon = hgemm


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    y: Tensor,
    epsilon: float,
    bias: float,
    scale: float,
    span_heads: bool,
    residual: bool,
    groups: int = 1,
) -> None:
    check_devices(x, weight, y)
    values = x.float()
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * scale
    if weight is not None:
        values = values * (weight.float() + bias)
    y.add_(values.to(y.dtype)) if residual else y.copy_(values.to(y.dtype))


def rms_norm_res_in(
    x: Tensor, weight: Tensor, y: Tensor, residual: Tensor, epsilon: float, bias: float, scale: float
) -> None:
    check_devices(x, weight, y, residual)
    residual.add_(x.to(residual.dtype))
    rms_norm(residual, weight, y, epsilon, bias, scale, False, False)


def rope(
    q: Tensor,
    out_q: Tensor,
    k: Tensor | None,
    out_k: Tensor | None,
    inv_freq: Tensor,
    position: int,
    positions: Tensor | None,
    position_ids: Tensor | None,
    style: Any,
    factor: float,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    epsilon: float,
    bias: float,
    *rest: object,
) -> None:
    check_devices(q, k, inv_freq, positions, position_ids, q_norm, k_norm)
    assert int(style) == 2
    rows, width, _, size = q.shape
    if position_ids is not None:
        places = position_ids.view(rows, width)
    else:
        starts = positions.view(rows, 1) if positions is not None else position
        places = (torch.arange(width, device=q.device)[None] + starts).expand(rows, width)
    angles = (places.float().unsqueeze(-1) * inv_freq.view(1, 1, -1)).repeat(1, 1, 2).unsqueeze(2)
    for source, target, norm in ((q, out_q, q_norm), (k, out_k, k_norm)):
        if source is not None and target is not None:
            values = source.float()
            if norm is not None:
                scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon)
                values = values * scale * (norm.float() + bias)
            turned = torch.cat((-values[..., size // 2 :], values[..., : size // 2]), -1)
            target.copy_(((values * angles.cos() + turned * angles.sin()) * factor).to(target.dtype))


def silu_mul(gate: Tensor, up: Tensor, out: Tensor, limit: float = 0.0) -> None:
    check_devices(gate, up, out)
    out.copy_((silu(gate.float()) * up.float()).to(out.dtype))


def gelu_mul(gate: Tensor, up: Tensor, out: Tensor, limit: float = 0.0) -> None:
    check_devices(gate, up, out)
    out.copy_((gelu(gate.float(), approximate="tanh") * up.float()).to(out.dtype))


def trellis_of(weight: Tensor) -> Tensor:
    """(out, in) float16 as a trellis (in / 16, out / 16, 256), int16."""
    outputs, inputs = weight.shape
    tiles = weight.T.contiguous().view(inputs // 16, 16, outputs // 16, 16).permute(0, 2, 1, 3)
    return tiles.contiguous().view(torch.int16).view(inputs // 16, outputs // 16, 256)


def weight_of(trellis: Tensor) -> Tensor:
    """(in, out) float16."""
    inputs, outputs, _ = trellis.shape
    return trellis.view(torch.float16).view(inputs, outputs, 16, 16).permute(0, 2, 1, 3).reshape(inputs * 16, -1)


class BC_LinearEXL3:
    def __init__(
        self,
        trellis: Tensor,
        suh: Tensor,
        svh: Tensor,
        bits: int,
        bias: Tensor | None,
        mcg: bool,
        mul1: bool,
        shared: Tensor,
    ) -> None:
        self.trellis, self.suh, self.bias, self.shared = trellis, suh, bias, shared

    def run_alloc(self, x: Tensor, outputs: int, in_float32: bool) -> Tensor:
        count("exl3_gemm")
        check_devices(x, self.trellis, self.suh, self.shared)
        y = torch.matmul(x, weight_of(self.trellis))
        y = y if self.bias is None else y + self.bias
        return y.float() if in_float32 else y


class BC_GatedMLP:
    def __init__(self, *arguments: Any) -> None:
        self.gate, self.up, self.down = arguments[-4:-1]

    def run_bszN(self, x: Tensor, out: Tensor) -> None:
        count("BC_GatedMLP")
        gate, up = self.gate.run_alloc(x[0], 0, True), self.up.run_alloc(x[0], 0, True)
        made = self.down.run_alloc((silu(gate) * up).half(), 0, out.dtype == torch.float)
        out.copy_(made.view(out.shape))


def had_r_128(x: Tensor, y: Tensor, before: Tensor | None, after: Tensor | None, scale: float) -> None:
    if y is not x:
        y.copy_(x)


def reconstruct(weight: Tensor, trellis: Tensor, *settings: object) -> None:
    count("reconstruct")
    weight.copy_(weight_of(trellis))


def reconstruct_had_slice(weight: Tensor, trellis: Tensor, *settings: Any) -> None:
    count("reconstruct")
    first = settings[-1]
    weight.copy_(weight_of(trellis)[:, first : first + weight.shape[1]])


def stloader_open_file(file: str) -> str:
    return file


def stloader_close_file(handle: str) -> None: ...


def __getattr__(name: str) -> Any:
    """What is missing fails where it is called, not where it is looked for."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.startswith("HAS_"):
        return False

    def missing(*arguments: object, **named: object) -> None:
        raise NotImplementedError(f"exllamav3_ext.{name} is not in the stub")

    return missing


def paged_attention(args: Any) -> Tensor:
    """Attention over pages, for exllamav3's dispatcher, whose own is in Triton. It reads nothing on the host."""
    q, k, v = args.q, args.k, args.v
    rows, width, heads, size = q.shape
    kv_heads, device = args.num_kv_heads, q.device
    if args.k_cache is None:
        keys, values = k, v
        base, places = torch.zeros(rows, dtype=torch.long, device=device), torch.arange(width, device=device)
    else:
        check_devices(q, args.k_cache, args.block_table, args.cache_seqlens)
        table, base, page = args.block_table.long(), args.cache_seqlens.long(), args.k_cache.shape[1]
        own = base.view(rows, 1) + torch.arange(width, device=device)
        flat = (table.gather(1, own // page) * page + own % page).view(-1)
        key_cache, value_cache = args.k_cache.view(-1, kv_heads, size), args.v_cache.view(-1, kv_heads, size)
        key_cache.index_copy_(0, flat, k.reshape(-1, kv_heads, size))
        value_cache.index_copy_(0, flat, v.reshape(-1, kv_heads, size))
        places = torch.arange(table.shape[1] * page, device=device)
        lines = (table.gather(1, (places // page).expand(rows, -1)) * page + places % page).view(-1)
        keys = key_cache[lines].view(rows, -1, kv_heads, size)
        values = value_cache[lines].view(rows, -1, kv_heads, size)
    queries = base.view(rows, 1) + torch.arange(width, device=device)
    mask = places.view(1, 1, -1) <= queries.unsqueeze(-1)
    if args.window_size is not None and args.window_size > 0:
        mask = mask & (places.view(1, 1, -1) >= queries.unsqueeze(-1) - args.window_size)
    groups = heads // kv_heads
    made = scaled_dot_product_attention(
        q.transpose(1, 2).float(),
        keys.transpose(1, 2).repeat_interleave(groups, 1).float(),
        values.transpose(1, 2).repeat_interleave(groups, 1).float(),
        attn_mask=mask.unsqueeze(1),
        scale=args.sm_scale,
    )
    return made.transpose(1, 2).to(q.dtype).contiguous()
