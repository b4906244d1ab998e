"""How far a job is, and its results in one file, from nothing but its folder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen.errors import GenError, show_path
from gen.offline.files import written_aside
from gen.offline.lock import held_by
from gen.offline.manifest import NAME, Manifest, read_manifest
from gen.offline.parquet import write_parquet
from gen.offline.parts import Result, done_parts, part_path, read_meta, read_part


def status(folder: Path) -> dict[str, Any]:
    """How many parts and rows are done, and which driver works on the job; None if no driver does.

    Raises:
        GenError: the folder has no job.
    """
    manifest = _read(folder)
    done = done_parts(folder, manifest)
    metas = [read_meta(folder, number) for number in done]
    return {
        "parts": f"{len(done)} of {len(manifest.shards)}",
        "rows": f"{sum(meta['rows'] for meta in metas)} of {sum(shard[-1] for shard in manifest.shards)}",
        "failed": sum(meta["failed"] for meta in metas),
        "tokens": sum(meta["tokens"] for meta in metas),
        "driver": held_by(folder),
    }


def merge(folder: Path, path: Path, *, incomplete: bool = False) -> None:
    """Write all results of a job into one file, in the order of the inputs.

    Args:
        path: *.jsonl, or *.parquet.
        incomplete: also where parts are missing.
    Raises:
        ArgumentError: pyarrow is not installed.
        GenError: the job is not done, or the file's name asks for no such format.
        OSError: it cannot be written.
    """
    manifest = _read(folder)
    done = sorted(done_parts(folder, manifest))
    missing = len(manifest.shards) - len(done)
    if path.suffix not in (".jsonl", ".parquet"):
        raise GenError(f"give a file *.jsonl or *.parquet, got {show_path(path)}")
    if missing and not incomplete:
        raise GenError(
            f"{missing} of {len(manifest.shards)} parts are missing; run the job to its end first, or ask for an "
            "incomplete file."
        )
    if path.suffix == ".parquet":
        write_parquet(path, manifest, _Parts(folder, done))
        return
    with written_aside(path) as aside, aside.open("wb") as file:
        for number in done:
            file.write(part_path(folder, number).read_bytes())


@dataclass(frozen=True)
class _Parts:
    """The results of some parts, read one part after the other, as often as needed."""

    folder: Path
    numbers: Sequence[int]

    def __iter__(self) -> Iterator[list[Result]]:
        return (read_part(self.folder, number) for number in self.numbers)


def _read(folder: Path) -> Manifest:
    if not (folder / NAME).is_file():
        raise GenError(f"{show_path(folder)} has no {NAME}; give the folder of a job.")
    return read_manifest(folder)[0]
