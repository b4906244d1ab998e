"""Packed masks of allowed tokens, and how they get into logits.

Example: of the tokens 0 to 7 the first and the third are allowed. The mask is the byte 0b101, whose line in the table
is [0, -inf, 0, -inf, -inf, -inf, -inf, -inf]; adding it to logits forbids the others.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gen.devices import to_device

Mask = npt.NDArray[np.uint8]


def bias_table(device: torch.device) -> Tensor:
    """What each byte of a mask adds to eight logits, the lowest bit first: (256, 8) float32, 0 or -inf."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return to_device(torch.from_numpy(np.where(bits, 0.0, -np.inf).astype(np.float32)), device)


def lines_of(masks: Tensor, table: Tensor) -> Tensor:
    """What masks add to logits: (n, bits) float32. Host sync: none.

    Args:
        masks: (n, bytes) uint8, or whole numbers of more bytes.
        table: as of `bias_table`.
    """
    masks = masks.view(torch.uint8)
    if masks.is_cpu:
        made: Tensor = torch.ops.gen.mask_lines(masks, table)
        return made
    return table.index_select(0, masks.view(-1).int()).view(len(masks), -1)


def _mask_lines(masks: Tensor, table: Tensor) -> Tensor:
    """`lines_of` on a CPU, with NumPy, which takes a tenth of the time there; for torch one operation."""
    made = torch.empty((len(masks), masks.shape[1], 8), dtype=torch.float32, device="cpu")
    np.take(table.numpy(), masks.numpy(), axis=0, out=made.numpy(), mode="clip")
    return made.view(len(masks), -1)


if not hasattr(torch.ops.gen, "mask_lines"):  # torch keeps it where gen is imported again
    torch.library.define("gen::mask_lines", "(Tensor masks, Tensor table) -> Tensor")
    torch.library.impl("gen::mask_lines", "CPU", _mask_lines)


def allow(logits: Tensor, lines: Tensor, certain: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Logits (n, vocab) with -inf for what is not allowed; float32. Host sync: none.

    Args:
        lines: as of `lines_of`, at least a number for each token.
        out: of the same shape, where they are written; None for the memory of `lines`.
        certain: (n, 1), int64: for each row a token whose logit becomes 0; `vocab` for none, and then lines have
            a number for that too.
    """
    out = lines if out is None else out  # no fresh memory: a third less time
    allowed = torch.add(lines[:, : logits.shape[1]], logits, out=out[:, : logits.shape[1]])
    if certain is not None:
        out.scatter_(1, certain, 0.0)
    return allowed


class KeptLines:
    """What each row's mask adds to logits, kept from step to step on a CPU: within a string, a text's mask is most
    often that of the step before, so that it need not be unpacked again.

    Attributes:
        lines, out: (rows, bits), float32: see `allow`. What is in `out` lasts until the next step.
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        self.lines, self.out = (torch.zeros((rows, 8 * row_bytes), device="cpu") for _ in range(2))
        self._table = bias_table(self.lines.device).numpy()
        self._memory = self.lines.view(rows, row_bytes, 8).numpy()
        self._names: list[object] = [None] * rows

    def has(self, row: int, name: object) -> bool:
        """Whether a row has the mask of this name; masks of one name are equal, until they are forgotten."""
        return self._names[row] == name

    def write(self, row: int, name: object, mask: Mask) -> None:
        """Let a row have a mask, (bytes,) uint8."""
        np.take(self._table, mask, axis=0, out=self._memory[row], mode="clip")
        self._names[row] = name

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        return self.lines.nbytes + self.out.nbytes

    def forget(self, rows: slice) -> None:
        """Write what comes next to these rows whatever its name is."""
        self._names[rows] = [None] * len(self._names[rows])
