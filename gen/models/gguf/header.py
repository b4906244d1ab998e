"""A GGUF file's header, by transformers' reader: metadata and where tensors are, checked against the file's size.

The functions of the reader that take all types of tensors have private names; those that do not would refuse Q5_0,
which llama.cpp writes beside Q4_K where a row is no multiple of 256 wide.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gen.errors import ModelError, show_path

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGMLQuantizationType

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the file: its shape in torch's order, its type, and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    type: "GGMLQuantizationType"
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of a GGUF file.

    Attributes:
        metadata: values by key; for an array of strings, such as the vocabulary, its length.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights if all are stored as plain numbers, float32 if any is quantised."""
        types = {tensor.type.name for tensor in self.tensors}
        halves = [_FLOATS[name] for name in ("BF16", "F16") if name in types]
        return halves[0] if halves and types <= set(_FLOATS) else torch.float32

    def get(self, key: str) -> Any:
        """A value under the architecture's name, such as "rope.freq_base"; None if the file does not have it."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path) -> Header:
    """Read and check a file's header, without reading tensors.

    Raises:
        ModelError: there is no such file, it is no whole GGUF file or holds no model, or the gguf package is missing.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise ModelError(f"cannot read {show_path(path)}: {error.strerror}.") from error
    if start[:4] != b"GGUF":
        came = f"it begins with {start!r}" if start else "it is empty"
        raise ModelError(
            f"{show_path(path)} is no GGUF file: {came}. For other formats give the model's folder, and programs of "
            "torch.export to gen.from_exported."
        )
    version = int.from_bytes(start[4:], "little")
    if len(start) == 8 and version not in (2, 3):
        raise ModelError(
            f"{show_path(path)} is GGUF of version {version}; gen reads versions 2 and 3, little-endian: convert it "
            "with a recent llama.cpp."
        )
    if find_spec("gguf") is None:
        raise ModelError("GGUF files need the package gguf: pip install 'gen-torch[gguf]'")
    from transformers.integrations.gguf import reader

    try:
        data = reader._mapped(str(path))
        metadata, tensor_count, position = reader._read_metadata(data, str(path))
        infos, end = reader._read_tensor_table(data, tensor_count, position)
    except (struct.error, ValueError, OverflowError) as error:
        raise ModelError(f"{show_path(path)} is cut within its header or damaged ({error}); fetch it again.") from error
    _check_model(path, metadata)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{show_path(path)} is damaged: its alignment is {alignment!r}; fetch it again.")
    start = -(-end // alignment) * alignment
    tensors = tuple(_stored(path, start, *info) for info in infos)
    _check_types(path, {tensor.type for tensor in tensors})
    end = max((tensor.end for tensor in tensors), default=start)
    if end > len(data):
        raise ModelError(
            f"{show_path(path)} is cut: its tensors end at byte {end}, the file at {len(data)}; fetch it again."
        )
    return Header(path, metadata, tensors)


def dequantize(header: Header, tensor: StoredTensor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """A tensor's numbers in float32; they may be a read-only view of the file itself."""
    import gguf
    import numpy as np

    raw = np.memmap(header.path, mode="r")[tensor.begin : tensor.end]
    return gguf.dequantize(raw.reshape(gguf.quant_shape_to_byte_shape(tensor.shape, tensor.type)), tensor.type)


def _check_model(path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse a file without a whole model: a part of a split one, an adapter."""
    part = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", path.name)
    parts = metadata.get("split.count", 0)
    count = parts if isinstance(parts, int) and parts > 1 else int(part[2]) if part else 1
    if count > 1:
        raise ModelError(
            f"{show_path(path)} is one of {count} parts; merge them first with `llama-gguf-split --merge FIRST_PART "
            "WHOLE.gguf`."
        )
    if (kind := metadata.get("general.type", "model")) != "model":
        raise ModelError(f"{show_path(path)} holds no model, but one of type {kind!r}; give the model's own GGUF file.")


def _stored(path: Path, start: int, name: str, shape: tuple[int, ...], type_number: int, offset: int) -> StoredTensor:
    import gguf

    if type_number not in gguf.GGML_QUANT_SIZES:
        raise ModelError(f"{show_path(path)}: {name} has type {type_number}, which gguf does not know; upgrade gguf.")
    kind = gguf.GGMLQuantizationType(type_number)
    per_block, block_size = gguf.GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % per_block:
        raise ModelError(
            f"{show_path(path)} is damaged: {name} of shape {shape} cannot be {kind.name}; fetch it again."
        )
    begin = start + offset
    return StoredTensor(name, shape, kind, begin, begin + prod(shape) // per_block * block_size)


def _check_types(path: Path, kinds: "set[GGMLQuantizationType]") -> None:
    """Refuse types that cannot be dequantised, by a try on one block of each."""
    import gguf
    import numpy as np

    for kind in kinds:
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{show_path(path)} has weights of type {kind.name}, which gguf cannot dequantise; take a file of "
                "another type, such as Q8_0 or Q4_K_M."
            ) from error
