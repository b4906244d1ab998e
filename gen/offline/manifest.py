"""A job in its folder: manifest.json has everything that affects its texts, beside the rows.

A job's parts follow only from its manifest and its rows, so any worker can make any part, and make it again if needed.
"""

import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gen
from gen.errors import GenError
from gen.offline.files import write_aside
from gen.offline.inputs import read_rows
from gen.offline.rows import Row

NAME = "manifest.json"
_FORM = 2  # of the manifest; it changes when the manifest's meaning does


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module.

    Attributes:
        settings: everything that affects the texts, as the driver got it.
        inputs: see `gen.offline.inputs.digests`.
        fingerprint: see `gen.offline.worker.fingerprint`.
        schema: the JSON Schema of the values, if they have one.
        sources: see `gen.offline.sources`.
        rows: how many run at once.
        shard_rows: how many a shard has at most.
        threads: of torch in a worker on a CPU.
        shards: for each, the byte of `manifest.rows.jsonl` where it begins, and how many rows it has.
        created: when it was made, in seconds since 1970.
        versions: of gen and of the packages that compute.
        python: its version, which does not affect texts.
        form: of the manifest.
    """

    settings: Mapping[str, Any]
    inputs: Sequence[Mapping[str, Any]]
    fingerprint: Mapping[str, str]
    schema: Any
    sources: Mapping[str, str]
    rows: int
    shard_rows: int
    threads: int
    shards: Sequence[Sequence[int]]
    created: int = field(default_factory=lambda: int(time.time()))
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    python: str = field(default_factory=platform.python_version)
    form: int = _FORM

    def shard(self, folder: Path, number: int, row: int | None = None) -> list[Row]:
        """The rows of a shard, or one of them, from the job's folder."""
        place, count = self.shards[number]
        return read_rows(folder, place, count) if row is None else read_rows(folder, place, 1, row)


def shards_of(places: Sequence[int], shard_rows: int) -> list[tuple[int, int]]:
    return [(places[first], min(shard_rows, len(places) - first)) for first in range(0, len(places), shard_rows)]


def versions() -> dict[str, str]:
    """The versions of gen and of the packages that compute."""
    found = {"gen": gen.__version__}
    for package in ("torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


_FACTS = {
    "fingerprint": "model",
    "versions": "versions",
    "sources": "output type's source",
    "schema": "output type's JSON Schema",
}


def difference(manifest: Manifest, facts: Mapping[str, Any]) -> str | None:
    """What has changed since the job began, in words; None if nothing has.

    Args:
        facts: a worker's "fingerprint", "sources", "schema" and "versions", or some of them.
    """
    for name, what in _FACTS.items():
        had, has = getattr(manifest, name), facts.get(name, getattr(manifest, name))
        if had != has:
            keys = [key for key in {**(had or {}), **(has or {})} if (had or {}).get(key) != (has or {}).get(key)]
            now = f" ({has})" if name == "versions" else ""
            return f"the {what} is not what the job began with: {', '.join(keys[:5])} differ{now}."
    return None


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Write the manifest; returns the sha256 of its text."""
    data = json.dumps(asdict(manifest)).encode() + b"\n"
    write_aside(folder / NAME, data)
    return hashlib.sha256(data).hexdigest()


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a job and its sha256.

    Raises:
        GenError: the file is no manifest, or none that this version reads.
        OSError: it cannot be read.
    """
    data = (folder / NAME).read_bytes()
    try:
        read = json.loads(data)
        if read["form"] != _FORM:
            raise GenError(f"{folder / NAME} is of another version of gen; go on with {read['versions']['gen']}.")
        return Manifest(**read), hashlib.sha256(data).hexdigest()
    except (ValueError, TypeError, KeyError) as error:
        raise GenError(f"{folder / NAME} is no manifest of a job: {error}") from error
