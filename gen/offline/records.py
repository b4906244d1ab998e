"""Reads files of records: JSON lines, CSV, parquet. What is wrong with a record comes with it, and ends nothing."""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from gen.errors import ArgumentError, show, show_path

if TYPE_CHECKING:
    import hashlib

STDIN = "-"
Kind = Literal["jsonl", "csv", "parquet"]
Record = dict[str, Any]
Read = Iterator[tuple[Record, str]]
"""Records, each with what is wrong with it, or "". It then has what could be read; values that could not are None."""

_SUFFIXES: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_MARK = b"\xef\xbb\xbf"  # Windows puts it before UTF-8


def kind_of(name: str) -> tuple[Kind, bool]:
    """The kind of a file, by its name, and whether it is packed with gzip."""
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


def read_records(name: str, seen: "hashlib._Hash | None" = None) -> Read:
    """The records of a file, or of stdin, whose bytes are then added to a digest."""
    try:
        yield from _records(name, seen)
    except (OSError, EOFError, zlib.error) as error:
        raise ArgumentError(f"the input {show_path(name)} cannot be read: {error}") from error


def import_parquet() -> Any:
    """pyarrow.parquet."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ArgumentError(
            f"parquet files need pyarrow ({error}); install it with pip install 'gen-torch[parquet]'."
        ) from error
    return parquet


def _records(name: str, seen: "hashlib._Hash | None") -> Read:
    if name == STDIN:
        if sys.stdin is None:
            raise ArgumentError("stdin is closed; give a file.")
        yield from _lines(sys.stdin.buffer, seen)
        return
    kind, packed = kind_of(name)
    if kind == "parquet":
        yield from _parquet(name)
        return
    with gzip.open(name) if packed else open(name, "rb") as opened:
        file = cast(BinaryIO, opened)
        yield from _lines(file) if kind == "jsonl" else _csv(file, name)


def _lines(file: BinaryIO, seen: "hashlib._Hash | None" = None) -> Read:
    """JSON lines; blank lines are skipped."""
    mark = _MARK
    for line in file:
        if seen is not None:
            seen.update(line)
        line, mark = line.removeprefix(mark), b""
        if line.strip():
            yield read_line(line)


def read_line(line: bytes) -> tuple[Record, str]:
    """The record of a line of JSON, and what is wrong with it."""
    constants: list[str] = []
    try:
        record = json.loads(line.decode(), parse_constant=constants.append)  # which returns None
        values = record.items() if isinstance(record, dict) and b"\\u" in line else ()
        broken = {name: value for name, value in values if not _is_text([name, value])}
    except (ValueError, RecursionError) as error:
        return {}, f"the line is no JSON in UTF-8 ({error}): {show(line.decode(errors='replace'))}"
    if not isinstance(record, dict):
        return {}, f"the line is no JSON object: {show(record)}"
    if constants:
        return record, f"the line is no JSON, which has no {constants[0]}; write null."
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


def _csv(file: BinaryIO, name: str) -> Read:
    """CSV with a header; a record may have several lines."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # its own limit is 131072 characters
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        try:
            header = next(filter(None, reader), [])  # blank lines are skipped
            _check_columns(name, header)
            for values in reader:
                if values:
                    yield _of_columns(header, values)
        except (csv.Error, UnicodeDecodeError) as error:
            place = f"{show_path(name)}, after line {reader.line_num},"
            raise ArgumentError(f"{place} is no CSV in UTF-8: {error}") from error


def _check_columns(name: str, columns: list[str]) -> None:
    if len(set(columns)) < len(columns):
        raise ArgumentError(f"two columns of {show_path(name)} have one name: {show(columns)}")


def _of_columns(header: list[str], values: list[str]) -> tuple[Record, str]:
    record: Record = dict(zip(header, values, strict=False))
    if len(values) == len(header):
        return record, ""
    own = {name: record[name] for name in ("id",) if name in record}  # other columns may have the wrong value
    return own, f"the row has {len(values)} columns, the header has {len(header)}: {show(values)}"


def _parquet(name: str) -> Read:
    """A parquet file, some rows at a time."""
    parquet = import_parquet()
    try:
        file = parquet.ParquetFile(name)
        _check_columns(name, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=1024):
            for record in batch.to_pylist():
                if "messages" in record:
                    record["messages"] = _without_nulls(record["messages"])
                yield record, ""
    except ArgumentError:
        raise
    except (OSError, ValueError, OverflowError) as error:  # Python has no dates beyond the year 9999
        raise ArgumentError(f"{show_path(name)} is no parquet file that can be read: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Messages without null fields but contents: in parquet each has the fields of all, and templates ask for them."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None or name == "content"}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """A value that JSON can write: dates and decimals become texts."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):  # a map has pairs
        return [plain(one) for one in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
