"""Stands for exllamav3's compiled extension in plain torch: the functions for weights in float16 and EXL3 of 16 bits.

Real trellises never have 16 bits a weight. Here one does, and holds rotated weights in float16 (`trellis_of`), so that
the quantised paths of the package's Python code can be compared with the float16 model. All other functions give the
compiled ones' numbers, except for rounding; `test_on_a_gpu.py` compares each function.
"""

from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from tests.models.exllama.exllamav2_ext import check_devices, kernel

# exllamav3 recognises a compiled extension by the module's location
__spec__ = ModuleSpec(
    "exllamav3_ext", loader=SourceFileLoader("exllamav3_ext", __file__), origin=f"exllamav3_ext{EXTENSION_SUFFIXES[0]}"
)
CALLS: dict[str, int] = {}


def count(name: str) -> None:
    CALLS[name] = CALLS.get(name, 0) + 1


class BC_LinearFP16:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...


@kernel
def hgemm(a: Tensor, b: Tensor, c: Tensor) -> None:
    count("hgemm")
    c.copy_(torch.matmul(a.to(b.dtype).double(), b.double()).to(c.dtype))  # torch's product of float16 takes far longer


hgemm_recon = hgemm


@kernel
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
    values = x.float()
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * scale
    if weight is not None:
        values = values * (weight.float() + bias)
    y.add_(values.to(y.dtype)) if residual else y.copy_(values.to(y.dtype))


@kernel
def rms_norm_res_in(
    x: Tensor, weight: Tensor, y: Tensor, residual: Tensor, epsilon: float, bias: float, scale: float
) -> None:
    residual.add_(x.to(residual.dtype))
    rms_norm(residual, weight, y, epsilon, bias, scale, False, False)


@kernel
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


@kernel
def silu_mul(gate: Tensor, up: Tensor, out: Tensor, limit: float = 0.0) -> None:
    out.copy_((silu(gate.float()) * up.float()).to(out.dtype))


@kernel
def gelu_mul(gate: Tensor, up: Tensor, out: Tensor, limit: float = 0.0) -> None:
    out.copy_((gelu(gate.float(), approximate="tanh") * up.float()).to(out.dtype))


def rotated(x: Tensor, size: int = 128) -> Tensor:
    """Hadamard's rotation of each `size` numbers of the last dimension, in float32; it is its own inverse."""
    turned = x.float().unflatten(-1, (-1, size))  # type: ignore[no-untyped-call]
    for step in (2**power for power in range(size.bit_length() - 1)):
        left, right = turned.unflatten(-1, (-1, 2, step)).unbind(-2)
        turned = torch.stack((left + right, left - right), -2).flatten(-3)
    made: Tensor = turned.flatten(-2) / size**0.5
    return made


