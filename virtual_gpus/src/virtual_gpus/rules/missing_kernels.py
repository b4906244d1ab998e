"""What CUDA computes and the CPU does not: CPU kernels that lack a dtype, or compute in another way. And operators
without a kernel on CUDA that the CPU has, and those that CUDA cannot compute deterministically.

Sources: the dtypes and dtypesIfCUDA of torch/testing/_internal/common_methods_invocations.py, which
tests/virtual_gpus/rules/test_missing_on_cuda.py compares with this table if that file can be imported; and the
documentation of torch.use_deterministic_algorithms.
"""

import warnings
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
    counts: Tensor = run(tensor if tensor.is_floating_point() else tensor.double(), *args, **kwargs)
    return counts.to(tensor.dtype)


def _product_of_dtype(run: Run, first: Tensor, second: Tensor, out_dtype: torch.dtype) -> Tensor:
    """A product of half precision that is added in float32, and is not rounded; only CUDA has it."""
    return torch.matmul(first.to(out_dtype), second.to(out_dtype))


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


_BY_NAME: dict[str, Run] = {
    "abs": _abs, "histc": _histc, "linalg_lstsq": _lstsq, "nansum": _nansum, "trace": _trace,
    "mm.dtype": _product_of_dtype, "bmm.dtype": _product_of_dtype,
}  # fmt: skip


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


Check = Callable[[dict[str, Any]], None]

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_HALVES = frozenset({torch.float16, torch.bfloat16})
_LONG = frozenset({torch.int64})
_BYTE = frozenset({torch.uint8})
_NAMES = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
}  # fmt: skip

# Operator: the dtypes that CUDA refuses, and the name of its kernel in the message.
LACKING: dict[str, tuple[frozenset[torch.dtype], str]] = {
    **dict.fromkeys(["mm", "addmm", "linear", "matmul", "_addmm_activation"], (_INTEGERS, "addmm_cuda")),
    **dict.fromkeys(["mv", "addmv"], (_INTEGERS, "addmv_impl_cuda")),
    **dict.fromkeys(["bmm", "baddbmm", "addbmm"], (_INTEGERS, "baddbmm_cuda")),
    "dot": (_INTEGERS, "dot"),
    "vdot": (_INTEGERS, "vdot"),
    **dict.fromkeys(
        ["convolution", "_convolution", "conv1d", "conv2d", "conv3d", "slow_conv3d_forward"],
        (_LONG, "slow_conv2d_cuda"),
    ),
    **dict.fromkeys(["max_pool2d", "max_pool2d_with_indices"], (_INTEGERS, "max_pool2d_with_indices_out_cuda_frame")),
    "max_pool3d_with_indices": (_INTEGERS, "max_pool3d_with_indices_out_frame"),
    "avg_pool2d": (_LONG, "avg_pool2d_out_cuda_frame"),
    "avg_pool3d": (_LONG, "avg_pool3d_out_cuda"),
    **dict.fromkeys(["upsample_bilinear2d", "_upsample_bilinear2d_aa"], (_BYTE, "upsample_bilinear2d_out_frame")),
    **dict.fromkeys(["upsample_bicubic2d", "_upsample_bicubic2d_aa"], (_BYTE, "upsample_bicubic2d_out_frame")),
    **dict.fromkeys(["igamma", "igamma_"], (_HALVES, "igamma_cuda")),
    **dict.fromkeys(["igammac", "igammac_"], (_HALVES, "igammac_cuda")),
    "angle": (_HALVES, "angle_cuda"),
    "histc": (_HALVES, "histc"),
}  # fmt: skip

# Operator: the reductions for which CUDA has no kernels for bools and complex numbers.
# Source: aten/src/ATen/native/cuda/ScatterGatherKernel.cu.
_REDUCING = {
    **dict.fromkeys(["scatter_reduce", "scatter_reduce_"], frozenset({"prod", "amin", "amax"})),
    **dict.fromkeys(["scatter", "scatter_"], frozenset({"multiply"})),
}

# Operators that have no kernel for CUDA at all.
ABSENT = frozenset({"histogram.bins_tensor", "histogram.bin_ct", "_histogramdd_from_bin_cts"})

