"""A job in its folder: manifest.json has everything that affects its texts; and the scan of its inputs.

A job's parts follow only from its manifest, so any worker can make any part, and make it again if needed.
"""

import hashlib
import json
import platform
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gen
from gen.errors import ArgumentError, GenError, show
from gen.offline.files import write_aside
from gen.offline.inputs.opening import records_of
from gen.offline.inputs.rows import Row, read_row

NAME = "manifest.json"
_FORM = 2  # of the manifest; it changes when the manifest's meaning does


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module.

    Attributes:
        settings: everything that affects the texts, as the driver got it.
        inputs: see `gen.offline.inputs.opening.open_inputs`.
        fingerprint: see `gen.offline.worker.fingerprint`.
        schema: the JSON Schema of the values, if they have one.
        sources: see `gen.offline.sources`.
        rows: how many run at once.
        shard_rows: how many a shard has at most.
        threads: of torch in a worker on a CPU.
        shards: for each, the number of its input, its first row's number and place there, and how many rows it has.
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

    def shard(self, number: int, first: int = 0, count: int | None = None) -> list[Row]:
        """The rows of a shard, or some of them."""
        which, before, place, rows = self.shards[number]
        records = records_of(dict(self.inputs[which]))
        template = self.settings["prompt_template"]
        found = []
        for index, (_, record, problem) in enumerate(records.read(place)):
            if index >= min(rows, first + (rows if count is None else count)):
                break
            if index >= first:
                found.append(read_row(record, f"{records.name}:{before + index + 1}", template, problem))
        return found


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


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What is in the inputs.

    Attributes:
        places: for each input, where its rows begin.
        longest: the row with the longest prompt; None if no row can be run.
    """

    places: Sequence["array[int]"]
    longest: Row | None


def scan(inputs: Sequence[Mapping[str, Any]], template: str | None) -> Scan:
    """Read all rows once.

    Raises:
        ArgumentError: there are no rows in an input, or two have one id.
        OSError: an input cannot be read.
    """
    places, hashes = [], array("q")
    longest, size = None, -1
    for one in inputs:
        records, here = records_of(dict(one)), array("q")
        for number, (place, record, problem) in enumerate(records.read(), 1):
            row = read_row(record, f"{records.name}:{number}", template, problem)
            here.append(place)
            hashes.append(_hash(row.id))
            if not row.error and (length := row.length) > size:
                longest, size = row, length
        if not here:
            raise ArgumentError(f"the input {one['name']} has no rows.")
        places.append(here)
    _check_ids(inputs, template, hashes)
    return Scan(places=places, longest=longest)


def shards_of(places: Sequence[Sequence[int]], shard_rows: int) -> list[list[int]]:
    """See `Manifest.shards`."""
    return [
        [which, first, here[first], min(shard_rows, len(here) - first)]
        for which, here in enumerate(places)
        for first in range(0, len(here), shard_rows)
    ]


def _check_ids(inputs: Sequence[Mapping[str, Any]], template: str | None, hashes: "array[int]") -> None:
    """Raise an ArgumentError if two rows have one id."""
    import numpy

    ordered = numpy.sort(numpy.frombuffer(hashes, dtype=numpy.int64))
    twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not twice:
        return
    seen: dict[str, str] = {}
    for one in inputs:
        records = records_of(dict(one))
        for number, (_, record, problem) in enumerate(records.read(), 1):
            where = f"{records.name}:{number}"
            key = read_row(record, where, template, problem).id
            if _hash(key) in twice and seen.setdefault(key, where) != where:
                raise ArgumentError(f"two rows have the id {show(key)}: {seen[key]} and {where}; give each its own.")


def _hash(key: str) -> int:
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
