"""A job's parts: one file of results for each shard, there whole or not at all; and a file of facts beside each.

There is one result for each row, a dict, in the order of the rows; see `gen.run_batch` for what is in it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gen.offline.files import as_line, finite, remove, write_aside, written_aside
from gen.offline.inputs.records import import_parquet
from gen.offline.inputs.rows import Row
from gen.offline.manifest import Manifest
from gen.offline.parquet_schema import columns_of, value_type

Result = dict[str, Any]


def part_path(folder: Path, manifest: Manifest, number: int) -> Path:
    """Where the results of a shard are."""
    return folder / f"part-{number:05d}.{manifest.settings['format']}"


def meta_path(folder: Path, number: int) -> Path:
    """The file that says how a part was made."""
    return folder / f"part-{number:05d}.meta.json"


def write_part(folder: Path, manifest: Manifest, number: int, results: Sequence[Result], meta: Result) -> None:
    """Write a shard's results; facts that are beside a part are always those of this part.

    Raises:
        OSError: they cannot be written.
    """
    path = part_path(folder, manifest, number)
    remove(meta_path(folder, number))
    if path.suffix == ".jsonl":
        write_aside(path, lines(results))
    else:
        with written_aside(path) as aside:
            import_parquet().write_table(_table(manifest, results), aside)
    write_aside(meta_path(folder, number), as_line(counts_of(results) | meta))


def read_meta(folder: Path, manifest: Manifest, number: int) -> Result:
    """The facts in the file beside a part, or, if a kill has left none, what the part itself says.

    Raises:
        OSError: the part cannot be read.
    """
    try:
        read: Result = json.loads(meta_path(folder, number).read_text(encoding="utf-8"))
        if read.keys() >= counts_of([]).keys():
            return read
    except (FileNotFoundError, ValueError):
        pass
    path = part_path(folder, manifest, number)
    if path.suffix == ".jsonl":
        return counts_of(json.loads(line) for line in path.read_bytes().splitlines())
    return counts_of(import_parquet().read_table(path, columns=["tokens", "error"]).to_pylist())


def counts_of(results: Iterable[Result]) -> Result:
    """How many results there are, how many of them have failed, and how many new tokens they have."""
    counts = {"rows": 0, "failed": 0, "tokens": 0}
    for result in results:
        for name, more in zip(counts, (1, failed(result), tokens_of(result)), strict=True):
            counts[name] += more
    return counts


def write_piece(folder: Path, number: int, first: int, results: Sequence[Result]) -> None:
    """Write the results of some rows of a shard, which will be joined."""
    path = folder / "pieces" / f"part-{number:05d}-{first}.jsonl"
    path.parent.mkdir(exist_ok=True)
    write_aside(path, lines(results))


def join_pieces(folder: Path, manifest: Manifest, number: int) -> None:
    """Make a part of the pieces that a shard was halved into.

    Raises:
        OSError: as `write_part`.
    """
    pieces = sorted(folder.glob(f"pieces/part-{number:05d}-*"), key=lambda path: int(path.stem.split("-")[2]))
    results = [json.loads(line) for path in pieces for line in path.read_bytes().splitlines()]
    write_part(folder, manifest, number, results, {"pieces": len(pieces)})
    for path in pieces:
        path.unlink()


def lines(results: Iterable[Result]) -> bytes:
    """Results as JSON lines."""
    return b"".join(map(as_line, results))


def error_result(manifest: Manifest, row: Row, message: str, text: str | None = None) -> Result:
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
    """The numbers of the shards that are done."""
    suffix = f".{manifest.settings['format']}"
    names = {path.name for path in folder.glob(f"part-*{suffix}")}
    return {number for number in range(len(manifest.shards)) if part_path(folder, manifest, number).name in names}


def merge_parts(folder: Path, manifest: Manifest, path: Path) -> None:
    """Write all results into one file, in the order of the inputs.

    Raises:
        OSError: as `write_part`.
    """
    parts = [part_path(folder, manifest, number) for number in range(len(manifest.shards))]
    with written_aside(path) as aside:
        if manifest.settings["format"] == "jsonl":
            with aside.open("wb") as file:
                for part in parts:
                    file.write(part.read_bytes())
            return
        parquet = import_parquet()
        with parquet.ParquetWriter(aside, columns_of(manifest)) as writer:
            for part in parts:
                writer.write_table(parquet.read_table(part))


def _table(manifest: Manifest, results: Sequence[Result]) -> Any:
    """Results as a table, the same columns in every part."""
    import pyarrow

    schema, rows = columns_of(manifest), []
    as_json = value_type(manifest) is None
    for result in map(finite, results):
        row = {name: result.get(name) for name in schema.names if not name.startswith("input_")}
        if as_json and "value" in result:
            row["value"] = json.dumps(result["value"], ensure_ascii=False)
        if as_json and "values" in result:
            row["values"] = [json.dumps(value, ensure_ascii=False) for value in result["values"]]
        given: Mapping[str, Any] = result.get("input", {})
        for name, kind in manifest.columns.items():
            value = given.get(name)
            row[f"input_{name}"] = json.dumps(value, ensure_ascii=False) if kind == "json" and name in given else value
        rows.append(row)
    return pyarrow.Table.from_pylist(rows, schema=schema)
