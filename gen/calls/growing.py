"""Values of an output type while its text grows: as far as they are written, or item by item."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from gen.calls.partial_json import PartialJson
from gen.completions import Completion
from gen.constraints.composing.trees import Plan
from gen.constraints.constraint import Constraint
from gen.constraints.output_types import Repeat
from gen.errors import ArgumentError, GenError, ValueRefusedError, show

if TYPE_CHECKING:
    from gen.calls.streams import Stream

_NOTHING = object()
Found = Callable[[str, Completion | None], list[Any]]
"""(piece, completion) -> what is new after a piece; at the end the piece is "", and there is the completion."""


class Growing(Iterator[Any], AsyncIterator[Any]):
    """What a stream's text has given, each thing once.

    Args:
        make: makes the function that finds what is new, called with the first piece; its type may be compiled by then.
    """

    def __init__(self, stream: "Stream", make: Callable[[], Found]) -> None:
        self._stream, self._make = stream, make
        self._ready: list[Any] = []
        self._ended = False

    @cached_property
    def _found(self) -> Found:
        return self._make()

    def check(self) -> Self:
        """Itself, if its type has what is wanted of it."""
        _ = self._found
        return self

    def __next__(self) -> Any:
        while not self._ready:
            if self._ended:
                raise StopIteration
            try:
                piece = self._stream.piece()
            except StopIteration:
                self._end()
            else:
                self._ready = self._new(piece, None)
        return self._ready.pop(0)

    async def __anext__(self) -> Any:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                piece = await self._stream.apiece()
            except StopAsyncIteration:
                self._end()
            else:
                self._ready = self._new(piece, None)
        return self._ready.pop(0)

    def _end(self) -> None:
        self._ended = True
        if not self._stream.given_up:
            self._ready = self._new("", self._stream.completion())

    def _new(self, piece: str, completion: Completion | None) -> list[Any]:
        """What is new after a piece. Raises a ValueRefusedError if the type refuses it."""
        try:
            return self._found(piece, completion)
        except GenError:
            raise
        except Exception as error:  # validators are the user's code
            from pydantic_core import ValidationError  # calls without types do not need it

            told = self._stream.so_far()
            raise ValueRefusedError(
                f"the output type refuses what the text has so far: {show(told.text, 200)}. The type says: {error}",
                error.errors(include_url=False) if isinstance(error, ValidationError) else [],
                told,
            ) from error


def values_of(constraint: Constraint | None) -> Found:
    """See `gen.calls.streams.Stream.values`."""
    schema = _schema_of(constraint)
    text = None if schema is None else PartialJson(schema)
    last: Any = _NOTHING

    def found(piece: str, completion: Completion | None) -> list[Any]:
        nonlocal last
        if text is None:
            return [] if completion is None else [completion.value]
        text.push(piece)
        if completion is None and text.text.lstrip()[:1] not in ("{", "["):
            return []
        value = text.value() if completion is None else json.loads(completion.text)
        if (value is None and completion is None) or value == last:
            return []
        last = value
        return [value]

    return found


def items_of(constraint: Constraint | None, of: str | None) -> Found:
    """See `gen.calls.streams.Stream.items`.

    Raises:
        ArgumentError: the output type has no such items.
    """
    if of is not None and not isinstance(of, str):
        raise _no_items(of)
    schema = _schema_of(constraint)
    tree = None if constraint is None else constraint.tree
    if isinstance(tree, Plan) and schema is not None:
        key, validated = (of, json.loads) if tree.python_type is None else _validator(tree.python_type, of)
        text = PartialJson(schema, () if key is None else (key,))
        if not text.may_have_items():
            raise _no_items(of)

        def found(piece: str, completion: Completion | None) -> list[Any]:
            text.push(piece)
            return [validated(item) for item in text.take_items()]

        return found
    if constraint is None or not isinstance(tree, Repeat) or of is not None:
        raise _no_items(of)
    return _repeated(constraint, tree.separator.encode())


def _no_items(of: object) -> ArgumentError:
    return ArgumentError(
        f"items are those of list[...], of gen.repeat, and of a list in an object, as items(of='lines'); got of="
        f"{show(of)}, and the output type has none of these."
    )


def _repeated(constraint: Constraint, separator: bytes) -> Found:
    """Gives the items of `gen.repeat`: those before a separator, as soon as it has come, and the others at the end."""
    text, sought, given = "", 0, 0

    def found(piece: str, completion: Completion | None) -> list[Any]:
        nonlocal text, sought, given
        if completion is not None:
            return list(completion.value[given:])
        text += piece
        data = text.encode()
        values: list[Any] = []
        while separator and (place := data.find(separator, sought)) >= 0:
            sought = place + 1
            if (pieces := constraint.matched(data[:place])) is not None:
                values = constraint.value(pieces)
        new, given = values[given:], max(given, len(values))
        return new

    return found


def _schema_of(constraint: Constraint | None) -> Any:
    """The JSON schema of a type whose text is JSON; None for others."""
    tree = None if constraint is None else constraint.tree
    return None if not isinstance(tree, Plan) or tree.schema is None else json.loads(tree.schema)


def _validator(python_type: Any, of: str | None) -> tuple[str | None, Callable[[str], Any]]:
    """What the list is called in the text, and a function that gives the value of an item's text."""
    from pydantic import TypeAdapter  # calls without types do not need it

    key, types = of, [python_type]
    if of is not None:
        found = _fields_of(python_type, of)
        if not found:
            raise ArgumentError(f"{show(python_type)} has no field {of!r} whose items could be given.")
        key = found[0][0]
        types = [own for name, own in found if name == key]
    items = [item for one in types for item in _items_of(one)]
    if not items:
        raise ArgumentError(f"{show(types[0])} is no list whose items could be given.")
    item: Any = Union[tuple(items)]  # noqa: UP007 - of types that are not known here
    adapter: TypeAdapter[Any] = TypeAdapter(item)
    return key, adapter.validate_json


