"""GGUF headers, and how files that are no whole model are refused; gguf's own writer makes the files."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import gen
from gen.errors import ModelError
from gen.models.gguf import header as gguf_header
from gen.models.gguf.header import dequantize, read_header
from tests.models.gguf.files import VOCABULARY, write_gguf

Q = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path)
    return path


def bare(path: Path, architecture: str, *, kind: Q | None = None, **metadata: object) -> Path:
    """A file with one tensor of zeros and very few keys."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    array = np.zeros((1, 256), np.float32) if kind is None else np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    writer.add_tensor("token_embd.weight", array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_header_is_what_ggufs_own_reader_finds(whole: Path) -> None:
    header, reader = read_header(whole), gguf.GGUFReader(whole)
    assert header.architecture == "llama"
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    expected |= {f"tokenizer.ggml.{name}": len(expected[f"tokenizer.ggml.{name}"]) for name in ("tokens", "merges")}
    assert len(expected) > 10
    assert {
        key: list(value) if isinstance(value, tuple) else value for key, value in header.metadata.items()
    } == expected
    assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in reader.tensors]
    for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert (ours.begin, ours.end) == (theirs.data_offset, theirs.data_offset + theirs.n_bytes)
        assert (ours.shape, ours.type) == (tuple(reversed(theirs.shape.tolist())), theirs.tensor_type)
        assert np.array_equal(dequantize(header, ours), theirs.data)


def test_a_file_that_is_cut_anywhere_is_refused_before_weights_are_read(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_header, "dequantize", pytest.fail)
    data, cut = whole.read_bytes(), tmp_path / "cut.gguf"
    end = read_header(whole).tensors[-1].end
    for length in {*range(8, 4000, 37), *range(4000, end, 4999), end - 1}:
        cut.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"is cut.*; fetch it again"):
            gen.load(cut)


def test_a_damaged_header_never_gives_another_error(whole: Path, tmp_path: Path) -> None:
    data, damaged = bytearray(whole.read_bytes()), tmp_path / "damaged.gguf"
    refused = 0
    for position in range(8, 1600, 3):
        damaged.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            read_header(damaged)
        except ModelError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no GGUF file: it is empty"),
        (b"PK\x03\x04" + bytes(100), r"is no GGUF file: it begins with b'PK\\x03\\x04.*give the model's folder"),
        (b"GGUF", "cut within its header"),
        (b"GGUF\x01\x00\x00\x00" + bytes(100), "GGUF of version 1; gen reads versions 2 and 3"),
        (b"GGUF\x00\x00\x00\x03" + bytes(100), "GGUF of version 50331648; .*little-endian"),
    ],
)
def test_what_is_no_gguf_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "file.bin"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        gen.load(file)


def test_a_name_that_ends_in_gguf_is_never_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read 'mistyped\.gguf': No such file"):
        gen.load("mistyped.gguf")
    with pytest.raises(ModelError, match="cannot read"):
        gen.load(tmp_path / "missing.gguf")


def test_a_part_of_a_split_file_is_refused(whole: Path, tmp_path: Path) -> None:
    named = tmp_path / "model-00001-of-00003.gguf"
    shutil.copy(whole, named)
    with pytest.raises(ModelError, match="one of 3 parts; merge them first"):
        gen.load(named)
    with pytest.raises(ModelError, match="one of 2 parts; merge them first"):
        gen.load(bare(tmp_path / "second.gguf", "llama", split__count=2))


@pytest.mark.parametrize("architecture", ["t5", "t5encoder", "mamba", "bert", "clip", "gpt-oss", "no such thing"])
def test_other_architectures_are_named_with_those_that_are_read(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"architecture '{architecture}', .*gen reads bloom, .*llama, .*qwen3"):
        gen.load(bare(tmp_path / "other.gguf", architecture))


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no model, but one of type 'adapter'"):
        gen.load(bare(tmp_path / "lora.gguf", "llama", general__type="adapter"))


def test_types_that_cannot_be_dequantised_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="weights of type Q8_K, which gguf cannot dequantise"):
        read_header(bare(tmp_path / "odd.gguf", "llama", kind=Q.Q8_K))


def test_without_the_package_the_error_says_how_to_get_it(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"need the package gguf: pip install 'gen-torch\[gguf\]'"):
        gen.load(whole)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Q.F32, torch.float32), (Q.F16, torch.float16), (Q.BF16, torch.bfloat16), (Q.Q8_0, torch.float32)],
)
def test_the_files_own_type_is_float32_if_quantised(kind: Q, dtype: torch.dtype, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", quantisation=kind)
    header = read_header(tmp_path / "model.gguf")
    assert header.dtype == dtype
    assert len(VOCABULARY) in header.tensors[0].shape
