"""Keeps the caller's settings of torch out of what gen computes: a text must not depend on settings around the call.

gen changes settings of the thread while it computes, and restores them whenever it returns something, also between two
pieces of a stream. It does not change settings of the whole process, such as the default dtype and deterministic
algorithms, because other threads would see the change. The code names every dtype itself.
"""

from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def own_settings() -> Iterator[None]:
    """Turn off autocast, which would change the model's numbers and dtypes, and make the CPU the default device."""
    with ExitStack() as stack:
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def settings_of_the_process() -> Hashable:
    """The settings that a recorded or captured step depends on: with other settings it would run other kernels."""
    backends: Any = torch.backends
    cuda, matmul = backends.cuda, backends.cuda.matmul
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        *matmul_precisions(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_accumulation,
        cuda.preferred_blas_library(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cuda.fp16_bf16_reduction_math_sdp_allowed(),
        backends.cudnn.conv.fp32_precision,
    )


def matmul_precisions() -> tuple[str, ...]:
    """How torch multiplies matrices of float32, with CUDA and with oneDNN; where a program has set one of them alone,
    torch raises an error when it is asked for both."""
    backends: Any = torch.backends
    return backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision


def multiplies_whole() -> bool:
    """Whether matrices of float32 are multiplied with all of their digits."""
    return {*matmul_precisions()} <= {"ieee", "none"}


isolated = own_settings()
"""A decorator of functions, but not of generators, that run with `own_settings`."""