# Operator: its name in the error of torch.use_deterministic_algorithms(True), and for which arguments it is refused.
_WITHOUT_ORDER: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "kthvalue": ("kthvalue CUDA", lambda named: True),
    "bincount": ("_bincount_cuda", lambda named: named.get("weights") is not None),
    "histc": ("_histc_cuda with floating point input", lambda named: named["self"].is_floating_point()),
    **dict.fromkeys(["median.dim", "median.dim_values"], ("median CUDA with indices output", lambda named: True)),
    **dict.fromkeys(["put", "put_"], ("put_", lambda named: named.get("accumulate", False))),
    "nll_loss2d_forward": ("nll_loss2d_forward_out_cuda_template", lambda named: True),
    "_ctc_loss_backward": ("ctc_loss_backward_gpu", lambda named: True),
    "_ctc_loss_backward.Tensor": ("ctc_loss_backward_gpu", lambda named: True),
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", lambda named: named["mode"] == 2),
    "max_unpool2d": ("max_unpooling2d_forward_out", lambda named: True),
    "max_unpool3d": ("max_unpooling3d_forward_out", lambda named: True),
    "adaptive_max_pool2d_backward": ("adaptive_max_pool2d_backward_cuda", lambda named: True),
    "_adaptive_avg_pool2d_backward": ("adaptive_avg_pool2d_backward_cuda", lambda named: True),
    "_adaptive_avg_pool3d_backward": ("adaptive_avg_pool3d_backward_cuda", lambda named: True),
    "avg_pool3d_backward": ("avg_pool3d_backward_cuda", lambda named: True),
    "fractional_max_pool2d_backward": ("fractional_max_pool2d_backward_cuda", lambda named: True),
    "fractional_max_pool3d_backward": ("fractional_max_pool3d_backward_cuda", lambda named: True),
    "max_pool3d_with_indices_backward": ("max_pool3d_with_indices_backward_cuda", lambda named: True),
    "reflection_pad1d_backward": ("reflection_pad1d_backward_out_cuda", lambda named: True),
    "reflection_pad2d_backward": ("reflection_pad2d_backward_cuda", lambda named: True),
    "reflection_pad3d_backward": ("reflection_pad3d_backward_out_cuda", lambda named: True),
    "replication_pad1d_backward": ("replication_pad1d_backward_cuda", lambda named: True),
    "replication_pad2d_backward": ("replication_pad2d_backward_cuda", lambda named: True),
    "replication_pad3d_backward": ("replication_pad3d_backward_cuda", lambda named: True),
    "upsample_linear1d_backward": ("upsample_linear1d_backward_out_cuda", lambda named: True),
    "upsample_bilinear2d_backward": ("upsample_bilinear2d_backward_out_cuda", lambda named: True),
    "upsample_bicubic2d_backward": ("upsample_bicubic2d_backward_out_cuda", lambda named: True),
    "upsample_trilinear3d_backward": ("upsample_trilinear3d_backward_out_cuda", lambda named: True),
    "grid_sampler_2d_backward": ("grid_sampler_2d_backward_cuda", lambda named: True),
    "grid_sampler_3d_backward": ("grid_sampler_3d_backward_cuda", lambda named: True),
}


def check_of(name: str) -> Check | None:
    """A function that raises for arguments which CUDA does not take; None if CUDA takes what the CPU takes."""
    lacking = LACKING.get(name.split(".")[0])
    without_order = _WITHOUT_ORDER.get(name)
    reductions = _REDUCING.get(name.split(".")[0])
    if name in ABSENT:
        return _absent(name)
    if reductions is not None and "reduce" in name:
        return lambda named: _refuse_reduction(named, reductions)
    if lacking is None and without_order is None:
        return None

    def check(named: dict[str, Any]) -> None:
        if lacking is not None:
            _refuse_dtypes(named, *lacking)
        if without_order is not None and torch.are_deterministic_algorithms_enabled() and without_order[1](named):
            _refuse_without_order(without_order[0])

    return check


def _absent(name: str) -> Check:
    def check(named: dict[str, Any]) -> None:
        raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend.")

    return check


def _refuse_dtypes(named: dict[str, Any], dtypes: frozenset[torch.dtype], kernel: str) -> None:
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    if tensors[0].dtype in dtypes and all(tensor.numel() for tensor in tensors):
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{_NAMES[tensors[0].dtype]}'")


def _refuse_reduction(named: dict[str, Any], reductions: frozenset[str]) -> None:
    target: Tensor = named["self"]
    if named["reduce"] in reductions and (target.is_complex() or target.dtype == torch.bool) and named["index"].numel():
        raise NotImplementedError(f"\"cuda_scatter_gather_base_kernel_func\" not implemented for '{target.dtype}'")


def _refuse_without_order(caller: str) -> None:
    message = (
        f"{caller} does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or you can "
        "use the 'warn_only=True' option, if that's acceptable for your application."
    )
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(message, UserWarning, stacklevel=3)
    else:
        raise RuntimeError(message)