def _parts_of(python_type: Any) -> list[Any] | None:
    """The types of which one is meant: those of a union, of an annotation, or of a pydantic `RootModel`; None for
    others."""
    origin, parts = get_origin(python_type), get_args(python_type)
    if origin in (Annotated, Union, UnionType):
        return [*parts[:1]] if origin is Annotated else [*parts]
    root = getattr(python_type, "model_fields", {}).get("root")
    return None if root is None else [root.annotation]


def _fields_of(python_type: Any, of: str) -> list[tuple[str, Any]]:
    """What a field is called in the text, and its type; of a union that of each type which has it."""
    if (parts := _parts_of(python_type)) is not None:
        return [found for part in parts for found in _fields_of(part, of)]
    hints = get_type_hints(python_type, include_extras=True) if isinstance(python_type, type) else {}
    fields: Mapping[str, Any] = getattr(python_type, "__pydantic_fields__", {})
    written = {name: _written_name(name, field) for name, field in fields.items()}
    name = of if of in hints else next((name for name, said in written.items() if said == of), "")
    return [(written.get(name, name), hints[name])] if name in hints else []


def _written_name(name: str, field: Any) -> str:
    """What a field of pydantic is called in the text."""
    alias = field.validation_alias
    alias = getattr(alias, "choices", [alias])[0]  # of AliasChoices the first one is written
    return alias if isinstance(alias, str) else name


def _items_of(python_type: Any) -> list[Any]:
    """The types that a list's items may have; none for types that are no list."""
    if (several := _parts_of(python_type)) is not None:
        return [item for part in several for item in _items_of(part)]
    kind, parts = get_origin(python_type) or python_type, get_args(python_type)
    if not (isinstance(kind, type) and issubclass(kind, Iterable)) or issubclass(kind, str | bytes | Mapping | Enum):
        return []
    if kind is tuple and parts[1:] != (...,) and parts:  # its places have types of their own
        return []
    return [parts[0] if parts else Any]
