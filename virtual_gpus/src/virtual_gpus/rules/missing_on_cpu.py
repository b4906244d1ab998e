"""What CUDA computes and the CPU does not: CPU kernels that lack a dtype, or compute in another way.

Source: the dtypes and dtypesIfCUDA of torch/testing/_internal/common_methods_invocations.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

Run = Callable[..., Any]

_WIDER = {torch.complex32: torch.complex64, torch.float16: torch.float32, torch.bfloat16: torch.float32}
_NARROW = {torch.complex64: torch.complex32, torch.float32: torch.float16}

# Operators that the CPU lacks in a half precision in which CUDA has them.
_WIDENED = frozenset({
    "acos", "acosh", "add", "angle", "asin", "asinh", "atan", "atanh", "avg_pool3d", "avg_pool3d_backward",
    "convolution", "cos", "cosh", "cumprod", "div", "exp", "flip", "lerp", "log", "logaddexp", "mul",
    "multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_backward",
    "multilabel_margin_loss_forward", "polygamma", "pow", "prod", "round", "rrelu_with_noise", "rsqrt", "sigmoid",
    "sigmoid_backward", "sin", "sinh", "sqrt", "sub", "sum", "tan", "tanh", "tanh_backward", "trace",
    "_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward",
})  # fmt: skip


def stand_in(name: str, run: Run) -> Run:
    """The function to run for an operator: a stand-in if the CPU lacks a kernel, else `run`, the operator itself."""
    if name in _BY_NAME:
        return partial(_BY_NAME[name], run)
    base = name.split(".")[0]
    if base.removesuffix("_") not in _WIDENED:
        return run
    return partial(_widened_in_place if base.endswith("_") else _widened, run)


def _histc(run: Run, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Counts of whole numbers; the CPU counts only floating numbers."""
    if tensor.is_floating_point():
        counts: Tensor = run(tensor, *args, **kwargs)
        return counts
    counts = run(tensor.double(), *args, **kwargs)
    return counts.to(tensor.dtype)


def _abs(run: Run, tensor: Tensor) -> Tensor:
    """The absolute value, which the CPU lacks for bools."""
    made: Tensor = tensor.clone() if tensor.dtype == torch.bool else run(tensor)
    return made


def _trace(run: Run, tensor: Tensor) -> Tensor:
    """The sum of the diagonal, which the CPU lacks for bools."""
    made: Tensor = _widened(run, tensor.long() if tensor.dtype == torch.bool else tensor)
    return made


def _nansum(run: Run, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The sum of all numbers that are not NaN, which the CPU lacks for complex numbers."""
    if not tensor.is_complex():
        made: Tensor = run(tensor, *args, **kwargs)
        return made
    total = torch.where(tensor.isnan(), 0, tensor).to(_WIDER.get(tensor.dtype, tensor.dtype)).sum(*args, **kwargs)
    return total if "dtype" in kwargs else total.to(tensor.dtype)


def _lstsq(run: Run, *args: Any, driver: str | None = None, **kwargs: Any) -> Any:
    """Least squares by CUDA's only driver, which gives no rank. The CPU has others, and another default.

    Source: get_default_lstsq_driver in aten/src/ATen/native/BatchLinearAlgebra.cpp.
    """
    if driver is not None and driver.lower() != "gels":
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
    return run(*args, driver="gels", **kwargs)


_BY_NAME: dict[str, Run] = {"abs": _abs, "histc": _histc, "linalg_lstsq": _lstsq, "nansum": _nansum, "trace": _trace}


def _widened(run: Run, *args: Any, **kwargs: Any) -> Any:
    """An operator that is computed in single precision if the CPU lacks it in half precision."""
    try:
        return run(*args, **kwargs)
    except NotImplementedError:
        dtype = next((value.dtype for value in args if isinstance(value, Tensor) and value.dtype in _WIDER), None)
        if dtype is None or "out" in kwargs:
            raise
        return narrowed(run(*widened(args), **kwargs), dtype)


def _widened_in_place(run: Run, target: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same for an operator that changes its first operand."""
    try:
        return run(target, *args, **kwargs)
    except NotImplementedError:
        if target.dtype not in _WIDER:
            raise
        wide = target.to(_WIDER[target.dtype])
        run(wide, *widened(args), **kwargs)
        return target.copy_(wide)


def widened(values: Sequence[Any]) -> list[Any]:
    """Half precision tensors in single precision; the rest as it is."""
    return [
        value.to(_WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in _WIDER else value
        for value in values
    ]


def narrowed(value: Any, dtype: torch.dtype) -> Any:
    """Results in single precision back in the half precision of the operands."""
    if isinstance(value, tuple):
        return tuple(narrowed(item, dtype) for item in value)
    if not isinstance(value, Tensor) or value.dtype not in _NARROW:
        return value
    return value.to(dtype if dtype == torch.bfloat16 and value.is_floating_point() else _NARROW[value.dtype])


def half_fft(func: Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A Fourier transform in half precision, which cuFFT has for sizes that are powers of two.

    Raises:
        RuntimeError: the size is no power of two.
    """
    numbers = args[0]
    sizes = kwargs.get("n", args[1] if len(args) > 1 else None)
    to_real = getattr(func, "__name__", "").startswith(("fft_irfft", "fft_hfft"))
    size = sizes if isinstance(sizes, int) else 2 * (numbers.shape[-1] - 1) if to_real else numbers.shape[-1]
    if size & (size - 1):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a "
            f"signal size of [{size}]"
        )
    return narrowed(func(*widened(args), **kwargs), torch.float16)
