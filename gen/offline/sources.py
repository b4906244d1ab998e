"""The source of an output type: a job goes on only with the classes and validators that it began with.

Example: that of a pydantic class is its own source, that of its bases, of the classes in its fields, and of the
functions that check or write them. What these call is not followed. A class that no file defines, such as one of
`create_model`, has its core schema instead.
"""

import hashlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeGuard

from gen.offline.described import Described, imported

_KNOWN = {*sys.stdlib_module_names, "annotated_types", "gen", "pydantic", "pydantic_core", "typing_extensions"}
"""Packages whose versions stand for their source."""


def sources_of(described: Described | None) -> dict[str, str]:
    """The sha256 of the source of each class and function in an output type, by its name.

    Args:
        described: as `gen.offline.described.describe_type` gives it.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for kind in _classes(described):
        for name, source in _sources(kind):
            found[name].add(source)
    return {
        name: hashlib.sha256("\0".join(sorted(found[name])).encode(errors="surrogatepass")).hexdigest()
        for name in sorted(found)
    }


def _classes(described: Any) -> Iterator[type]:
    """The classes that a description names."""
    if isinstance(described, dict):
        for path in (described.get("class"), described.get("of")):
            if _is_foreign(path):
                yield imported(path)
        for value in described.values():
            yield from _classes(value)
    elif isinstance(described, list):
        for value in described:
            yield from _classes(value)


def _is_foreign(name: Any) -> TypeGuard[str]:
    """Whether what has this name, with its module before it, is of none of the known packages."""
    return isinstance(name, str) and re.split("[.:]", name)[0] not in _KNOWN


def _sources(kind: type) -> Iterator[tuple[str, str]]:
    """The name and the source of everything in a class that can be called, its bases included."""
    from pydantic import TypeAdapter

    try:
        schema: Any = TypeAdapter(kind).core_schema
    except Exception:  # errors of many types; the first worker tells them
        schema = None
    for one in [kind, *_callables(schema)]:
        for part in one.__mro__ if isinstance(one, type) else [one]:
            name = f"{part.__module__}.{part.__qualname__}"
            if _is_foreign(name):
                try:
                    yield name, inspect.getsource(part)
                except (OSError, TypeError):
                    yield name, repr(_plain(schema))


def _callables(schema: Any) -> Iterator[Any]:
    """The classes and functions in a core schema."""
    if isinstance(schema, dict):
        for value in schema.values():
            yield from _callables(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _callables(value)
    elif isinstance(schema, partial):
        yield from _callables([schema.func, *schema.args, schema.keywords])
    elif callable(schema):
        function = getattr(schema, "__func__", schema)  # of a bound method
        yield function if hasattr(function, "__qualname__") else type(function)


def _plain(schema: Any) -> Any:
    """A core schema without what differs from process to process."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items()}
    if isinstance(schema, list | tuple):
        return [_plain(value) for value in schema]
    if isinstance(schema, set | frozenset):
        return sorted(map(repr, schema))
    if callable(schema):
        return getattr(schema, "__qualname__", type(schema).__qualname__)
    return re.sub(r"(?<=:)\d{6,}|0x[0-9a-f]{6,}", "", repr(schema))  # addresses
