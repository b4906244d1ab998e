"""How far a job is, and its results in one file, as JSON lines or parquet, from nothing but its folder."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gen.errors import GenError, show_path
from gen.offline.files import held_by, written_aside
from gen.offline.folder import NAME, Manifest, counts_in, done_parts, part_bytes, read_manifest, read_part
from gen.offline.inputs import digests
from gen.offline.records import import_parquet


def status(folder: Path) -> dict[str, Any]:
    """How many parts and rows are done, and which driver works on the job; None if no driver does."""
    manifest = _read(folder)
    done = done_parts(folder, manifest)
    counts = counts_in(folder, manifest, done)
    return {
        "parts": f"{len(done)} of {len(manifest.parts)}",
        "rows": f"{counts['rows']} of {manifest.rows}",
        "failed": counts["failed"],
        "tokens": counts["tokens"],
        "driver": held_by(folder),
    }


def merge(folder: Path, path: Path, *, incomplete: bool = False) -> None:
    """Write all results of a job into one file, in the order of the inputs.

    Args:
        path: *.jsonl, or *.parquet.
        incomplete: also where parts are missing.
    Raises:
        ArgumentError: pyarrow is not installed.
        GenError: the job is not done, a part has lost results, the file's name asks for no such format, or the file
            is one of the job's, or one of its inputs.
        OSError: it cannot be written.
    """
    manifest, path = _read(folder), path.resolve()  # what a link leads to is written, and not the link
    done = sorted(done_parts(folder, manifest))
    missing = len(manifest.parts) - len(done)
    if path.suffix not in (".jsonl", ".parquet"):
        raise GenError(f"give a file *.jsonl or *.parquet, got {show_path(path)}")
    if path.parent == folder.resolve() and path.name.startswith(("part-", "manifest.")):
        raise GenError(f"{show_path(path)} is a file of the job itself; give another name.")
    if _is_input(path, manifest):
        raise GenError(f"{show_path(path)} is an input of the job; give another name.")
    if missing and not incomplete:
        raise GenError(
            f"{missing} of {len(manifest.parts)} parts are missing; run the job to its end first, or ask for an "
            "incomplete file."
        )
    if path.suffix == ".parquet":
        write_parquet(path, manifest, folder, done)
        return
    with written_aside(path) as aside, aside.open("wb") as file:
        for number in done:
            file.write(part_bytes(folder, manifest, number))


def _is_input(path: Path, manifest: Manifest) -> bool:
    """Whether a file has the name of an input, or its bytes: the name may be of the folder in which the job was run."""
    if path in {Path(one["name"]).resolve() for one in manifest.inputs}:
        return True
    if not path.is_file() or path.stat().st_size not in {one.get("size") for one in manifest.inputs}:
        return False
    [found] = digests([str(path)])
    return any({**one, "name": found["name"]} == found for one in manifest.inputs)


def _read(folder: Path) -> Manifest:
    if not (folder / NAME).is_file():
        if (driver := held_by(folder)) is not None:
            raise GenError(f"{driver} prepares the job in {show_path(folder)}, and has begun no part yet; ask later.")
        raise GenError(f"{show_path(folder)} has no {NAME}; give the folder of a job.")
    return read_manifest(folder)[0]


_SIMPLE = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool_"}
_KINDS = {bool: "bool_", int: "whole", float: "float64", str: "string"}  # of columns; all other values are JSON
_WIDER = {frozenset(("whole", "int64")): "int64", frozenset(("whole", "float64")): "float64"}
_as_json = partial(json.dumps, ensure_ascii=False)
_NAMES = {"json": "string", "whole": "int64"}  # where pyarrow has others for the kinds


def write_parquet(path: Path, manifest: Manifest, folder: Path, numbers: Sequence[int]) -> None:
    """Write the results of some parts into a parquet file; they are read twice.

    Raises:
        ArgumentError: pyarrow is not installed.
        GenError: the results are answers in OpenAI's format.
        OSError: the file cannot be written.
    """
    parquet = import_parquet()
    import pyarrow

    value = _type_of(manifest.schema)
    kinds: dict[str, str | None] = {}
    for number in numbers:
        for result in read_part(folder, manifest, number):
            if "custom_id" in result:
                raise GenError("answers in OpenAI's format are JSON lines; give a file *.jsonl.")
            made = result.get("values") or [result.get("value")]
            if not all(_holds(value, one) for one in made):
                value = None
            for name, one in _columns(result).items():
                kinds[name] = _wider(kinds.get(name), one)
    known = _known(manifest, value or pyarrow.string())
    more = {}
    for name in sorted(kinds, key=lambda name: name.startswith("input_")):
        if name not in known:
            more[name] = kinds[name] or "string"
    types = {name: getattr(pyarrow, _NAMES.get(kind, kind))() for name, kind in more.items()}
    schema = pyarrow.schema(known | types)
    with written_aside(path) as aside, parquet.ParquetWriter(aside, schema) as writer:
        for number in numbers:
            rows = [_row(result, more, as_json=value is None) for result in read_part(folder, manifest, number)]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _columns(result: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a result by their columns; those of its row have names of their own."""
    columns = dict(result)
    for name, value in columns.pop("input", {}).items():
        columns[f"input_{name}"] = value
    return columns


