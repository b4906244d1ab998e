"""How far a job is, and its results in one file, from nothing but its folder."""

from pathlib import Path
from typing import Any

from gen.errors import GenError, show_path
from gen.offline.lock import held_by
from gen.offline.manifest import NAME, Manifest, read_manifest
from gen.offline.parts import done_parts, merge_parts, read_meta


def status(folder: Path) -> dict[str, Any]:
    """How many parts and rows are done, and which driver works on the job; None if no driver does.

    Raises:
        GenError: the folder has no job.
    """
    manifest = _read(folder)
    done = done_parts(folder, manifest)
    metas = [read_meta(folder, manifest, number) for number in done]
    return {
        "parts": f"{len(done)} of {len(manifest.shards)}",
        "rows": f"{sum(meta['rows'] for meta in metas)} of {sum(shard[-1] for shard in manifest.shards)}",
        "failed": sum(meta["failed"] for meta in metas),
        "tokens": sum(meta["tokens"] for meta in metas),
        "driver": held_by(folder),
    }


def merge(folder: Path, path: Path) -> None:
    """Write all results of a job into one file.

    Raises:
        GenError: the job is not done, or the file's name asks for another format.
        OSError: it cannot be written.
    """
    manifest = _read(folder)
    form, done = manifest.settings["format"], done_parts(folder, manifest)
    if path.suffix != f".{form}":
        raise GenError(f"the parts are {form}; give a file *.{form}, got {show_path(path)}")
    if len(done) < len(manifest.shards):
        missing = len(manifest.shards) - len(done)
        raise GenError(f"{missing} of {len(manifest.shards)} parts are missing; run the job to its end first.")
    merge_parts(folder, manifest, path)


def _read(folder: Path) -> Manifest:
    if not (folder / NAME).is_file():
        raise GenError(f"{show_path(folder)} has no {NAME}; give the folder of a job.")
    return read_manifest(folder)[0]
