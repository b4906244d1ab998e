"""A model's fingerprint: a folder, here or on another machine, must have the same one to give the same texts."""

import hashlib
from pathlib import Path

from gen.models.checkpoints import ADAPTER, Source, find_path, find_source
from gen.models.transformers.peft_adapters import find_adapter

_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}
_LEFT_OUT = {".md", ".py", ".pyc", ".png", ".jpg", ".lock", ".gitattributes"}
_END = 2**20  # bytes of a weight file that are read, at its beginning and at its end


def fingerprint(name: str) -> dict[str, str]:
    """The sha256 of each file of a model and of its adapter; for weights, of the file's size and both ends."""
    path = None if name == "demo" else find_path(name)
    if path is not None and path.is_file():
        return {path.name: _of_weights(path)}
    source = find_source(name)
    adapter = find_adapter(source) if source.find(ADAPTER) else None
    found = _of_source(adapter.base if adapter else source)
    if adapter:
        found |= {f"adapter: {name}": digest for name, digest in _of_source(adapter.source).items()}
    return found


def _of_source(source: Source) -> dict[str, str]:
    config = source.find("config.json") or source.find(ADAPTER)
    folder = source.folder or (config.parent if config else None)
    files = sorted(folder.iterdir()) if folder else []
    return {
        path.name: _of_weights(path) if path.suffix in _WEIGHTS else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file() and path.suffix not in _LEFT_OUT and not path.name.startswith(".")
    }


def _of_weights(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_END))
        file.seek(max(0, size - _END))
        digest.update(file.read())
    return digest.hexdigest()
