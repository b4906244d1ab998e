"""A case for each function of the stubs: it makes numbers, by which the stub is compared with the compiled extension.

If only one of the two has a format, such as EXL3 of 16 bits, the case makes differences that must be zero: between the
results of fused functions and the same computed step by step.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from gen.models.exllama.shared import import_exllama
from tests.models.exllama import exllamav3_ext
from tests.models.exllama.exl2 import random_exl2

NONE = torch.empty((1, 1), device="meta")  # exllamav2 gives this for no tensor


@dataclass(frozen=True)
class Case:
    """Numbers that some functions make.

    Attributes:
        names: the functions' names in the extension.
        make: takes the extension and a device.
        near: how far apart the numbers of the stub and of the compiled extension may be.
    """

    names: tuple[str, ...]
    make: Callable[[Any, torch.device], Sequence[Tensor]]
    near: float = 0.02


class Numbers:
    """Random numbers, the same ones on each device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._generator = device, torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float16) -> Tensor:
        return (scale * torch.randn(shape, generator=self._generator)).to(dtype).to(self._device)

    def whole(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator).to(dtype).to(self._device)

    def signs(self, size: int) -> Tensor:
        return (2 * self.whole(0, 2, size) - 1).half()


def _v2_norms(ext: Any, device: torch.device) -> list[Tensor]:
    numbers = Numbers(device)
    x, heads = numbers(5, 128), numbers(5, 4, 32)
    y, of_heads = torch.empty_like(x), torch.empty_like(heads)
    ext.rms_norm(x, numbers(128), y, 1e-5)
    ext.head_norm(heads, numbers(4, 32), NONE, of_heads, 1e-5, True)
    return [y, of_heads]


