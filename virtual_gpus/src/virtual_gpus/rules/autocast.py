"""Autocast for "cuda": which operators compute in which precision on CUDA, which differs from the CPU's.

The casts use the dispatch key of a backend that is never present here, so that they come before autograd and leave the
CPU's own autocast alone. Weights are cast anew each time: torch's cache of them saves time and changes no value.
Source: the lists of aten/src/ATen/autocast_mode.h, and autocast_mode.cpp.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload

from virtual_gpus.machine import CPU, device_type
from virtual_gpus.rules.same_device import place_of

KEY = "AutocastIPU"

LOWER = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr",
    "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
    "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
FLOAT32_NORM = ("norm.Scalar", "norm.ScalarOpt_dim")
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip

# cuDNN's networks, which are compositions here. Source: aten/src/ATen/cudnn/AutocastRNN.cpp.
RECURRENT = tuple(f"{name}.{form}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data"))

_key = DispatchKey.AutocastIPU  # type: ignore[attr-defined]
_library: list[Any] = []


@contextmanager
def casting() -> Iterator[None]:
    """In the block, operators cast their arguments; torch excludes the keys of autocast unless they are included."""
    if not _library:
        _register()
    with torch._C._SetExcludeDispatchKeyGuard(_key, False), torch._C._IncludeDispatchKeyGuard(_key):
        yield


def forget() -> None:
    """Remove the kernels at the end of a block."""
    while _library:
        _library.pop()._destroy()


def _register() -> None:
    others = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    others.fallback(torch.library.fallthrough_kernel, KEY)  # type: ignore[no-untyped-call]
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _library.extend((library, others))
    for names, policy in (
        (LOWER + RECURRENT, _lower),
        (FLOAT32, _float32),
        (FLOAT32_RESULT, _float32_result),
        (FLOAT32_NORM, _float32_norm),
        (WIDEST, _widest),
        (("binary_cross_entropy",), _refused),
    ):
        for name in names:
            base, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, base, None)
            if packet is not None and (overload or "default") in packet.overloads():
                library.impl(name, _kernel(getattr(packet, overload or "default"), policy), KEY)  # type: ignore[no-untyped-call]


def _kernel(func: OpOverload, policy: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(_key)):
            return policy(func, args, kwargs)

    return kernel


def _eligible(value: Any) -> bool:
    floating = isinstance(value, Tensor) and place_of(value) != CPU and value.is_floating_point()
    return floating and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if _eligible(value) and value.dtype != dtype else value


def _run_in(func: OpOverload, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    return func(
        *(_cast(value, dtype) for value in args), **{name: _cast(value, dtype) for name, value in kwargs.items()}
    )


def _lower(func: OpOverload, args: Any, kwargs: Any) -> Any:
    return _run_in(func, args, kwargs, torch.get_autocast_dtype(device_type()))


def _float32(func: OpOverload, args: Any, kwargs: Any) -> Any:
    return _run_in(func, args, kwargs, torch.float32)


def _float32_result(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """With dtype=float32, unless a dtype was given; only half precision is eligible."""
    position = [argument.name for argument in func._schema.arguments].index("dtype")
    given = args[position] if len(args) > position else kwargs.get("dtype")
    if given is not None or not _eligible(args[0]):
        return func(*args, **kwargs)
    return func(*args[:position], **{**kwargs, "dtype": torch.float32})


def _float32_norm(func: OpOverload, args: Any, kwargs: Any) -> Any:
    if not _eligible(args[0]):
        return func(*args, **kwargs)
    if func._overloadname == "Scalar":
        return torch.ops.aten.norm.ScalarOpt_dtype(args[0], *(args[1:] or (2,)), dtype=torch.float32)
    named = dict(zip(("self", "p", "dim", "keepdim"), args, strict=False)) | kwargs
    return torch.ops.aten.norm.ScalarOpt_dim_dtype(
        named["self"], named["p"], named["dim"], named.get("keepdim", False), dtype=torch.float32
    )


def _widest(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Cast all arguments to the widest precision among them."""
    values = [item for value in args for item in (value if isinstance(value, list | tuple) else (value,))]
    wide = any(_eligible(value) and value.dtype == torch.float32 for value in values)
    return _run_in(func, args, kwargs, torch.float32 if wide else torch.get_autocast_dtype(device_type()))


def _refused(func: OpOverload, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer. In this case, combine the two "
        "layers using torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss."
    )
