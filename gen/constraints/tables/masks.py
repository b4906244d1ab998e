"""Packed masks of allowed tokens, and how they are applied to logits.

Example: of the tokens 0 to 7, the first and the third are allowed. The mask is the byte 0b101, whose line in the table
is [0, -inf, 0, -inf, -inf, -inf, -inf, -inf]; to add the line to logits forbids the other tokens.
"""

import numpy as np
import torch
from torch import Tensor

from gen.devices import to_device
from gen.runtime.one_call import one_call


def bias_table(device: torch.device) -> Tensor:
    """What each byte of a mask adds to eight logits, the lowest bit first: (256, 8) float32, 0 or -inf."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return to_device(torch.from_numpy(np.where(bits, 0.0, -np.inf).astype(np.float32)), device)


def allow(logits: Tensor, masks: Tensor, table: Tensor, wanted: Tensor | None = None) -> Tensor:
    """Logits (n, vocab), float32, with -inf for tokens that are not allowed. On a CPU, float32 logits are changed in
    place. Host sync: none.

    Args:
        masks: (n, bytes) uint8, or whole numbers of more bytes.
        table: as `bias_table` gives it.
        wanted: (n,) bool; the other rows may get any values. A CPU leaves them as they are.
    """
    masks = masks.view(torch.uint8)
    if masks.is_cpu:
        logits = logits.float()
        _allow_(logits, masks, table, wanted)
        return logits
    lines = table.index_select(0, masks.view(-1).int()).view(len(masks), -1)[:, : logits.shape[1]]
    return torch.add(lines, logits, out=lines)  # without new memory: a third less time


@one_call
def _allow_(logits: Tensor, masks: Tensor, table: Tensor, wanted: Tensor | None) -> None:
    """`allow` on a CPU, with NumPy, which takes a tenth of torch's time there.

    Row by row, so that the added line stays in the processor's cache; rows often have the mask of the row before.
    """
    values, bits, lines = logits.numpy(), masks.numpy(), table.numpy()
    line = np.empty((bits.shape[1], 8), np.float32)
    flat = line.reshape(-1)[: values.shape[1]]
    before = b""
    for row in range(len(values)) if wanted is None else np.flatnonzero(wanted.numpy()):
        mask = bits[row].tobytes()
        if mask != before:
            np.take(lines, bits[row], axis=0, out=line, mode="clip")
            before = mask
        np.add(values[row], flat, out=values[row])
