"""Reads and checks a checkpoint's files before any weight is loaded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gen.errors import ModelError, show_path
from gen.models.sources import Source

_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # in the order in which transformers looks for them
_EXLLAMA = {"exl2": (".q_weight", ".q_invperm"), "exl3": (".trellis",)}  # how their tensors' names end
_LOADERS = {"exl2": "from_exllamav2", "exl3": "from_exllamav3"}
_LFS_POINTER = b"version https://git-lfs"


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ModelError: it is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{show_path(path)} is no valid JSON file: {error}") from error


def has_weights(folder: Path) -> bool:
    """Whether a directory has weights of a whole model."""
    return any((folder / name).is_file() for name in _WEIGHTS)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ModelError: there is none, or it is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{show_path(folder)} has no config.json, so it is no model in Hugging Face format: {_has(folder)}"
        )
    config = read_json(path)
    if not isinstance(config, dict):
        raise ModelError(f"{show_path(path)} must be a JSON object, got {type(config).__name__}.")
    return config


def is_exl3(source: Source) -> bool:
    """Whether a checkpoint's config says that its weights are in EXL3 format.

    Raises:
        ModelError: it says that they are in EXL2 format, which transformers cannot read.
    """
    path = source.find("config.json")
    config = read_json(path) if path is not None else None
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method == "exl2":
        raise _exllama_error(source.name, method)
    return method == "exl3"


def check_folder(folder: Path, *, exl3: bool = False) -> None:
    """Check that a directory is a whole checkpoint in Hugging Face format.

    The headers of safetensors files are read, not their weights.

    Args:
        exl3: whether its config says that its weights are in EXL3 format.
    Raises:
        ModelError: it lacks its config or weights, a file is cut short, or its weights are in a format of ExLlama that
            its config does not name.
    """
    config = read_config(folder)
    for path in _weight_files(folder, config.get("transformers_weights")):
        names = check_safetensors(path) if path.suffix == ".safetensors" else []
        for method, endings in _EXLLAMA.items():
            if any(name.endswith(endings) for name in names) and not (exl3 and method == "exl3"):
                raise _exllama_error(str(folder), method)


def _weight_files(folder: Path, named: str | None) -> Iterator[Path]:
    """The files that transformers would load."""
    names = (named,) if named else _WEIGHTS
    first = next((folder / name for name in names if (folder / name).is_file()), None)
    if first is None:
        raise ModelError(f"{show_path(folder)} has no weights: expected {' or '.join(names)}; {_has(folder)}")
    if not first.name.endswith(".index.json"):
        yield first
        return
    index = read_json(first)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise ModelError(f"{show_path(first)} has no weight_map; download it again.")
    paths = [folder / name for name in sorted(set(shards.values()))]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ModelError(
            f"{show_path(folder)} lacks {len(missing)} of {len(paths)} files of weights that its index names, such as "
            f"{missing[0]!r}; download them."
        )
    yield from paths


def check_safetensors(path: Path) -> list[str]:
    """The names of a file's tensors; see https://github.com/huggingface/safetensors.

    Raises:
        ModelError: the file is not as long as its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if _LFS_POINTER.startswith(start) and start:
            raise ModelError(
                f"{show_path(path)} is a pointer of Git LFS, not the weights; get them with `git lfs pull`."
            )
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise ModelError(f"{show_path(path)} has {size} bytes and ends within its header; download it again.")
        try:
            tensors = {name: entry for name, entry in json.loads(file.read(length)).items() if name != "__metadata__"}
            expected = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise ModelError(f"{show_path(path)} is no safetensors file: {error}") from error
    if size != expected:
        raise ModelError(f"{show_path(path)} has {size} bytes, its header says {expected}; download it again.")
    return list(tensors)


def _exllama_error(name: str, method: str) -> ModelError:
    """The error for a checkpoint that transformers cannot read, with the function that can."""
    unnamed = " as its config.json does not say" if method == "exl3" else ""
    return ModelError(
        f"{show_path(name)} is an {method.upper()} checkpoint{unnamed}: load it with "
        f"gen.{_LOADERS[method]}(path, device=...), which needs a CUDA device and pip install "
        f"'gen-torch[{_LOADERS[method].removeprefix('from_')}]'."
    )


def _has(folder: Path) -> str:
    """The first few names in a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir())
    return f"it has {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}." if names else "it is empty."
