"""Packed masks of allowed tokens, and how they get into logits.

Example: of the tokens 0 to 7 the first and the third are allowed. The mask is the byte 0b101, whose line in the table
is [0, -inf, 0, -inf, -inf, -inf, -inf, -inf]; adding it to logits forbids the others.
"""

import numpy as np
import torch
from torch import Tensor

from gen.devices import to_device


def bias_table(device: torch.device) -> Tensor:
    """What each byte of a mask adds to eight logits, the lowest bit first: (256, 8) float32, 0 or -inf."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return to_device(torch.from_numpy(np.where(bits, 0.0, -np.inf).astype(np.float32)), device)


def allow(logits: Tensor, masks: Tensor, table: Tensor, certain: Tensor | None = None) -> Tensor:
    """Logits (n, vocab) with -inf for what masks do not allow; float32. Host sync: none.

    Args:
        masks: (n, bytes) uint8, or whole numbers of more bytes; at least a bit for each token.
        table: as of `bias_table`.
        certain: (n, 1), int64: a token for each row whose logit is 0 whatever it was; `vocab` for none, for which masks
            then need a bit too.
    """
    lines = table.index_select(0, masks.view(torch.uint8).view(-1).int()).view(len(logits), -1)
    allowed = lines[:, : logits.shape[1]].add_(logits)  # in place: a third less time
    if certain is not None:
        lines.scatter_(1, certain, 0.0)
    return allowed