def _v2_rope(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    angles = numbers(1, 1, 64, 16).float().repeat(1, 1, 1, 2)
    offsets = torch.tensor([[0], [-3]], dtype=torch.int32, device=device)
    for past_len, given in ((0, NONE), (5, NONE), (0, offsets), (5, offsets)):
        x = numbers(2, 4, 4, 32)
        ext.rope_(x, angles.sin().half(), angles.cos().half(), past_len, 4, 32, given, True)
        made.append(x)
    return made


def _v2_softcap(ext: Any, device: torch.device) -> list[Tensor]:
    x = Numbers(device)(4, 64, scale=50)
    ext.softcap_(x, 30.0)
    return [x]


def _v2_read(ext: Any, device: torch.device) -> list[Tensor]:
    values = Numbers(torch.device("cpu"))(6, 32)
    found = torch.zeros(4, 32, dtype=torch.float16, device=device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "values")
        file.write_bytes(values.numpy().tobytes())
        ext.stloader_read(str(file), 2 * 32 * 2, found.nbytes, found)
    return [found, found.cpu() - values[2:]]


def _v2_caches(ext: Any, device: torch.device) -> list[Tensor]:
    """2 rows of 24 columns; columns are written in blocks of 8, which have 512 numbers."""
    numbers, made = Numbers(device), []
    for bits, sizes in ((4, (4, 4)), (6, (8, 4)), (8, (8, 8))):
        values = [numbers(2, 24, 2, 32) for _ in range(2)]
        codes = [torch.zeros(2, 24, 2, 4 * size, dtype=torch.uint8, device=device) for size in sizes]
        scales = [torch.zeros(2, 24, 2, 1, dtype=torch.float16, device=device) for _ in range(2)]
        written = [part for three in zip(values, codes, scales, strict=True) for part in three]
        ext.fp16_to_q_kv(*written, 2, 8, 16, 0, NONE, NONE, bits)
        for code, size in zip(codes, sizes, strict=True):
            made.append((code if size == 8 else torch.cat((code & 15, code >> 4), -1)).float())  # may differ by one
        made += [10 * scale for scale in scales]
        codes = [numbers.whole(0, 256, *code.shape, dtype=torch.uint8) for code in codes]
        read = [torch.zeros_like(value) for value in values]
        parts = [part for three in zip(codes, read, scales, strict=True) for part in three]
        ext.q_to_fp16_kv(*parts, 2, 8, 16, 0, NONE, NONE, bits)
        made += [100 * one for one in read]
    return made


def _matrix(ext: Any, numbers: Any, device: torch.device, inputs: int, outputs: int) -> tuple[int, Tensor, list[Any]]:
    """A handle of a random EXL2 matrix, its values (inputs, outputs), and what has to stay in memory."""
    tensors, values = random_exl2(inputs, outputs, torch.Generator().manual_seed(outputs), deviation=0.1)
    groups = ext.make_group_map(tensors["q_groups"], len(tensors["q_weight"]))
    perm = torch.argsort(tensors["q_invperm"]).short()
    tensors["q_scale_max"] = tensors["q_scale_max"] / 256
    names = ("q_scale", "q_scale_max", "q_groups")
    given = [tensors["q_weight"], perm, tensors["q_invperm"].short(), *(tensors[name] for name in names), groups]
    given = [tensor.to(device) for tensor in given]
    scratch = torch.empty(inputs * outputs, dtype=torch.float16, device=device)
    handle = ext.make_q_matrix(*given, NONE, NONE, NONE, NONE, scratch, inputs)
    return handle, values.T.to(device), [*given, scratch]


def _exl2_matrices(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    handle, values, kept = _matrix(ext, numbers, device, 192, 64)
    found = torch.empty(192, 64, dtype=torch.float16, device=device)
    ext.reconstruct(handle, found)
    made.append(1000 * (found - values))
    for rows in (1, 5, 100):  # kernels for few rows, and a product with dequantised weights
        x, y = numbers(rows, 192), torch.empty(rows, 64, dtype=torch.float16, device=device)
        ext.gemm_half_q_half(x, handle, y, False)
        made.append((y - x.float() @ values.float()) / 10)
    ext.free_q_matrix(handle)
    return made if kept else []


def _exl2_columns(ext: Any, device: torch.device) -> list[Tensor]:
    """These functions run only on the CPU."""
    numbers = Numbers(torch.device("cpu"))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    words, nibbles = numbers.whole(0, 2**31, 3, 64), numbers.whole(0, 2**31, 3, 8)
    ext.tensor_remap(words, order)
    ext.tensor_remap_4bit(nibbles, order)
    return [words >> 16, words & 0xFFFF, nibbles >> 16, nibbles & 0xFFFF]


def _exl2_attention(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    sizes = ((128, 128), (128, 64), (128, 64), (128, 128))
    handles, values, kept = zip(*(_matrix(ext, numbers, device, *size) for size in sizes), strict=True)
    norm, scratch = numbers(128), torch.empty(4096, dtype=torch.float16, device=device)
    dequantised = torch.empty(128 * 128, dtype=torch.float16, device=device)
    head = (norm, NONE, True, False, 1e-5, *handles, scratch, dequantised, 32, 128, 4, 2, 32, 64, True, 2, 32)
    layer = ext.make_q_attn(*head, NONE, NONE, NONE, NONE, False, True)
    angles = numbers(1, 1, 64, 16).float().repeat(1, 1, 1, 2)
    sin, cos = angles.sin().half(), angles.cos().half()
    lora = {"q": (numbers(128, 4, scale=0.1), numbers(4, 128, scale=0.1)), "o": (numbers(128, 4), numbers(4, 128))}
    for step, loras in ((3, []), (4, []), (5, []), (6, [7])):  # the third run is captured as a graph
        pairs = [{7: half} for half in (*lora["q"],)] + [{}] * 4 + [{7: half} for half in lora["o"]]
        rank = ext.q_attn_set_loras(layer, *(pairs if loras else [{}] * 8))
        x = numbers(2, 1, 128)
        q, k, v = (torch.empty(2, 1, size, dtype=torch.float16, device=device) for size in (128, 64, 64))
        room = torch.empty(rank * 32, dtype=torch.float16, device=device) if loras else NONE
        ext.q_attn_forward_1(layer, x, 2, 1, step, NONE, q, k, v, sin, cos, loras, room)
        ext.q_attn_forward_2(layer, x, q.clone(), 2, 1, loras, room)
        made += [q, k, v, x / 4]
    ext.free_q_attn(layer)
    for handle in handles:
        ext.free_q_matrix(handle)
    return made if kept and values else []


def _exl2_mlp(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    sizes = ((128, 256), (128, 256), (256, 128))
    handles, values, kept = zip(*(_matrix(ext, numbers, device, *size) for size in sizes), strict=True)
    norm = numbers(128)
    rooms = [torch.empty(32 * 256, dtype=torch.float16, device=device) for _ in range(4)]
    layer = ext.make_q_mlp(norm, NONE, True, 1e-5, *handles, *rooms, 32, False, True, NONE, NONE, False, True)
    gate, up, down = (value.float() for value in values)
    a, b = numbers(128, 4, scale=0.1), numbers(4, 256, scale=0.1)
    for loras in ([], [], [], [7]):
        rank = ext.q_mlp_set_loras(layer, *([{7: a}, {7: b}] if loras else [{}] * 2), *[{}] * 4)
        x = numbers(2, 1, 128)
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5) * norm
        expected = x + (silu(normed @ (gate + (a.float() @ b.float() if loras else 0))) * (normed @ up)) @ down
        room = torch.empty(rank * 32, dtype=torch.float16, device=device) if loras else NONE
        ext.q_mlp_forward_(layer, x, loras, room)
        made.append((x - expected) / expected.std())
    ext.free_q_mlp(layer)
    for handle in handles:
        ext.free_q_matrix(handle)
    return made if kept else []


V2 = [
    Case(("rms_norm", "head_norm"), _v2_norms),
    Case(("rope_",), _v2_rope),
    Case(("softcap_",), _v2_softcap, near=0.05),
    Case(("stloader_read",), _v2_read, near=0),
    Case(("fp16_to_q_kv", "q_to_fp16_kv"), _v2_caches, near=1),
    Case(("make_q_matrix", "make_group_map", "free_q_matrix", "reconstruct", "gemm_half_q_half"), _exl2_matrices),
    Case(("tensor_remap", "tensor_remap_4bit"), _exl2_columns, near=0),
    Case(("make_q_attn", "free_q_attn", "q_attn_forward_1", "q_attn_forward_2", "q_attn_set_loras"), _exl2_attention),
    Case(("make_q_mlp", "free_q_mlp", "q_mlp_forward_", "q_mlp_set_loras"), _exl2_mlp, near=0.05),
]


def _v3_norms(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    weight = numbers(128)
    for dtype, add in ((torch.float16, False), (torch.float32, False), (torch.float32, True)):
        x, y = numbers(5, 128), numbers(5, 128, dtype=dtype)
        ext.rms_norm(x, weight, y, 1e-5, 1.0, 1.0, False, add, 1)
        made.append(y)
    x, y, residual = numbers(5, 128), torch.empty(5, 128, dtype=torch.float16, device=device), numbers(5, 128)
    ext.rms_norm_res_in(x, weight, y, residual, 1e-5, 0.0, 1.0)
    return [*made, y, residual]


def _v3_rope(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    frequencies = numbers(16).float().abs()
    positions = torch.tensor([0, 7], dtype=torch.int32, device=device)
    for norms in ((None, None), (numbers(32), numbers(32))):
        q, k = numbers(2, 3, 4, 32), numbers(2, 3, 2, 32)
        out_q, out_k = torch.empty_like(q), torch.empty_like(k)
        given = (q, out_q, k, out_k, frequencies, 0, positions, None, 2, 1.0, *norms)
        ext.rope(*given, 1e-6, 0.0, 0.0, 0, 1, 0)
        made += [out_q, out_k]
    return made


def _v3_activations(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    for function in (ext.silu_mul, ext.gelu_mul):
        for dtype in (torch.float16, torch.float32):
            out = torch.empty(3, 128, dtype=torch.float16, device=device)
            function(numbers(3, 128, dtype=dtype), numbers(3, 128, dtype=dtype), out, 0.0)
            made.append(out)
    capped = torch.empty(3, 128, dtype=torch.float16, device=device)
    ext.softcap(numbers(3, 128, scale=50), capped, 30.0)
    return [*made, capped]


def _v3_products(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    for function in (ext.hgemm, ext.hgemm_recon):
        for dtype in (torch.float16, torch.float32):
            y = torch.empty(5, 256, dtype=dtype, device=device)
            function(numbers(5, 128), numbers(128, 256, scale=0.1), y)
            made.append(y)
    ext.BC_LinearFP16(numbers(128, 256), None)
    turned = torch.empty(5, 256, dtype=torch.float16, device=device)
    made.append(turned)
    ext.had_r_128(numbers(5, 256), turned, numbers.signs(256), None, 1.0)
    after = numbers(5, 256, dtype=torch.float32)
    ext.had_r_128(after, after, None, numbers.signs(256), 1.0)
    return [*made, after]


class _Trellis:
    """A random matrix in EXL3's form, of 4 bits, or of 16 for the stub."""

    def __init__(self, ext: Any, numbers: Numbers, device: torch.device, inputs: int, outputs: int) -> None:
        self.suh, self.svh = numbers.signs(inputs), numbers.signs(outputs)
        self.bits = 16 if ext is exllamav3_ext else 4
        if ext is exllamav3_ext:
            weight = numbers(outputs, inputs, scale=0.1)
            self.trellis = exllamav3_ext.trellis_of(weight, self.suh, self.svh)
        else:
            shape = (inputs // 16, outputs // 16, 16 * self.bits)
            self.trellis = numbers.whole(-(2**15), 2**15, *shape, dtype=torch.int16)
        room = torch.empty(1, inputs, dtype=torch.float16, device=device)
        given = (self.trellis, self.suh, self.svh, self.bits, None, False, True, room)
        self.kept, self.linear = room, ext.BC_LinearEXL3(*given)

    def by_steps(self, ext: Any, x: Tensor) -> Tensor:
        """x times the matrix: x is rotated, multiplied by the reconstructed weights and rotated back; float32."""
        weight = torch.empty(len(self.suh), len(self.svh), dtype=torch.float16, device=x.device)
        ext.reconstruct(weight, self.trellis, self.bits, False, True)
        turned = torch.empty_like(x)
        ext.had_r_128(x, turned, self.suh, None, 1.0)
        y = turned.float() @ weight.float()
        ext.had_r_128(y, y, None, self.svh, 1.0)
        return y


def _v3_exl3(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    matrix = _Trellis(ext, numbers, device, 128, 256)
    for rows in (1, 5):
        x = numbers(rows, 128)
        expected = matrix.by_steps(ext, x)
        for in_float32 in (False, True):
            found = matrix.linear.run_alloc(x, 256, in_float32)
            assert found.dtype == (torch.float32 if in_float32 else torch.float16)
            made.append((found - expected) / expected.std())
    whole = torch.empty(128, 128, dtype=torch.float16, device=device)  # the second half of the columns
    ext.reconstruct_had_slice(
        whole, matrix.trellis, matrix.suh, matrix.svh[128:].contiguous(), matrix.bits, False, True, 128
    )
    expected = matrix.by_steps(ext, x)[:, 128:]
    return [*made, (x.float() @ whole.float() - expected) / expected.std()]


def _v3_mlp(ext: Any, device: torch.device) -> list[Tensor]:
    numbers, made = Numbers(device), []
    gate, up, down = (_Trellis(ext, numbers, device, *size) for size in ((128, 256), (128, 256), (256, 128)))
    shapes = ((2, 8, 128), (2, 8, 256), (1, 8, 256), (1, 8, 256))
    rooms = [torch.empty(shape, dtype=torch.float16, device=device) for shape in shapes]
    given = (*rooms, None, None, None, 0, False, False, True, False, False, gate.linear, up.linear, down.linear, 0.0)
    mlp = ext.BC_GatedMLP(*given)
    for rows in (1, 1, 1, 3):  # captured as a graph from the second run on
        x, out = numbers(1, rows, 128, scale=0.1), torch.empty(1, rows, 128, dtype=torch.float32, device=device)
        mlp.run_bszN(x, out)
        held = (silu(gate.by_steps(ext, x[0])) * up.by_steps(ext, x[0])).half()
        expected = down.by_steps(ext, held)
        made.append((out[0] - expected) / expected.std())
    return made


def _v3_files(ext: Any, device: torch.device) -> list[Tensor]:
    with tempfile.NamedTemporaryFile() as file:
        ext.stloader_close_file(ext.stloader_open_file(file.name))
    return []


def _v3_caches(ext: Any, device: torch.device) -> list[Tensor]:
    """Rows of 3 and of 258 tokens that get 4 more, in pages of 256."""
    numbers, made = Numbers(device), []
    table = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32, device=device)
    lengths = torch.tensor([3, 258], dtype=torch.int32, device=device)
    for bits in (2, 3, 4, 5, 6, 7, 8):
        codes = [torch.zeros(4, 256, 2 * bits, dtype=torch.int32, device=device) for _ in range(2)]
        scales = [torch.zeros(4, 256, 2, dtype=torch.float16, device=device) for _ in range(2)]
        kinds = ((True, [numbers(2, 4, 2, 32) for _ in range(2)]), (False, [numbers(4, 256, 2, 32) for _ in range(2)]))
        for contiguous, values in kinds:
            parts = [part for three in zip(values, codes, scales, strict=True) for part in three]
            ext.quant_cache_paged(*parts, lengths, table, 256, 4, 0.0, contiguous)
            steps = [scale.float().amax() * 2 / 2**bits for scale in scales]  # rounding may differ by one
            read = [exllamav3_ext.dequantised(*part) for part in zip(codes, scales, strict=True)]
            made += [one / step / 8 for one, step in zip(read, steps, strict=True)]
        made += [10 * scale for scale in scales]
        codes = [numbers.whole(-(2**31), 2**31, 4, 256, 2 * bits) for _ in range(2)]
        read = [torch.zeros(4, 256, 2, 32, dtype=torch.float16, device=device) for _ in range(2)]
        ones = [torch.ones_like(scale) for scale in scales]
        parts = [part for three in zip(codes, ones, read, strict=True) for part in three]
        ext.dequant_cache_paged(*parts, lengths, table, 256, -1, 0.0)
        made += [one[2, :3] for one in read] + [one[1, :2] for one in read]
    return made


def _v3_attention(ext: Any, device: torch.device) -> list[Tensor]:
    """The stub's attention instead of Triton's kernels: over pages, with a window, a cap, and few bits."""
    import_exllama("exllamav3")
    dispatch: Any = import_exllama("exllamav3.modules.attention_fn.dispatch")
    cache: Any = import_exllama("exllamav3.cache")
    numbers, made = Numbers(device), []
    table = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32, device=device)
    shape = type("Shape", (), {"num_kv_heads": 2, "head_dim": 32})
    for layer_class, bits in ((cache.CacheLayer_fp16, ()), (cache.CacheLayer_quant, (8, 8))):
        for window, cap in ((-1, 0.0), (20, 0.0), (-1, 10.0)):
            layer = layer_class(None, shape, 0, 1024, *bits)
            layer.alloc(device)
            past = torch.tensor([0, 250], dtype=torch.int32, device=device)
            for width in (24, 1):
                q, k, v = numbers(2, width, 4, 32), numbers(2, width, 2, 32), numbers(2, width, 2, 32)
                given = {"cache": layer, "block_table": table, "cache_seqlens": past}
                y = dispatch.attn_dispatch(q, k, v, window_size=window, softcap=cap, **given)
                made.append(y.float() if width > 1 else y.float() / 2)
                past = past + width
    return made


V3 = [
    Case(("rms_norm", "rms_norm_res_in"), _v3_norms),
    Case(("rope",), _v3_rope),
    Case(("silu_mul", "gelu_mul", "softcap"), _v3_activations, near=0.05),
    Case(("hgemm", "hgemm_recon", "BC_LinearFP16", "had_r_128"), _v3_products),
    Case(("BC_LinearEXL3", "reconstruct", "reconstruct_had_slice"), _v3_exl3),
    Case(("BC_GatedMLP",), _v3_mlp, near=0.05),
    Case(("stloader_open_file", "stloader_close_file"), _v3_files),
    Case(("quant_cache_paged", "dequant_cache_paged"), _v3_caches, near=0.2),
    Case(("paged_attention",), _v3_attention, near=0.05),
]
CASES = {"exllamav2": V2, "exllamav3": V3}
