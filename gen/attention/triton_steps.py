"""A step's attention by Triton's kernels: two launches, whose shapes only depend on the shapes of the tensors."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gen.attention import triton_kernels
from gen.attention.triton_kernels import PIECE

_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_LEAST = 16  # the smallest side of a matrix that tensor cores multiply
_BYTES = 2**14  # of keys that a program holds at a time: they fit into shared memory, with values and the next keys


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """As `gen.attention.steps.attend_rows`, but only the mask says what a row looks at; hidden columns are not read.

    A row's bits only depend on its own numbers. No host sync; it may be captured.

    Args:
        query: (n, heads, tokens, width), float32, float16 or bfloat16; `heads // key_heads * tokens` is at most 128.
        keys, values, mask: as for `attend_rows`, with the numbers of a column side by side; widths are at most 256.
    """
    count, heads, tokens, width = query.shape
    key_heads, view, value_width = keys.shape[1], keys.shape[2], values.shape[3]
    asked, pieces = heads // key_heads * tokens, triton.cdiv(view, PIECE)
    packed = query.reshape(count, key_heads, asked, width).contiguous()
    sizes = tiles(asked, width, value_width, query.dtype)
    answer = query.new_empty((count, tokens, heads, value_width))
    shape = (count, key_heads, pieces, sizes["ASKED"])
    bests, sums = torch.empty((2, *shape), dtype=torch.float32, device=query.device)
    parts = torch.empty((*shape, sizes["VALUE_WIDE"]), dtype=torch.float32, device=query.device)
    scale = width**-0.5 if scale is None else scale
    hidden = torch.finfo(mask.dtype).min / 2
    of_values = {name: sizes[name] for name in ("ASKED", "VALUE_WIDTH", "VALUE_WIDE")}
    with torch.cuda.device(query.device.index if query.is_cuda else -1):  # Triton launches on the current device
        triton_kernels.look[(count, key_heads, pieces)](
            packed,
            keys,
            values,
            mask,
            bests,
            sums,
            parts,
            scale,
            hidden,
            *keys.stride()[:3],
            *values.stride()[:3],
            mask.stride(0),
            mask.stride(2),
            asked,
            tokens,
            view,
            **sizes,
            num_stages=2,
        )
        triton_kernels.join[(count, key_heads)](bests, sums, parts, answer, asked, tokens, pieces, **of_values)
    return answer


def tiles(asked: int, width: int, value_width: int, dtype: torch.dtype) -> dict[str, Any]:
    """The sizes of the parts that a program works on; only the model's shape decides them, and so the bits."""
    wide, value_wide = (max(_LEAST, int(triton.next_power_of_2(size))) for size in (width, value_width))
    return {
        "ASKED": max(_LEAST, int(triton.next_power_of_2(asked))),
        "WIDTH": width,
        "VALUE_WIDTH": value_width,
        "WIDE": wide,
        "VALUE_WIDE": value_wide,
        "COLUMNS": max(_LEAST, min(64, _BYTES // (max(wide, value_wide) * dtype.itemsize))),
        "PIECE": PIECE,
        "MULTIPLIED": tl.float32 if triton.knobs.runtime.interpret else _TYPES[dtype],
    }
