"""Values of an output type while its text grows: as far as they are written, or item by item."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Self, Union, get_args, get_origin, get_type_hints

from gen.calls.partial_json import PartialJson
from gen.completions import Completion
from gen.constraints.composing.trees import Plan
from gen.constraints.constraint import Constraint
from gen.constraints.output_types import Repeat
from gen.errors import ArgumentError, show

_NOTHING = object()
Found = Callable[[str, Completion | None], list[Any]]
"""(piece, completion) -> what is new after a piece; at the end the piece is "", and there is the completion."""


class Pieces(Protocol):
    """A stream, as it is read here."""

    def piece(self) -> str:
        """The next piece. Raises StopIteration after the last one."""

    async def apiece(self) -> str:
        """The same for event loops. Raises StopAsyncIteration after the last one."""

    def completion(self) -> Completion: ...


class Growing(Iterator[Any], AsyncIterator[Any]):
    """What a stream's text has given, each thing once.

    Args:
        make: makes the function that finds what is new, called with the first piece; its type may be compiled by then.
    """

    def __init__(self, stream: Pieces, make: Callable[[], Found]) -> None:
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
                self._ready = self._found(piece, None)
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
                self._ready = self._found(piece, None)
        return self._ready.pop(0)

    def _end(self) -> None:
        self._ended = True
        self._ready = self._found("", self._stream.completion())


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
    schema = _schema_of(constraint)
    tree = None if constraint is None else constraint.tree
    python_type = tree.python_type if isinstance(tree, Plan) else None
    is_list = python_type is None and schema is not None and schema.get("type") == "array"
    if schema is not None and (of is not None or is_list or _item_of(python_type) is not None):
        validated = _validator(python_type, of)
        text = PartialJson(schema, () if of is None else (of,))

        def found(piece: str, completion: Completion | None) -> list[Any]:
            text.push(piece)
            return [validated(item) for item in text.take_items()]

        return found
    if constraint is None or not isinstance(tree, Repeat) or of is not None:
        raise ArgumentError(
            f"items are those of list[...], of gen.repeat, and of a list in an object, as items(of='lines'); got of="
            f"{show(of)}, and the output type has none of these."
        )
    return _repeated(constraint, tree.separator.encode())


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


def _validator(python_type: Any, of: str | None) -> Callable[[str], Any]:
    """A function that gives the value of an item's text."""
    from pydantic import TypeAdapter  # calls without types do not need it

    if python_type is None:
        return json.loads
    if of is not None:
        fields = {name: field.annotation for name, field in getattr(python_type, "model_fields", {}).items()}
        hints = fields or (get_type_hints(python_type, include_extras=True) if isinstance(python_type, type) else {})
        if of not in hints:
            raise ArgumentError(f"{show(python_type)} has no field {of!r} whose items could be given.")
        python_type = hints[of]
    item = _item_of(python_type)
    if item is None:
        raise ArgumentError(f"{show(python_type)} is no list whose items could be given.")
    adapter: TypeAdapter[Any] = TypeAdapter(item)
    return adapter.validate_json


def _item_of(python_type: Any) -> Any:
    """The type of a list's items; None for types that are no list."""
    origin, parts = get_origin(python_type), get_args(python_type)
    if origin is Annotated:
        return _item_of(parts[0])
    if origin in (Union, UnionType):
        return next((found for found in map(_item_of, parts) if found is not None), None)
    if origin is tuple and parts[1:] != (...,):  # its places have types of their own
        return None
    return parts[0] if parts and origin not in (dict, Literal) else None
