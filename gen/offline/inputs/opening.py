"""Opens a job's inputs by their names: files are read where they are; inputs that can be read only once are copied."""

import gzip
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from gen.errors import ArgumentError, show_path
from gen.offline.files import written_aside
from gen.offline.inputs.records import LARGEST_GROUP, Kind, Records, import_parquet, kind_of

STDIN = "-"
_BLOCK = 2**20


def open_inputs(names: Sequence[str], copies: Path) -> list[dict[str, Any]]:
    """The manifest's entry for each input: its name, path and kind; its size in bytes and its sha256.

    Args:
        copies: a folder for copies of inputs that can't be read from any place on: stdin, gzip files, and parquet
            files with large groups of rows.
    Raises:
        ArgumentError: an input is missing, or is no such file.
    """
    if not names:
        raise ArgumentError("give at least one input: a file, or - for stdin.")
    if len(set(names)) < len(names):
        raise ArgumentError(f"an input is given twice: {', '.join(names)}")
    opened = []
    for number, name in enumerate(names):
        try:
            opened.append(_open(name, copies / f"{number:03d}"))
        except (OSError, EOFError) as error:
            raise ArgumentError(f"the input {show_path(name)} cannot be read: {error}") from error
    return opened


def check_unchanged(known: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Raise an ArgumentError unless these are the manifest's inputs, unchanged; for stdin, its copy is checked."""
    if [one["name"] for one in known] != list(names):
        had = ", ".join(one["name"] for one in known)
        raise ArgumentError(f"the job in this folder has the inputs {had}; got {', '.join(names)}.")
    for one in known:
        path = Path(one["path"] if one["name"] == STDIN else one["name"])
        try:
            size, digest = _digest(path)
        except OSError as error:
            raise ArgumentError(f"the input {show_path(path)} cannot be read: {error}") from error
        if (size, digest) != (one["size"], one["sha256"]):
            raise ArgumentError(
                f"the input {show_path(path)} has changed since the job began; begin the job again in another folder."
            )


def records_of(described: dict[str, Any]) -> Records:
    """The records of an input in a manifest."""
    name = "stdin" if described["name"] == STDIN else os.fsencode(described["name"]).decode(errors="backslashreplace")
    return Records(name=name, path=described["path"], kind=described["kind"])


def _open(name: str, copy: Path) -> dict[str, Any]:
    if name == STDIN:
        if sys.stdin is None:
            raise ArgumentError("stdin is closed; give a file.")
        copy = _copied(sys.stdin.buffer, copy, "jsonl")
        size, digest = _digest(copy)
        return {"name": name, "path": str(copy.absolute()), "kind": "jsonl", "size": size, "sha256": digest}
    kind, packed = kind_of(name)
    path = Path(name)
    if not path.is_file():
        raise ArgumentError(f"the input {show_path(name)} is no file{'; it is a folder' if path.is_dir() else ''}.")
    size, digest = _digest(path)
    if packed:
        with gzip.open(path) as unpacked:
            path = _copied(unpacked, copy, kind)  # type: ignore[arg-type]  # it reads as a file does
    elif kind == "parquet" and _has_large_groups(path):
        kind, path = "jsonl", _as_lines(Records(name=name, path=name, kind=kind), copy)
    return {"name": name, "path": str(path.absolute()), "kind": kind, "size": size, "sha256": digest}


def _digest(path: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
        return file.tell(), digest.hexdigest()


def _copied(source: BinaryIO, copy: Path, kind: Kind) -> Path:
    copy = copy.with_suffix(f".{kind}")
    copy.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(copy) as aside, aside.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)
    return copy


def _as_lines(records: Records, copy: Path) -> Path:
    copy = copy.with_suffix(".jsonl")
    copy.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(copy) as aside, aside.open("w", encoding="utf-8") as file:
        for _, record, _ in records.read():
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return copy


def _has_large_groups(path: Path) -> bool:
    parquet = import_parquet()
    try:
        metadata = parquet.ParquetFile(path).metadata
    except ValueError as error:
        raise ArgumentError(f"{show_path(path)} is no parquet file: {error}") from error
    return any(metadata.row_group(group).num_rows > LARGEST_GROUP for group in range(metadata.num_row_groups))
