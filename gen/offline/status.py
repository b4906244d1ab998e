"""How far a job is, and its results in one file, as JSON lines or parquet, from nothing but its folder."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gen.errors import GenError, show_path
from gen.offline.files import held_by, written_aside
from gen.offline.folder import NAME, Manifest, Result, done_parts, part_path, read_manifest, read_meta, read_part
from gen.offline.records import import_parquet


def status(folder: Path) -> dict[str, Any]:
    """How many parts and rows are done, and which driver works on the job; None if no driver does."""
    manifest = _read(folder)
    done = done_parts(folder, manifest)
    metas = [read_meta(folder, number) for number in done]
    return {
        "parts": f"{len(done)} of {len(manifest.parts)}",
        "rows": f"{sum(meta['rows'] for meta in metas)} of {sum(part[-1] for part in manifest.parts)}",
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
    missing = len(manifest.parts) - len(done)
    if path.suffix not in (".jsonl", ".parquet"):
        raise GenError(f"give a file *.jsonl or *.parquet, got {show_path(path)}")
    if missing and not incomplete:
        raise GenError(
            f"{missing} of {len(manifest.parts)} parts are missing; run the job to its end first, or ask for an "
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


Batches = Iterable[list[dict[str, Any]]]
_SIMPLE = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool_"}


_KINDS = {bool: "bool_", int: "int64", float: "float64", str: "string"}  # of columns; all other values are JSON


def write_parquet(path: Path, manifest: Manifest, parts: Batches) -> None:
    """Write results into a parquet file.

    Args:
        parts: the results of each part; they are gone through twice.
    Raises:
        ArgumentError: pyarrow is not installed.
        GenError: the results are answers in OpenAI's format.
        OSError: the file cannot be written.
    """
    parquet = import_parquet()
    kinds: dict[str, str | None] = {}
    for results in parts:
        for result in results:
            if "custom_id" in result:
                raise GenError("answers in OpenAI's format are JSON lines; give a file *.jsonl.")
            for name, value in result.get("input", {}).items():
                kinds[name] = _wider(kinds.get(name), value)
    columns = {name: kind or "string" for name, kind in kinds.items()}
    value = _value_type(manifest)
    schema = _schema(manifest, value, columns)
    with written_aside(path) as aside, parquet.ParquetWriter(aside, schema) as writer:
        for results in parts:
            rows = [_row(result, columns, as_json=value is None) for result in results]
            writer.write_table(_table(rows, schema))


def _wider(kind: str | None, value: Any) -> str | None:
    """The type of a column of type `kind` that also has this value; None if it has no value."""
    if value is None:
        return kind
    found = _KINDS.get(type(value), "json")
    if found == "int64" and not -(2**63) <= value < 2**63:
        found = "json"
    if kind in (None, found):
        return found
    return "float64" if {kind, found} == {"int64", "float64"} else "json"


def _schema(manifest: Manifest, value: Any, columns: Mapping[str, str]) -> Any:
    """The columns of the file, of results and then of rows."""
    import pyarrow

    text, whole = pyarrow.string(), pyarrow.int64()
    value = value or text
    fields: dict[str, Any] = {"id": text}
    if _makes_several(manifest):
        fields |= {"texts": pyarrow.list_(text), "values": pyarrow.list_(value), "finish_reasons": pyarrow.list_(text)}
    else:
        fields |= {"text": text, "value": value, "finish_reason": text}
    if manifest.settings["output_type"] is None:
        fields = {name: kind for name, kind in fields.items() if not name.startswith("value")}
    fields |= {"tokens": whole, "seed": whole, "error": text}
    kinds = {name: text if kind == "json" else getattr(pyarrow, kind)() for name, kind in columns.items()}
    return pyarrow.schema([*fields.items(), *((f"input_{name}", kind) for name, kind in kinds.items())])


def _row(result: Mapping[str, Any], columns: Mapping[str, str], *, as_json: bool) -> dict[str, Any]:
    """A result as a row of the file.

    Args:
        as_json: whether values are written as JSON.
    """
    row = dict(result)
    if as_json and "value" in result:
        row["value"] = json.dumps(result["value"], ensure_ascii=False)
    if as_json and "values" in result:
        row["values"] = [json.dumps(value, ensure_ascii=False) for value in result["values"]]
    given = row.pop("input", {})
    for name, kind in columns.items():
        value = given.get(name)
        row[f"input_{name}"] = json.dumps(value, ensure_ascii=False) if kind == "json" and name in given else value
    return row


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    import pyarrow

    return pyarrow.Table.from_pylist(rows, schema=schema)


def _makes_several(manifest: Manifest) -> bool:
    """Whether a row has several texts."""
    settings = (manifest.settings["sampler"] or ["", {}])[1]
    return int(settings.get("samples", 1)) > 1 or int(manifest.settings["num_return_sequences"]) > 1


def _value_type(manifest: Manifest) -> Any:
    """The pyarrow type of the values if their schema fixes one; None if they are written as JSON."""
    return None if manifest.schema is None else _type_of(manifest.schema, manifest.schema.get("$defs", {}), 0)


def _type_of(schema: Any, definitions: Mapping[str, Any], depth: int) -> Any:
    """A fixed type for a schema's values; None if there is none, as for unions."""
    import pyarrow

    if not isinstance(schema, dict) or depth > 16:  # any value; a type within itself
        return None
    if "$ref" in schema:
        return _type_of(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth + 1)
    if "anyOf" in schema:  # one type beside null
        some = [one for one in schema["anyOf"] if one != {"type": "null"}]
        return _type_of(some[0], definitions, depth + 1) if len(some) == 1 else None
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if options and all(isinstance(one, str) for one in options):
        return pyarrow.string()
    kind = schema.get("type")
    if kind in _SIMPLE and not options:
        return getattr(pyarrow, _SIMPLE[kind])()
    if kind == "array" and "items" in schema and "prefixItems" not in schema:
        items = _type_of(schema["items"], definitions, depth + 1)
        return None if items is None else pyarrow.list_(items)
    if kind == "object" and schema.get("properties") and not schema.get("additionalProperties"):
        fields = {name: _type_of(one, definitions, depth + 1) for name, one in schema["properties"].items()}
        return None if None in fields.values() else pyarrow.struct(list(fields.items()))
    return None
