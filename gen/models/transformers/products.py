"""Linear layers on a CPU: the same products by kernels that read large weights faster than MKL's do.

A step's product has few rows, and takes as long as it takes to read its weights. MKL is torch's usual choice. With one
row it waits for memory; with more it first copies the weights into another layout, at each step. oneDNN does so once:
gen keeps copies in its layout (see `gen.models.transformers.weight_copies`). Example: in the linear layers of
SmolLM2-135M in float32, one row takes 45 ms with torch and 31 ms here, four rows 63 and 31 ms, eight rows 73 and 41 ms,
a prompt of 64 tokens 225 and 167 ms. That is on an AMD CPU. On an Intel CPU, four to fifteen rows gain.

Of fewer than four rows, those that lack are zeros: so rows are summed in one order, however many they are. Without
AVX-512 oneDNN is slower; there a single row is computed twice with rows and columns exchanged, for which MKL has a
kernel that reads the weights as they are: one row takes 47 ms with torch and 31 ms so, eight rows 73 and 57 ms.

If memory has no room for copies, oneDNN reads the weights as they are, and single rows are computed twice.

In bfloat16 torch uses oneDNN, and brings the weights into its layout at each step. With copies the same numbers come
from the same kernels: one row takes 36 ms with torch and 22 ms here, eight rows 45 and 26 ms. Without room for copies
torch's own kernels run.

The model's weights stay as they are, and only gen's own forwards do this: a model's forward outside of them, in any
thread, does not change. Which kernel runs depends on the machine, the model and the number of rows, never on a
measurement: the same call gives the same bits in every process.
"""

import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from gen.cpu_memory import total_bytes
from gen.models.transformers.weight_copies import WeightCopies, copy_of, fits

logger = logging.getLogger("gen")

_LARGE = 2**16  # numbers of a layer; with fewer, the call costs more than it gains
_BEYOND_CACHES = 2**25  # numbers of all of them
_FASTER = {  # rows of a product, by the maker of the CPU, its instructions and the dtype
    ("AuthenticAMD", "AVX2", torch.float32): range(1, 2**31),
    ("AuthenticAMD", "AVX512", torch.float32): range(1, 2**31),
    ("AuthenticAMD", "AVX512", torch.bfloat16): range(1, 2**31),
    ("GenuineIntel", "AVX512", torch.float32): range(4, 16),
}
_LEAST = 4  # rows that oneDNN sums in the order of many, from a copy


def weights_for(model: nn.Module) -> list[Tensor]:
    """The weights of a model with which `Products` is faster; none if they all fit into caches, or on unknown CPUs."""
    large: list[Tensor] = [one for one in model.parameters() if _serves(one) and _rows(one.dtype)]  # each once
    return large if sum(weight.numel() for weight in large) >= _BEYOND_CACHES else []


def copies_of(weights: list[Tensor]) -> WeightCopies:
    """Let these weights be copied at their first product, if the machine's memory has room for that; log it."""
    if not weights or not fits(weights, total_bytes()):
        return WeightCopies([])
    size = sum(weight.nbytes for weight in weights)
    logger.info("weights are copied into oneDNN's layout, which is faster and takes %.0f MB more", size / 1e6)
    return WeightCopies(weights)


class Products(TorchFunctionMode):
    """In the block, this thread's linear layers of large parameters on a CPU are computed by `product`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is linear and _replaces(*args, **kwargs):
            return product(*args, **kwargs)
        return func(*args, **kwargs)


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like `torch.nn.functional.linear`, with the same names of arguments; two rows and more are summed in one order,
    and with a copy of the weight a single row too.

    Args:
        input: (..., inputs), float32 or bfloat16, on the CPU; at least one row.
        weight: (outputs, inputs), contiguous, of the same dtype.
        bias: (outputs,).
    Returns:
        (..., outputs), contiguous, of the same dtype. Host sync: none.
    """
    if has_torch_function((input,)):
        made: Tensor = handle_torch_function(product, (input,), input, weight, bias)  # a recording keeps this call
        return made
    count = input.numel() // input.shape[-1]
    copy = copy_of(weight)
    if copy is None and weight.dtype == torch.bfloat16:
        return linear(input, weight, bias)
    if count == 1 and (copy is None or torch.backends.cpu.get_cpu_capability() != "AVX512"):
        twice = torch.mm(weight, input.reshape(1, -1).repeat(2, 1).t())
        row = twice[:, 0].contiguous() if bias is None else twice[:, 0] + bias
        return row.view(*input.shape[:-1], -1)
    if copy is None or count >= _LEAST:
        made = torch.ops.mkldnn._linear_pointwise(input, weight if copy is None else copy, bias, "none", [], "")
        return made
    rows = pad(input.reshape(count, -1), (0, 0, 0, _LEAST - count))
    made = torch.ops.mkldnn._linear_pointwise(rows, copy, bias, "none", [], "")
    return made[:count].view(*input.shape[:-1], -1)


def _rows(dtype: torch.dtype) -> range:
    """How many rows `product` may have here."""
    return _FASTER.get((_maker(), torch.backends.cpu.get_cpu_capability(), dtype), range(0))


@cache
def _maker() -> str:
    """Who made this CPU; "" if that is unknown, or without oneDNN."""
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return next((maker for maker, *_ in _FASTER if maker in about), "") if torch._C._has_mkldnn else ""


def _replaces(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not torch._C._get_mkldnn_enabled():
        return False
    if type(input) is not Tensor or not input.is_cpu or not _serves(weight) or input.dtype != weight.dtype:
        return False
    exact = input.dtype == torch.bfloat16 or torch.get_float32_matmul_precision() == "highest"
    return exact and input.numel() // input.shape[-1] in _rows(input.dtype)


def _serves(weight: Any) -> bool:
    """Whether a weight is a large, contiguous matrix in the CPU's memory, and not of a subclass."""
    if type(weight) is not nn.Parameter or not weight.is_cpu or weight.dim() != 2 or weight.numel() < _LARGE:
        return False
    known = weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _multiplies_bfloat16())
    return known and weight.is_contiguous()


@cache
def _multiplies_bfloat16() -> bool:
    """Whether oneDNN has kernels in bfloat16 for this CPU; torch uses them then, too."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
