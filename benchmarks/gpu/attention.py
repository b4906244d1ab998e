"""Attention of a step by itself: which of torch's backends runs on gen's masks and strides, and how long each takes.

As in `gen.attention.steps`, the queries of a key head lie side by side, keys and values are the first columns of longer
ones, and a float mask hides the columns that a row has not reached.
"""

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.decode import seconds_of
from benchmarks.gpu.reporting import Given, has_room, read
from gen.devices import native_cuda

ROWS, COLUMNS = (1, 8, 32, 256), (256, 4096, 32_768)
HEADS, KEY_HEADS, WIDTH = 32, 8, 128
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


def main() -> int:
    given = read(__doc__)
    for rows, columns in [(1, 64)] if given.small else product(ROWS, COLUMNS):
        given.report.add(f"{rows} x {columns}", lambda rows=rows, columns=columns: case(given, rows, columns))  # type: ignore[misc]
    return given.report.failed


def case(given: Given, rows: int, columns: int) -> dict[str, Any]:
    """Microseconds of each way, and of its first call, which may choose a kernel and compile it."""
    nbytes = 2 * 2 * rows * KEY_HEADS * columns * WIDTH
    if not has_room(3 * nbytes, given.device):  # a backend may copy keys and values
        return {
            "left out": f"keys and values of {nbytes / 1e9:.1f} GB, with copies of them, are over half of what is free"
        }
    with torch.inference_mode():
        made: dict[str, Any] = {}
        query, keys, values, mask = inputs(given.device, rows, columns)
        if native_cuda(query):
            made["chosen"] = SDPBackend(torch._fused_sdp_choice(query, keys, values, mask)).name

        def attend() -> Tensor:
            return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

        made["as chosen"] = timed(attend, given)
        for name in BACKENDS if native_cuda(query) else ():
            with sdpa_kernel(getattr(SDPBackend, name)):
                made[name] = timed(attend, given)
        made["gen's kernel"] = timed(lambda: own(query, keys, values, mask), given)
    return made


def inputs(device: torch.device, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and mask of a step, bfloat16: rows of several lengths in a cache with room for more."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.bfloat16).to(device)

    query = some(rows, KEY_HEADS, HEADS // KEY_HEADS, WIDTH)
    keys, values = (some(1, KEY_HEADS, columns + 32, WIDTH).repeat(rows, 1, 1, 1)[:, :, :columns] for _ in range(2))
    ends = torch.linspace(columns // 2, columns - 1, rows, device="cpu").long().to(device)
    seen = torch.arange(columns, device=device) <= ends.view(-1, 1, 1, 1)
    lowest = torch.full((), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16, device=device)
    return query, keys, values, torch.where(seen, torch.zeros_like(lowest), lowest)


def own(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    if not native_cuda(query):
        raise RuntimeError("virtual GPUs run no Triton kernels")
    from gen.attention import triton_steps  # needs triton

    return triton_steps.attend(query.flatten(1, 2).unsqueeze(2), keys, values, mask, None)


def timed(run: Callable[[], Tensor], given: Given) -> dict[str, Any]:
    try:
        first = seconds_of(run, given.device, repeats=1, rounds=1)
        later = seconds_of(run, given.device, repeats=1 if given.small else 10)
    except Exception as error:  # the backend does not take these inputs
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"us": round(1e6 * later, 1), "first call": round(1e6 * first, 1)}


if __name__ == "__main__":
    sys.exit(main())
