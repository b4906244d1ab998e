"""Random EXL2 weights, made from the values that they stand for, so that a dequantiser's right result is known."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.exllama.checkpoints import change

BITS = (8, 6, 5, 4, 3, 2)  # of groups of 32 rows, in the order that exllamav2 requires


def random_exl2(
    inputs: int, outputs: int, generator: torch.Generator, *, bits: Sequence[int] = BITS, deviation: float = 0.2
) -> tuple[dict[str, Tensor], Tensor]:
    """A matrix in EXL2's form, and its values (outputs, inputs) in float16, in torch's layout.

    Args:
        bits: of the groups of 32 rows, which take them in turn; then the groups are sorted, the most bits first.
        deviation: roughly the standard deviation of the values.
    """
    groups = sorted((bits[number % len(bits)] for number in range(inputs // 32)), reverse=True)
    packed, rows, first, table = [], [], 0, []
    scales = torch.randint(8, 17, (len(groups), outputs), generator=generator)  # of 4 bits, squared
    largest = [deviation * 12**0.5 / 2**size * 1.6 for size in groups]
    for size, scale, most in zip(groups, scales, largest, strict=True):
        codes = torch.randint(0, 2**size, (32, outputs), generator=generator)
        packed.append(_pack(codes, size))
        unit = (torch.tensor(most).half() / 256).double()  # in float16, since the kernels multiply by it
        rows.append((codes - 2 ** (size - 1)).double() * scale.double() ** 2 * unit)
        table += [size, first]
        first += size
    order = torch.randperm(inputs, generator=generator)  # where each packed row belongs
    values = torch.empty(inputs, outputs, dtype=torch.float64)
    values[order] = torch.cat(rows)
    nibbles = (scales - 1).view(len(groups), -1, 8).numpy().astype(np.uint32)
    tensors = {
        "q_weight": torch.cat(packed),
        "q_invperm": torch.argsort(order).to(torch.int32),
        "q_scale": _numbers((nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)),
        "q_scale_max": torch.tensor(largest).half(),
        "q_groups": torch.tensor(table, dtype=torch.int16),
    }
    return tensors, values.T.half().contiguous()


def _pack(codes: Tensor, size: int) -> Tensor:
    """Pack (32, outputs) numbers of `size` bits as (size, outputs) int32: bits run down each column, lowest first."""
    bits = (codes.T.numpy().astype(np.uint8)[..., None] >> np.arange(size, dtype=np.uint8)) & 1
    packed = np.packbits(bits.reshape(codes.shape[1], 32 * size), axis=1, bitorder="little")
    return _numbers(packed.view(np.uint32).T)


def _numbers(unsigned: "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]") -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(unsigned).view(np.int32))


def save_exl2(folder: Path, plain: Path, *, bits: Sequence[int] = BITS) -> None:
    """Give a checkpoint random values that EXL2 can hold, and write it as EXL2 too.

    Args:
        folder: where the EXL2 checkpoint goes.
        plain: a checkpoint in float16, whose matrices get other values.
    """
    shutil.copytree(plain, folder)
    generator = torch.Generator().manual_seed(0)
    quantised, values = {}, {}
    for name, weight in sorted(load_file(plain / "model.safetensors").items()):
        if weight.dim() != 2 or "embed" in name:
            quantised[name] = values[name] = weight
            continue
        tensors, values[name] = random_exl2(weight.shape[1], weight.shape[0], generator, bits=bits)
        quantised |= {f"{name.removesuffix('.weight')}.{part}": tensor for part, tensor in tensors.items()}
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(quantised, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, quantization_config={"quant_method": "exl2", "bits": 4.0})
