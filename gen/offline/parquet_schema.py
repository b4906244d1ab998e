"""The columns of a job's parquet parts: the same in every part, whichever columns its rows have."""

from collections.abc import Mapping
from typing import Any

from gen.offline.manifest import Manifest

_SIMPLE = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool_"}


def columns_of(manifest: Manifest) -> Any:
    """A pyarrow schema."""
    import pyarrow

    text, whole = pyarrow.string(), pyarrow.int64()
    value = value_type(manifest) or text
    fields: dict[str, Any] = {"id": text}
    if makes_several(manifest):
        fields |= {"texts": pyarrow.list_(text), "values": pyarrow.list_(value), "finish_reasons": pyarrow.list_(text)}
    else:
        fields |= {"text": text, "value": value, "finish_reason": text}
    if manifest.settings["output_type"] is None:
        fields = {name: kind for name, kind in fields.items() if not name.startswith("value")}
    fields |= {"tokens": whole, "seed": whole, "error": text}
    kinds = {"string": text, "json": text, "int64": whole, "double": pyarrow.float64(), "bool": pyarrow.bool_()}
    return pyarrow.schema(
        [*fields.items(), *((f"input_{name}", kinds[kind]) for name, kind in manifest.columns.items())]
    )


def makes_several(manifest: Manifest) -> bool:
    """Whether a row has several texts."""
    settings = (manifest.settings["sampler"] or ["", {}])[1]
    return int(settings.get("samples", 1)) > 1 or int(manifest.settings["num_return_sequences"]) > 1


def value_type(manifest: Manifest) -> Any:
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
