"""A job's inputs, which are read once: each row is checked, and written into the job's folder as a line of JSON.

Workers read these lines alone, from any row on. Example: the first row of a CSV becomes {"id": "a.csv:1", "prompt":
"One"}; a part of 100 rows begins at byte 0, the next one at byte 4217.
"""

import hashlib
import json
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gen.errors import ArgumentError, show, show_path
from gen.offline.files import written_aside
from gen.offline.records import STDIN, kind_of, read_records
from gen.offline.rows import Row, read_row

NAME = "manifest.rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What is in the inputs.

    Attributes:
        places: the byte of `manifest.rows.jsonl` where each row begins.
        longest: the row with the longest prompt; None if no row can be run.
        stdin: the sha256 of what came from stdin.
    """

    places: Sequence[int]
    longest: Row | None
    stdin: str


def digests(names: Sequence[str]) -> list[dict[str, Any]]:
    """The manifest's entry for each input: its name, its size in bytes, and its sha256; for stdin the name alone."""
    if not names:
        raise ArgumentError("give at least one input: a file, or - for stdin.")
    if len(set(names)) < len(names):
        raise ArgumentError(f"an input is given twice: {', '.join(names)}")
    return [{"name": name} if name == STDIN else _digest(name) for name in names]


def check_unchanged(known: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise an ArgumentError unless the inputs are those of the manifest, unchanged. Of stdin, no more need come."""
    had = [one["name"] for one in known]
    if had != list(names):
        raise ArgumentError(f"the job in this folder has the inputs {', '.join(had)}; got {', '.join(names)}.")
    for one, now in zip(known, digests(names), strict=True):
        if now["name"] == STDIN:
            now["sha256"] = _digest_of_stdin() or one["sha256"]
        if one != now:
            raise ArgumentError(
                f"the input {show_path(now['name'])} has changed since the job began; begin the job again in another "
                "folder."
            )


def _digest(name: str) -> dict[str, Any]:
    kind_of(name)
    if not (path := Path(name)).is_file():
        raise ArgumentError(f"the input {show_path(name)} is no file{'; it is a folder' if path.is_dir() else ''}.")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"name": name, "size": file.tell(), "sha256": digest}
    except OSError as error:
        raise ArgumentError(f"the input {show_path(name)} cannot be read: {error}") from error


def _digest_of_stdin() -> str | None:
    """The sha256 of what comes from stdin; None if it is closed or a terminal, or if nothing comes."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    stream: Any = sys.stdin.buffer
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return None if digest == hashlib.sha256().hexdigest() else digest


def write_rows(names: Sequence[str], template: str | None, folder: Path) -> Scan:
    """Read all inputs, and write their rows.

    Raises:
        ArgumentError: an input cannot be read or has no rows, or two rows have one id.
        OSError: the rows cannot be written.
    """
    places, hashes, firsts = array("q"), array("q"), [0]
    longest, size, end, stdin = None, -1, 0, hashlib.sha256()
    with written_aside(folder / NAME) as aside:
        with aside.open("wb") as file:
            for name in names:
                for number, (record, problem) in enumerate(read_records(name, stdin), 1):
                    row = read_row(record, _default_id(name, number), template, problem)
                    places.append(end)
                    hashes.append(_hash(row.id))
                    end += file.write(row.line())
                    if not row.error and (length := row.length) > size:
                        longest, size = row, length
                if len(places) == firsts[-1]:
                    raise ArgumentError(f"the input {name} has no rows.")
                firsts.append(len(places))
        _check_ids(hashes, aside, names, firsts)
    return Scan(places=places, longest=longest, stdin=stdin.hexdigest())


def read_rows(folder: Path, place: int, count: int, first: int = 0) -> list[Row]:
    """Some rows, counted from the one that begins at this byte."""
    with (folder / NAME).open("rb") as file:
        file.seek(place)
        return [Row(**json.loads(line)) for line in islice(file, first, first + count)]


def _default_id(name: str, number: int) -> str:
    shown = "stdin" if name == STDIN else os.fsencode(name).decode(errors="backslashreplace")
    return f"{shown}:{number}"


def _check_ids(hashes: "array[int]", rows: Path, names: Sequence[str], firsts: Sequence[int]) -> None:
    """Raise an ArgumentError if two rows have one id.

    Args:
        firsts: for each input, the number of its first row among all.
    """
    import numpy

    ordered = numpy.sort(numpy.frombuffer(hashes, dtype=numpy.int64))
    twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    seen: dict[str, int] = {}
    for number, key in enumerate(_ids(rows)) if twice else ():
        if _hash(key) in twice and seen.setdefault(key, number) != number:
            both = (_where(place, names, firsts) for place in (seen[key], number))
            raise ArgumentError(f"two rows have the id {show(key)}: {' and '.join(both)}; give each its own.")


def _ids(rows: Path) -> Iterator[str]:
    with rows.open("rb") as file:
        for line in file:
            yield json.loads(line)["id"]


def _where(number: int, names: Sequence[str], firsts: Sequence[int]) -> str:
    which = bisect_right(firsts, number) - 1
    return _default_id(names[which], number - firsts[which] + 1)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)