def _wider(kind: str | None, value: Any) -> str | None:
    """The kind of a column of this kind that also has this value; None if it has no value. Numbers are "whole" as long
    as float64 has all of them, too.
    """
    if value is None:
        return kind
    found = _KINDS.get(type(value), "json")
    if found == "whole" and abs(value) > 2**53:
        found = "int64" if -(2**63) <= value < 2**63 else "json"
    return found if kind in (None, found) else _WIDER.get(frozenset((kind, found)), "json")


def _holds(kind: Any, value: Any) -> bool:
    """Whether a type of pyarrow has room for all of a value; None is JSON, which has."""
    import pyarrow

    if kind is None:
        return True
    try:
        read = pyarrow.scalar(value, kind).as_py()
    except (ArithmeticError, TypeError, ValueError):  # pyarrow's errors are of these, too
        return False
    return _has(read, value)


def _has(read: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return all(name in read and _has(read[name], one) for name, one in value.items())
    if isinstance(value, list):
        return all(map(_has, read, value))
    return bool(read == value)


def _known(manifest: Manifest, value: Any) -> dict[str, Any]:
    """The columns that each job has, with their types."""
    import pyarrow

    text, whole = pyarrow.string(), pyarrow.int64()
    fields: dict[str, Any] = {"id": text}
    if _makes_several(manifest):
        fields |= {"texts": pyarrow.list_(text), "values": pyarrow.list_(value), "finish_reasons": pyarrow.list_(text)}
    else:
        fields |= {"text": text, "value": value, "finish_reason": text}
    if manifest.settings["output_type"] is None:
        fields = {name: kind for name, kind in fields.items() if not name.startswith("value")}
    return fields | {"tokens": whole, "seed": whole, "error": text}


def _row(result: Mapping[str, Any], columns: Mapping[str, str], *, as_json: bool) -> dict[str, Any]:
    """A result as a row of the file.

    Args:
        as_json: whether values are written as JSON.
    """
    row = _columns(result)
    if as_json and "value" in row:
        row["value"] = _as_json(row["value"])
    if as_json and "values" in row:
        row["values"] = [*map(_as_json, row["values"])]
    for name, kind in columns.items():
        if kind == "json" and name in row:
            row[name] = _as_json(row[name])
    return row


def _makes_several(manifest: Manifest) -> bool:
    """Whether a row has several texts."""
    settings = (manifest.settings["sampler"] or ["", {}])[1]
    return int(settings.get("samples", 1)) > 1 or int(manifest.settings["num_return_sequences"]) > 1


def _type_of(schema: Any, definitions: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """The pyarrow type of a schema's values if it fixes one; None if it does not, as a union, or is None."""
    import pyarrow

    if not isinstance(schema, dict) or depth > 16:  # any value; a type within itself
        return None
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        return _type_of(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth + 1)
    if "anyOf" in schema:  # one type beside null
        some = [one for one in schema["anyOf"] if one != {"type": "null"}]
        return _type_of(some[0], definitions, depth + 1) if len(some) == 1 else None
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if options and all(isinstance(one, str) for one in options):
        return pyarrow.string()
    kind = str(schema.get("type"))  # it may be a list of types
    if kind in _SIMPLE and not options:
        return getattr(pyarrow, _SIMPLE[kind])()
    if kind == "array" and "items" in schema and "prefixItems" not in schema:
        items = _type_of(schema["items"], definitions, depth + 1)
        return None if items is None else pyarrow.list_(items)
    if kind == "object" and schema.get("properties") and not schema.get("additionalProperties"):
        fields = {name: _type_of(one, definitions, depth + 1) for name, one in schema["properties"].items()}
        return None if None in fields.values() else pyarrow.struct(list(fields.items()))
    return None
