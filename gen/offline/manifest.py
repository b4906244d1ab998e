"""A job in its folder: manifest.json has everything that affects its texts, beside the rows.

A job's parts follow only from its manifest and its rows, so any worker can make any part, and make it again if needed.
"""

import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gen.errors import GenError
from gen.offline.files import write_aside
from gen.offline.inputs import read_rows
from gen.offline.rows import Row
from gen.offline.unchanged import versions

NAME = "manifest.json"
_FORM = 3  # of the manifest; it changes when the manifest's meaning does


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module.

    Attributes:
        settings: everything that affects the texts, as the driver got it.
        inputs: see `gen.offline.inputs.digests`.
        fingerprint: see `gen.offline.unchanged`.
        schema: the JSON Schema of the values, if they have one.
        sources: see `gen.offline.unchanged`.
        batch_size: how many rows run at once.
        part_rows: how many a part has at most.
        threads: of torch in a worker on a CPU.
        parts: for each, the byte of `manifest.rows.jsonl` where it begins, and how many rows it has.
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
    batch_size: int
    part_rows: int
    threads: int
    parts: Sequence[Sequence[int]]
    created: int = field(default_factory=lambda: int(time.time()))
    versions: Mapping[str, str] = field(default_factory=versions)
    python: str = field(default_factory=platform.python_version)
    form: int = _FORM

    def rows_of(self, folder: Path, number: int, row: int | None = None) -> list[Row]:
        """The rows of a part, or one of them, from the job's folder."""
        place, count = self.parts[number]
        return read_rows(folder, place, count) if row is None else read_rows(folder, place, 1, row)


def parts_of(places: Sequence[int], part_rows: int) -> list[tuple[int, int]]:
    return [(places[first], min(part_rows, len(places) - first)) for first in range(0, len(places), part_rows)]


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
