"""Refuses types for which a function of pydantic's looks at more than the text, or checks more than a schema says.

Example: `pydantic.ImportString` imports the module that a text names, and `FilePath` looks into the file system. A
model's text must do neither.
"""

from collections.abc import Iterator
from typing import Any

_SKIPPED = ("serialization", "metadata", "cls", "default", "python_schema", "strict_schema")
_REFUSED = {
    "import_string": "ImportString imports what a text names; take gen.choice of what it may be, and look it up",
    "PathType.": "this path is looked up in the file system as it is read; take pathlib.Path, and look it up",
    "PaymentCardNumber.": "PaymentCardNumber checks a sum of digits; take Annotated[str, Field(pattern=...)]",
    "ByteSize.": "ByteSize reads units; take int",
}


def refusal(core_schema: Any) -> str | None:
    """Why a core schema of pydantic's must not read a text; None if it may."""
    for schema in _inside(core_schema):
        function = schema.get("function")
        if isinstance(function, dict) and callable(called := function.get("function")):
            name, module = getattr(called, "__qualname__", ""), getattr(called, "__module__", "") or ""
            why = next((why for begin, why in _REFUSED.items() if name.startswith(begin)), None)
            if why and module.partition(".")[0] == "pydantic":
                return why
        if schema.get("type") == "is-instance":
            return (
                f"no JSON is an instance of {getattr(schema['cls'], '__name__', schema['cls'])}; take str, int or float"
            )
    return None


def _inside(node: Any) -> Iterator[dict[str, Any]]:
    """A core schema and all core schemas in it that read JSON."""
    todo = [node]
    while todo:
        here = todo.pop()
        if isinstance(here, dict):
            if isinstance(here.get("type"), str):
                yield here
            todo += [value for name, value in here.items() if name not in _SKIPPED]
        elif isinstance(here, list | tuple):
            todo += here
