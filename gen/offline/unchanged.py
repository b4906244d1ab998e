"""What a job begins with, and goes on only with: the model's files, the output type's source and schema, the versions.

Example of sources: a pydantic class has its own, that of its bases, of the classes in its fields, and of the functions
that check or write them. What these call is not followed. A class that no file defines, such as one of `create_model`,
has its core schema instead.
"""

import hashlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from gen.models.checkpoints import ADAPTER, Source, find_path, find_source
from gen.models.transformers.peft_adapters import find_adapter
from gen.offline.described import Described, imported

if TYPE_CHECKING:
    from gen.offline.folder import Manifest

_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}
_LEFT_OUT = {".md", ".py", ".pyc", ".png", ".jpg", ".lock", ".gitattributes"}
_BLOCK, _BLOCKS = 2**18, 2**10  # bytes, and how many blocks of a weight file are read, from its beginning to its end
_KNOWN = {*sys.stdlib_module_names, "annotated_types", "gen", "pydantic", "pydantic_core", "typing_extensions"}
"""Packages whose versions stand for their source."""


def sources_of(described: Described | None) -> dict[str, str]:
    """The sha256 of the source of each class and function in an output type, by its name.

    Args:
        described: as `gen.offline.described.describe_type` gives it.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for kind in _classes(described):
        for name, source in _sources(kind):
            found[name].add(source)
    return {
        name: hashlib.sha256("\0".join(sorted(found[name])).encode(errors="surrogatepass")).hexdigest()
        for name in sorted(found)
    }


def _classes(described: Any) -> Iterator[type]:
    """The classes that a description names."""
    if isinstance(described, dict):
        for path in (described.get("class"), described.get("of")):
            if _is_foreign(path):
                yield imported(path)
        for value in described.values():
            yield from _classes(value)
    elif isinstance(described, list):
        for value in described:
            yield from _classes(value)


def _is_foreign(name: Any) -> TypeGuard[str]:
    """Whether what has this name, with its module before it, is of none of the known packages."""
    return isinstance(name, str) and re.split("[.:]", name)[0] not in _KNOWN


def _sources(kind: type) -> Iterator[tuple[str, str]]:
    """The name and the source of everything in a class that can be called, its bases included."""
    from pydantic import TypeAdapter

    try:
        schema: Any = TypeAdapter(kind).core_schema
    except Exception:  # errors of many types; the first worker tells them
        schema = None
    for one in [kind, *_callables(schema)]:
        for part in one.__mro__ if isinstance(one, type) else [one]:
            name = f"{part.__module__}.{part.__qualname__}"
            if _is_foreign(name):
                try:
                    yield name, inspect.getsource(part)
                except (OSError, TypeError):
                    yield name, repr(_plain(schema))


def _callables(schema: Any) -> Iterator[Any]:
    """The classes and functions in a core schema."""
    if isinstance(schema, dict):
        for value in schema.values():
            yield from _callables(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _callables(value)
    elif isinstance(schema, partial):
        yield from _callables([schema.func, *schema.args, schema.keywords])
    elif callable(schema):
        function = getattr(schema, "__func__", schema)  # of a bound method
        yield function if hasattr(function, "__qualname__") else type(function)


def _plain(schema: Any) -> Any:
    """A core schema without what differs from process to process."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items()}
    if isinstance(schema, list | tuple):
        return [_plain(value) for value in schema]
    if isinstance(schema, set | frozenset):
        return sorted(map(repr, schema))
    if callable(schema):
        return getattr(schema, "__qualname__", type(schema).__qualname__)
    return re.sub(r"(?<=:)\d{6,}|0x[0-9a-f]{6,}", "", repr(schema))  # addresses


def fingerprint(name: str) -> dict[str, str]:
    """The sha256 of each file of a model and of its adapter; of weights above 256 MiB, of the file's size and of blocks
    that are as far apart as each other.
    """
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
        for place in [*range(0, size, max(_BLOCK, size // _BLOCKS)), max(0, size - _BLOCK)]:
            file.seek(place)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


_FACTS = {
    "fingerprint": "model",
    "versions": "set of versions",
    "sources": "output type's source",
    "schema": "output type's JSON Schema",
}


def difference(manifest: "Manifest", facts: Mapping[str, Any]) -> str | None:
    """What has changed since the job began, in words; None if nothing has.

    Args:
        facts: a worker's "fingerprint", "sources", "schema" and "versions", or some of them.
    """
    for name, what in _FACTS.items():
        had, has = getattr(manifest, name), facts.get(name, getattr(manifest, name))
        if had != has:
            keys = [key for key in {**(had or {}), **(has or {})} if (had or {}).get(key) != (has or {}).get(key)]
            now = ""
            if name == "versions":  # a package that is missing now, or was missing then, has made no text
                if not (keys := [key for key in keys if key in had and key in has]):
                    continue
                now = f" ({', '.join(f'{key} is {has[key]} now' for key in keys)})"
            return f"the {what} is not what the job began with: {', '.join(keys[:5])} differ{now}."
    return None
