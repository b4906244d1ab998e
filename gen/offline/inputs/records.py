"""Files of records, read from any place on: JSON lines, CSV, parquet.

Example: the records of "a.jsonl" from place 10 on are the lines that begin at byte 10 or after it.
"""

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gen.errors import ArgumentError, show, show_path

Kind = Literal["jsonl", "csv", "parquet"]
Record = dict[str, Any]
_SUFFIXES: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_MARK = b"\xef\xbb\xbf"  # Windows puts it before UTF-8
LARGEST_GROUP = 2**14  # the most rows in a group of a parquet file that can be read from any place on


@dataclass(frozen=True, kw_only=True)
class Records:
    """A file of records.

    Attributes:
        name: the user's name for it.
        path: where it is.
        kind: how it is written.
    """

    name: str
    path: str
    kind: Kind

    def read(self, place: int = 0) -> Iterator[tuple[int, Record, str]]:
        """Each record from a place on, with the place where it begins: a byte, or for parquet the number of the row.

        What is wrong with a record comes with it, or "". The record then has what could be read; values that could not
        are None.

        Raises:
            ArgumentError: the whole file is not of this kind.
            OSError: it cannot be read.
        """
        return {"jsonl": _lines, "csv": _csv, "parquet": _parquet}[self.kind](Path(self.path), place)


def kind_of(name: str) -> tuple[Kind, bool]:
    """The kind of a file, by its name, and whether it is packed with gzip.

    Raises:
        ArgumentError: its name does not tell the kind.
    """
    path = Path(name.lower())
    packed = path.suffix == ".gz"
    suffix = Path(path.stem).suffix if packed else path.suffix
    if suffix == ".parquet" and not packed:
        return "parquet", False
    if suffix not in _SUFFIXES:
        raise ArgumentError(
            f"{show_path(name)} is none of *.jsonl, *.csv, either also with .gz after it, *.parquet, or - for JSON "
            "lines from stdin; rename it."
        )
    return _SUFFIXES[suffix], packed


def import_parquet() -> Any:
    """pyarrow.parquet.

    Raises:
        ArgumentError: pyarrow is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ArgumentError(
            f"parquet files need pyarrow ({error}); install it with pip install 'gen-torch[parquet]'."
        ) from error
    return parquet


def read_line(line: bytes) -> tuple[Record, str]:
    """The record of a line of JSON, and what is wrong with it."""
    constants: list[str] = []
    try:
        record = json.loads(line.decode(), parse_constant=constants.append)  # which returns None
    except (ValueError, RecursionError) as error:
        return {}, f"the line is no JSON in UTF-8 ({error}): {show(line.decode(errors='replace'))}"
    if not isinstance(record, dict):
        return {}, f"the line is no JSON object: {show(record)}"
    if constants:
        return record, f"the line is no JSON, which has no {constants[0]}; write null."
    broken = {name: value for name, value in record.items() if b"\\u" in line and not _is_text([name, value])}
    if not broken:
        return record, ""
    name, value = next(iter(broken.items()))
    kept = {name: None if name in broken else value for name, value in record.items() if _is_text(name)}
    return kept, f"{show(name)} has a lone surrogate, half of a character, which no text can have: {show(value)}"


def _is_text(value: Any) -> bool:
    """Whether no text within a value has a lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(path: Path, place: int) -> Iterator[tuple[int, Record, str]]:
    """JSON lines; blank lines are skipped."""
    with path.open("rb") as file:
        file.seek(place)
        for line in file:
            begin, place = place, place + len(line)
            line = line if begin else line.removeprefix(_MARK)
            if line.strip():
                yield begin, *read_line(line)


def _csv(path: Path, place: int) -> Iterator[tuple[int, Record, str]]:
    """CSV with a header; a record may have several lines."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # its own limit is 131072 characters
    with path.open("rb") as file:
        read = 0

        def lines() -> Iterator[str]:
            nonlocal read
            while line := file.readline():
                text = (line if read else line.removeprefix(_MARK)).decode()
                read += len(line)
                yield text

        try:
            header = next(csv.reader(lines(), strict=True), [])
            if len(set(header)) < len(header):
                raise ArgumentError(f"two columns of {show_path(path)} have one name: {show(header)}")
            begin = read = max(place, read)
            file.seek(begin)
            for values in csv.reader(lines(), strict=True):
                if values:
                    yield begin, *_of_columns(header, values)
                begin = read
        except (csv.Error, UnicodeDecodeError) as error:
            raise ArgumentError(f"{show_path(path)}, byte {read} is no CSV in UTF-8: {error}") from error


def _of_columns(header: list[str], values: list[str]) -> tuple[Record, str]:
    record: Record = dict(zip(header, values, strict=False))
    if len(values) == len(header):
        return record, ""
    own = {name: record[name] for name in ("id",) if name in record}  # other columns may have the wrong value
    return own, f"the row has {len(values)} columns, the header has {len(header)}: {show(values)}"


def _parquet(path: Path, place: int) -> Iterator[tuple[int, Record, str]]:
    """A parquet file, a group of rows at a time."""
    try:
        file = import_parquet().ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{show_path(path)} is no parquet file: {error}") from error
    first = 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if place < first + count:
            for number, record in enumerate(file.read_row_group(group).to_pylist(), first):
                if number >= place:
                    yield number, {name: _plain(value) for name, value in record.items()}, ""
        first += count


def _plain(value: Any) -> Any:
    """A value that JSON can write: dates and decimals become texts."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
