"""A job's parts: a file of results for some of its rows, there whole or not at all, and a file of facts beside it.

There is one result for each row, a dict, in the order of the rows; see `gen.run_batch` for what is in it.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gen.offline.files import as_line, remove, write_aside
from gen.offline.manifest import Manifest
from gen.offline.rows import Row

Result = dict[str, Any]


def part_path(folder: Path, number: int) -> Path:
    """Where the results of a part are."""
    return folder / f"part-{number:05d}.jsonl"


def meta_path(folder: Path, number: int) -> Path:
    """The file that says how a part was made."""
    return folder / f"part-{number:05d}.meta.json"


def write_part(folder: Path, number: int, results: Sequence[Result], meta: Result) -> None:
    """Write a part's results; facts that are beside a part are always those of this part."""
    remove(meta_path(folder, number))
    write_aside(part_path(folder, number), lines(results))
    write_aside(meta_path(folder, number), as_line(counts_of(results) | meta))


def read_part(folder: Path, number: int) -> list[Result]:
    """A part's results."""
    return [json.loads(line) for line in part_path(folder, number).read_bytes().splitlines()]


def read_meta(folder: Path, number: int) -> Result:
    """The facts in the file beside a part, or, if a kill has left none, what the part itself says."""
    try:
        read: Result = json.loads(meta_path(folder, number).read_text(encoding="utf-8"))
        if read.keys() >= counts_of([]).keys():
            return read
    except (FileNotFoundError, ValueError):
        pass
    return counts_of(read_part(folder, number))


def counts_of(results: Iterable[Result]) -> Result:
    """How many results there are, how many of them have failed, and how many new tokens they have."""
    counts = {"rows": 0, "failed": 0, "tokens": 0}
    for result in results:
        for name, more in zip(counts, (1, failed(result), tokens_of(result)), strict=True):
            counts[name] += more
    return counts


def lines(results: Iterable[Result]) -> bytes:
    """Results as JSON lines."""
    return b"".join(map(as_line, results))


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
