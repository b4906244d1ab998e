"""Linear layers of a step on a CPU: the same products by kernels that read large weights faster than MKL's do.

A step's product has few rows, and takes as long as it takes to read its weights. MKL is torch's usual choice. With one
row it waits for memory; with more it first copies the weights into another layout. oneDNN reads them as they are. For
one row, gen computes the row twice with rows and columns exchanged, for which MKL has a kernel without copies. Example:
in the linear layers of SmolLM2-135M in float32, one row takes 46 ms with torch and 30 ms here, two rows 78 and 53 ms,
eight rows 77 and 72 ms. That is on an AMD CPU. On an Intel CPU, four to fifteen rows gain: eight take 99 and 78 ms.

A step that reads four tokens of one text has four rows, and there rows and columns are exchanged too, if the rows are
short: four take 40 ms then, and 58 ms with oneDNN. Plain steps of several texts go without it, since MKL sums two,
three and four rows in unlike orders, and with `exact=True` a text must not change with the number of texts.

Weights stay as they are, and only gen's own steps do this: a model's forward outside of them, in any thread, does not
change. Which kernel runs depends on the machine, the model and the number of rows, never on a measurement: the same
call gives the same bits in every process.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

_LARGE = 2**16  # numbers of a layer; with fewer, the call costs more than it gains
_BEYOND_CACHES = 2**25  # numbers of all of them
_FASTER = {"AuthenticAMD": range(1, 2**31), "GenuineIntel": range(4, 16)}  # rows of a product, with AVX-512
_EXCHANGED = {"AuthenticAMD": range(2, 5)}  # the same for rows that are tokens of a text
_SHORT = 896  # numbers of such a row


def is_worth_it(model: nn.Module) -> bool:
    """Whether steps of a model are faster with `Products`: its weights do not fit into caches, and the CPU is known."""
    large = {id(weight): weight.numel() for weight in model.parameters() if _serves(weight)}
    return sum(large.values()) >= _BEYOND_CACHES and bool(_rows())


class Products(TorchFunctionMode):
    """In the block, this thread's linear layers of large float32 parameters on a CPU are computed by `product`.

    Args:
        wide: whether rows are several tokens of a text: few short ones are then computed by `exchanged`.
    """

    def __init__(self, *, wide: bool = False) -> None:
        super().__init__()
        self._wide = wide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is linear and _replaces(*args, **kwargs):
            return (exchanged if self._wide and _is_exchanged(*args, **kwargs) else product)(*args, **kwargs)
        return func(*args, **kwargs)


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like `torch.nn.functional.linear`, with the same names of arguments; two rows and more are summed in one order.

    Args:
        input: (..., inputs), float32, on the CPU; at least one row.
        weight: (outputs, inputs), contiguous.
        bias: (outputs,).
    Returns:
        (..., outputs), contiguous. Host sync: none.
    """
    if has_torch_function((input,)):
        made: Tensor = handle_torch_function(product, (input,), input, weight, bias)  # a recording keeps this call
        return made
    if input.numel() > input.shape[-1]:
        made = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
        return made
    twice = torch.mm(weight, input.reshape(1, -1).repeat(2, 1).t())
    row = twice[:, 0].contiguous() if bias is None else twice[:, 0] + bias
    return row.view(*input.shape[:-1], -1)


def exchanged(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like `product`, for few rows, whose order of sums depends on how many they are."""
    if has_torch_function((input,)):
        made: Tensor = handle_torch_function(exchanged, (input,), input, weight, bias)
        return made
    made = torch.mm(weight, input.reshape(-1, input.shape[-1]).t()).t()
    made = made.contiguous() if bias is None else torch.add(made, bias).contiguous()
    return made.view(*input.shape[:-1], -1)


def _rows() -> range:
    """How many rows `product` may have here."""
    return _FASTER.get(_maker(), range(0))


@cache
def _maker() -> str:
    """Who made this CPU; "" where the kernels were not compared, or without oneDNN."""
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch._C._has_mkldnn:
        return ""
    return next((maker for maker in _FASTER if maker in about), "")


def _is_exchanged(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `exchanged` computes a product that is replaced."""
    length = input.shape[-1]
    return length <= _SHORT and input.numel() // length in _EXCHANGED.get(_maker(), range(0))


def _replaces(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not torch._C._get_mkldnn_enabled():
        return False
    plain = type(input) is Tensor and input.dtype == torch.float32 and input.is_cpu
    served = plain and input.numel() // input.shape[-1] in _rows() and _serves(weight)
    return served and torch.get_float32_matmul_precision() == "highest"


def _serves(weight: Any) -> bool:
    """Whether a weight is a large, contiguous float32 matrix in the CPU's memory, and not of a subclass."""
    if type(weight) is not nn.Parameter or weight.dtype != torch.float32 or not weight.is_cpu:
        return False
    return weight.dim() == 2 and weight.numel() >= _LARGE and weight.is_contiguous()