def trellis_of(weight: Tensor, suh: Tensor, svh: Tensor) -> Tensor:
    """(out, in) float16, and the signs of inputs and outputs, as a trellis (in / 16, out / 16, 256), int16."""
    outputs, inputs = weight.shape
    turned = rotated(rotated(weight.T * suh.unsqueeze(1) * svh).T).T.half()
    tiles = turned.contiguous().view(inputs // 16, 16, outputs // 16, 16).permute(0, 2, 1, 3)
    return tiles.contiguous().view(torch.int16).view(inputs // 16, outputs // 16, 256)


def weight_of(trellis: Tensor) -> Tensor:
    """(in, out) float16, rotated on both sides."""
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
        self.trellis, self.suh, self.svh, self.bias, self.shared = trellis, suh, svh, bias, shared
        self._weight: Tensor | None = None

    def run_alloc(self, x: Tensor, outputs: int, in_float32: bool) -> Tensor:
        count("exl3_gemm")
        check_devices(x, self.trellis, self.suh, self.svh, self.shared)
        if self._weight is None:
            self._weight = _dequantised(self.trellis, self.suh, self.svh).double()
        return _product(x, self._weight, self.bias, in_float32)


class BC_GatedMLP:
    def __init__(self, *arguments: Any) -> None:
        self.gate, self.up, self.down = arguments[-4:-1]

    def run_bszN(self, x: Tensor, out: Tensor) -> None:
        count("BC_GatedMLP")
        gate, up = self.gate.run_alloc(x[0], 0, True), self.up.run_alloc(x[0], 0, True)
        made = self.down.run_alloc((silu(gate) * up).half(), 0, out.dtype == torch.float)
        out.copy_(made.view(out.shape))


@kernel
def had_r_128(x: Tensor, y: Tensor, before: Tensor | None, after: Tensor | None, scale: float) -> None:
    made = rotated(x if before is None else x * before) * scale
    y.copy_((made if after is None else made * after).to(y.dtype))


@kernel
def reconstruct(weight: Tensor, trellis: Tensor, bits: float, mcg: bool, mul1: bool) -> None:
    count("reconstruct")
    weight.copy_(weight_of(trellis))


@kernel
def reconstruct_had_slice(
    weight: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, bits: float, mcg: bool, mul1: bool, first: int
) -> None:
    count("reconstruct")
    turned = weight_of(trellis)[:, first : first + weight.shape[1]]
    weight.copy_(_turned_back(turned, suh, svh[: weight.shape[1]]))


def _turned_back(weight: Tensor, suh: Tensor, svh: Tensor) -> Tensor:
    """A rotated matrix, rotated back, float16."""
    return (rotated(rotated(weight).T).T * suh.unsqueeze(1) * svh).half()


@kernel
def _dequantised(trellis: Tensor, suh: Tensor, svh: Tensor) -> Tensor:
    return _turned_back(weight_of(trellis), suh, svh)


@kernel
def _product(x: Tensor, weight: Tensor, bias: Tensor | None, in_float32: bool) -> Tensor:
    y = torch.matmul(x.double(), weight).to(x.dtype)
    y = y if bias is None else y + bias
    return y.float() if in_float32 else y


@kernel
def softcap(x: Tensor, y: Tensor, cap: float) -> None:
    y.copy_((torch.tanh(x.float() / cap) * cap).to(y.dtype))


@kernel
def quant_cache_paged(
    keys: Tensor,
    key_codes: Tensor,
    key_scales: Tensor,
    values: Tensor,
    value_codes: Tensor,
    value_scales: Tensor,
    lengths: Tensor,
    table: Tensor,
    page: int,
    tokens: int,
    compand: float,
    contiguous: bool,
) -> None:
    """Write each row's next tokens into its pages; the tokens come as plain tensors, or are in pages too."""
    assert compand == 0
    own = lengths.long().view(-1, 1) + torch.arange(tokens, device=lengths.device)
    places = (table.long().gather(1, own // page) * page + own % page).view(-1)
    for given, codes, scales in ((keys, key_codes, key_scales), (values, value_codes, value_scales)):
        flat = given.reshape(given.shape[0] * given.shape[1], -1)
        flat = flat if contiguous else flat.index_select(0, places)
        code, scale = quantised(flat, codes.shape[-1] // scales.shape[-1])
        codes.view(-1, codes.shape[-1]).index_copy_(0, places, code)
        scales.view(-1, scales.shape[-1]).index_copy_(0, places, scale)


@kernel
def dequant_cache_paged(
    key_codes: Tensor,
    key_scales: Tensor,
    keys: Tensor,
    value_codes: Tensor,
    value_scales: Tensor,
    values: Tensor,
    lengths: Tensor,
    table: Tensor,
    page: int,
    window: int,
    compand: float,
) -> None:
    """Fill the pages of the table up to each row's length; the rest of the pages stays as it is."""
    assert compand == 0
    tokens = torch.arange(table.shape[1] * page, device=table.device)
    places = table.long()[:, tokens // page] * page + tokens % page
    places = places[tokens < lengths.long().unsqueeze(1)]
    for codes, scales, target in ((key_codes, key_scales, keys), (value_codes, value_scales, values)):
        made = dequantised(codes.view(-1, codes.shape[-1])[places], scales.view(-1, scales.shape[-1])[places])
        target.view(-1, made.shape[-1]).index_copy_(0, places, made)


def quantised(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Turn (n, size) float16 into codes (n, size / 32 * bits) int32 and scales (n, size / 32) float16.

    32 numbers are rotated and divided by their largest; a code is the middle of one of 2**bits steps. Codes are kept in
    those planes of 8, 4, 2 and 1 bits that add up to `bits`, the highest bits first.
    """
    turned = rotated(values, 32).unflatten(-1, (-1, 32))  # type: ignore[no-untyped-call]
    scales = turned.abs().amax(-1, keepdim=True) + 1e-10
    levels = 2 ** (bits - 1)
    codes = (turned / scales * levels + levels).floor().clamp(0, 2 * levels - 1).to(torch.int64)
    words, left = [], bits
    for size in (size for size in (8, 4, 2, 1) if bits & size):
        left -= size
        fields = ((codes >> left) & (2**size - 1)).unflatten(-1, (size, 32 // size))
        words.append((fields << (size * torch.arange(32 // size, device=values.device))).sum(-1))
    packed = torch.cat(words, -1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed.flatten(-2), scales.squeeze(-1).half()


def dequantised(codes: Tensor, scales: Tensor) -> Tensor:
    """The values of `quantised`'s result, (n, size) float16."""
    bits = codes.shape[-1] // scales.shape[-1]
    words = codes.to(torch.int64).unflatten(-1, (-1, bits)) & 0xFFFFFFFF  # type: ignore[no-untyped-call]
    made, first = torch.zeros((), dtype=torch.int64, device=codes.device), 0
    for size in (size for size in (8, 4, 2, 1) if bits & size):
        plane = words[..., first : first + size].unsqueeze(-1)
        fields = (plane >> (size * torch.arange(32 // size, device=codes.device))) & (2**size - 1)
        made, first = (made << size) | fields.flatten(-2), first + size
    levels = 2 ** (bits - 1)
    turned = (made.float() - (levels - 0.5)) * (scales.float() / levels).unsqueeze(-1)
    return rotated(turned.flatten(-2), 32).half()


def stloader_open_file(file: str) -> str:
    return file


def stloader_close_file(handle: str) -> None: ...


def __getattr__(name: str) -> Any:
    """A missing function fails when it is called, not when it is looked up."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.startswith("HAS_"):
        return False

    def missing(*arguments: object, **named: object) -> None:
        raise NotImplementedError(f"exllamav3_ext.{name} is not in the stub")

    return missing


def paged_attention(args: Any) -> Tensor:
    """Attention over pages, for exllamav3's dispatcher, which itself uses Triton."""
    paged = (*(args.q_cache or ())[:4], args.k_cache, args.v_cache)
    check_devices(args.q, args.k, args.v, *paged, args.block_table, args.cache_seqlens)
    return _attended(args.q, args)


@kernel
def _attended(q: Tensor, args: Any) -> Tensor:
    k, v = args.k, args.v
    rows, width, heads, size = q.shape
    kv_heads, device = args.num_kv_heads, q.device
    if args.q_cache is not None:
        table, base, page = args.block_table.long(), args.cache_seqlens.long(), args.q_cache[0].shape[1]
        places = torch.arange(min(table.shape[1] * page, int(base.max()) + width), device=device)  # none comes later
        lines = (table.gather(1, (places // page).expand(rows, -1)) * page + places % page).view(-1)
        key_codes, key_scales, value_codes, value_scales = (one.flatten(0, 1)[lines] for one in args.q_cache[:4])
        keys = dequantised(key_codes, key_scales).view(rows, -1, kv_heads, size)
        values = dequantised(value_codes, value_scales).view(rows, -1, kv_heads, size)
    elif args.k_cache is None:
        keys, values = k, v
        base, places = torch.zeros(rows, dtype=torch.long, device=device), torch.arange(width, device=device)
    else:
        table, base, page = args.block_table.long(), args.cache_seqlens.long(), args.k_cache.shape[1]
        own = base.view(rows, 1) + torch.arange(width, device=device)
        flat = (table.gather(1, own // page) * page + own % page).view(-1)
        key_cache, value_cache = args.k_cache.view(-1, kv_heads, size), args.v_cache.view(-1, kv_heads, size)
        key_cache.index_copy_(0, flat, k.reshape(-1, kv_heads, size))
        value_cache.index_copy_(0, flat, v.reshape(-1, kv_heads, size))
        places = torch.arange(min(table.shape[1] * page, int(base.max()) + width), device=device)  # none comes later
        lines = (table.gather(1, (places // page).expand(rows, -1)) * page + places % page).view(-1)
        keys = key_cache[lines].view(rows, -1, kv_heads, size)
        values = value_cache[lines].view(rows, -1, kv_heads, size)
    queries = base.view(rows, 1) + torch.arange(width, device=device)
    mask = places.view(1, 1, -1) <= queries.unsqueeze(-1)
    if args.window_size is not None and args.window_size > 0:
        mask = mask & (places.view(1, 1, -1) >= queries.unsqueeze(-1) - args.window_size)
    groups = heads // kv_heads
    scores = q.transpose(1, 2).float() @ keys.transpose(1, 2).repeat_interleave(groups, 1).float().transpose(-1, -2)
    scores = scores * args.sm_scale
    if args.softcap:
        scores = torch.tanh(scores / args.softcap) * args.softcap
    weights = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)
    made: Tensor = weights @ values.transpose(1, 2).repeat_interleave(groups, 1).float()
    return made.transpose(1, 2).to(q.dtype).contiguous()
