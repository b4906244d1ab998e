"""A job's folder: a manifest, which has everything that affects its texts beside the rows, and parts with its results.

Parts follow only from the manifest and the rows, so any worker can make any part, and make it again if needed. A part
is a file of results for some rows, there whole or not at all, and a file of facts beside it. There is one result for
each row, a dict, in the order of the rows; see `gen.run_batch` for what is in it.
"""

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gen.errors import GenError
from gen.offline.files import as_line, remove, write_aside
from gen.offline.inputs import read_rows
from gen.offline.rows import Row
from gen.receipts import versions

NAME = "manifest.json"
Result = dict[str, Any]
_FORM = 4  # of the manifest; it changes when the manifest's meaning does


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a job is; its folder has it as manifest.json.

    Attributes:
        settings: everything that affects the texts, as the driver got it.
        inputs: see `gen.offline.inputs.digests`; stdin has its sha256, too.
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

    @property
    def rows(self) -> int:
        """How many rows the job has."""
        return sum(count for _, count in self.parts)

    def rows_of(self, folder: Path, number: int, row: int | None = None) -> list[Row]:
        """The rows of a part, or one of them, from the job's folder. Raises a GenError if they are not there."""
        place, count = self.parts[number]
        first, count = (0, count) if row is None else (row, 1)
        found = read_rows(folder, place, count, first)
        if len(found) < count:
            raise GenError(f"{folder} has lost rows of part {number}; begin the job again in another folder.")
        return found


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


def part_path(folder: Path, number: int) -> Path:
    """Where the results of a part are."""
    return folder / f"part-{number:05d}.jsonl"


def meta_path(folder: Path, number: int) -> Path:
    """The file that says how a part was made."""
    return folder / f"part-{number:05d}.meta.json"


def write_part(folder: Path, number: int, results: Sequence[Result], meta: Result) -> None:
    """Write a part's results; facts that are beside a part are always those of this part."""
    remove(meta_path(folder, number))
    write_aside(part_path(folder, number), b"".join(map(as_line, results)))
    write_aside(meta_path(folder, number), as_line(counts_of(results) | meta))


def part_bytes(folder: Path, manifest: Manifest, number: int) -> bytes:
    """The lines of a part. Raises a GenError if it has not one for each row, as after a copy that has failed."""
    path, count = part_path(folder, number), manifest.parts[number][-1]
    data = path.read_bytes()
    if (lines := data.count(b"\n")) != count:
        raise GenError(f"{path} has {lines} of its {count} results; remove it, and run the job again.")
    return data


def read_part(folder: Path, manifest: Manifest, number: int) -> list[Result]:
    """A part's results."""
    return [json.loads(line) for line in part_bytes(folder, manifest, number).splitlines()]


def read_meta(folder: Path, manifest: Manifest, number: int) -> Result:
    """The facts in the file beside a part, or, if a kill has left none, what the part itself says."""
    try:
        read: Result = json.loads(meta_path(folder, number).read_text(encoding="utf-8"))
        if read.keys() >= counts_of([]).keys():
            return read
    except (FileNotFoundError, ValueError):
        pass
    return counts_of(read_part(folder, manifest, number))


def counts_in(folder: Path, manifest: Manifest, numbers: Iterable[int]) -> Result:
    """What `counts_of` says of some parts together."""
    counts = counts_of([])
    for number in numbers:
        meta = read_meta(folder, manifest, number)
        for name in counts:
            counts[name] += meta[name]
    return counts


def counts_of(results: Sequence[Result]) -> Result:
    """How many results there are, how many of them have failed, and how many new tokens they have."""
    return {"rows": len(results), "failed": sum(map(failed, results)), "tokens": sum(map(tokens_of, results))}


def error_result(row: Row, message: str, text: str | None = None) -> Result:
    """The result of a row that has failed."""
    if row.body is not None:
        return {
            "id": request_id(row),
            "custom_id": row.id,
            "response": None,
            "error": {"code": "failed", "message": message},
        }
    told = {"id": row.id, "error": message} | ({} if text is None else {"text": text})
    return told | carried(row)


def carried(row: Row) -> Result:
    """The row's other columns, as a result has them."""
    return {"input": dict(row.carried)} if row.carried else {}


def request_id(row: Row) -> str:
    """The id of an answer in OpenAI's format; it follows from the row, so that equal parts are equal bytes."""
    return f"batch_req_{row.id}"


def failed(result: Result) -> bool:
    """Whether the row of a result has failed."""
    return result.get("error") is not None or (result.get("response") or {}).get("status_code", 200) != 200


def tokens_of(result: Result) -> int:
    """How many new tokens a result has."""
    body = (result.get("response") or {}).get("body", {})
    return int(result.get("tokens") or body.get("usage", {}).get("completion_tokens", 0))


def done_parts(folder: Path, manifest: Manifest) -> set[int]:
    """The numbers of the parts that are done."""
    names = {path.name for path in folder.glob("part-*.jsonl")}
    return {number for number in range(len(manifest.parts)) if part_path(folder, number).name in names}
