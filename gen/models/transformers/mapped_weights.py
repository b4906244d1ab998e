"""Weights that stay in the file that they were loaded from: only the parts that were read take memory.

Example: of an embedding of 49152 rows, a text reads those of its own tokens. The system reads a row in, with some rows
around it, when a text needs it, and drops it again when memory is short, as it does with programs.
"""

import mmap

import torch
from torch import Tensor


def left_in_file(weight: Tensor) -> Tensor | None:
    """The same numbers, in a mapping of just their bytes in the file that they were loaded from.

    safetensors maps a file as a whole, and keeps it mapped as long as one of its tensors exists. In both mappings,
    changes stay in memory, and you may delete or replace the file, but must not write over it in place.

    Args:
        weight: contiguous, on a CPU.
    Returns:
        None if its memory is not a file's, or the file has other bytes now.
    """
    address = weight.data_ptr()
    try:
        with open("/proc/self/maps", encoding="utf-8") as lines:
            path, offset = next(found for line in lines if (found := _file_at(line, address, weight.nbytes)))
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        with open(path, "rb") as file:
            memory = mmap.mmap(file.fileno(), offset - start + weight.nbytes, access=mmap.ACCESS_COPY, offset=start)
    except (OSError, ValueError, StopIteration):  # ValueError: the file is shorter now
        return None
    mapped = torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=offset - start)
    if not torch.equal(mapped.view(torch.uint8), weight.detach().reshape(-1).view(torch.uint8)):
        return None
    memory.madvise(mmap.MADV_DONTNEED)  # drop what the comparison has read
    return mapped.view(weight.shape)


def _file_at(line: str, address: int, size: int) -> tuple[str, int] | None:
    """The file that a line of /proc/self/maps has at an address, and the offset in it; None if it has none there.

    Example of a line: `7f7774600000-7f7784699000 rw-p 00000000 fe:00 5595287    /models/model.safetensors`.
    """
    addresses, _, offset, _, _, *path = line.rstrip("\n").split(maxsplit=5)
    begin, end = (int(limit, 16) for limit in addresses.split("-"))
    if not path or not begin <= address <= address + size <= end:
        return None
    return path[0], int(offset, 16) + address - begin
