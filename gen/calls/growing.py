"""Values of an output type while its text grows: as far as they are written, or item by item."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from functools import cached_property
from itertools import islice
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    Required,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from gen.calls.partial_json import PartialJson
from gen.completions import Completion
from gen.constraints.composing.trees import Plan
from gen.constraints.constraint import Constraint
from gen.constraints.output_types import Repeat
from gen.errors import ArgumentError, GenError, ValueRefusedError, show
from gen.loop.feed import Feed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from gen.calls.streams import Stream

NOTHING: Any = object()
END: Any = object()
T = TypeVar("T")
Found = Callable[[str, Completion | None], Iterator[Any]]
"""(piece, completion) -> what is new after a piece; at the end the piece is "", and there is the completion."""


class Each(Iterator[T], AsyncIterator[T]):
    """What a stream gives, one after the other: for `for`, and for `async for`.

    Args:
        take: gives what has come; NOTHING where nothing has come yet, END at the end.
    """

    def __init__(self, feed: Feed, take: Callable[[], T]) -> None:
        self._feed, self.take = feed, take

    def _taken(self) -> T:
        try:
            return self.take()
        except (StopIteration, StopAsyncIteration) as error:  # of a user's function; it would end `for` in silence
            raise GenError(f"the text has failed: a function has raised {type(error).__name__}: {error}") from error

    def __next__(self) -> T:
        while (found := self._taken()) is NOTHING:
            self._feed.wait()
        if found is END:
            raise StopIteration
        return found

    async def __anext__(self) -> T:
        while (found := self._taken()) is NOTHING:
            await self._feed.arrival()
        if found is END:
            raise StopAsyncIteration
        return found


class Growing(Each[Any]):
    """What a stream's text has given, each thing once.

    Args:
        pieces: of the text.
        make: makes the function that finds what is new, called with the first piece; its type may be compiled by then.
    """

    def __init__(self, stream: "Stream", pieces: Each[str], make: Callable[[], Found]) -> None:
        super().__init__(pieces._feed, self._take)
        self._stream, self._pieces, self._make = stream, pieces, make
        self._ready: Iterator[Any] = iter(())
        self._ended = False

    @cached_property
    def _found(self) -> Found:
        return self._make()

    def check(self) -> Self:
        """Itself, if its type has what is wanted of it."""
        _ = self._found
        return self

    def _take(self) -> Any:
        while (one := self._take_ready()) is NOTHING and not self._ended:
            piece: Any = self._pieces.take()
            if piece is NOTHING:
                return NOTHING
            self._ended = piece is END
            if not self._ended:
                self._ready = self._found(piece, None)
            elif not self._stream.given_up:
                self._ready = self._found("", self._stream.completion())
        return END if one is NOTHING else one

    def _take_ready(self) -> Any:
        """The next thing that is ready; NOTHING without one. Raises a ValueRefusedError if the type refuses it."""
        try:
            return next(self._ready, NOTHING)
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
    last: Any = NOTHING

    def found(piece: str, completion: Completion | None) -> Iterator[Any]:
        nonlocal last
        if text is None:
            if completion is not None:
                yield completion.value
            return
        text.push(piece)
        if completion is None and text.text.lstrip()[:1] not in ("{", "["):
            return
        value = text.value() if completion is None else json.loads(completion.text)
        if not (value is None and completion is None) and value != last:
            if completion is None:
                last = text.value()  # one of its own: a reader may change what it gets
            yield value

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
        reader = _ItemReader(tree.python_type, of)
        text = PartialJson(schema, reader.keys)
        if not text.may_have_items():
            raise _no_items(of)

        def found(piece: str, completion: Completion | None) -> Iterator[Any]:
            text.push(piece)
            for item in text.take_items():
                yield from reader.read(item)
            if completion is not None:
                yield from reader.rest(completion.value)

        return found
    if constraint is None or not isinstance(tree, Repeat) or of is not None:
        raise _no_items(of)
    return _repeated(constraint, tree)


def _no_items(of: object) -> ArgumentError:
    return ArgumentError(
        f"items are those of list[...], of gen.repeat, and of a list in an object, as items(of='lines'); got of="
        f"{show(of)}, and the output type has none of these."
    )


def _repeated(constraint: Constraint, tree: Repeat) -> Found:
    """Gives the items of `gen.repeat`: each as soon as no further text can change it, and the others at the end."""
    splitter, left, given = constraint.splitter, b"", 0
    assert splitter is not None  # types that are made of others have one; tells mypy

    def found(piece: str, completion: Completion | None) -> Iterator[Any]:
        nonlocal left, given
        if completion is not None:
            yield from completion.value[given:]
            return
        left += piece.encode()
        pieces, end = splitter.certain(left, given)
        left, given = left[end:], given + len(pieces)
        yield from map(tree.part.value, pieces)

    return found


def _schema_of(constraint: Constraint | None) -> Any:
    """The JSON schema of a type whose text is JSON; None for others."""
    tree = None if constraint is None else constraint.tree
    return None if not isinstance(tree, Plan) or tree.schema is None else json.loads(tree.schema)


class _Field(NamedTuple):
    """A field that may have the list: its names in the text and in Python, its type, and its class's settings."""

    written: str
    name: str
    hint: Any
    config: Any = None


class _ItemReader:
    """Reads the items of a list in a text of a type.

    Where the type has several lists, the whole text says which one is meant: an item that these read as different
    values waits for the end, with all that follow.

    Args:
        python_type: the type; None where items are plain data.
        of: the field that has the list; None for the value itself.

    Attributes:
        keys: what the list may be called in the text; none for the value itself.

    Raises:
        ArgumentError: it has no such list.
    """

    def __init__(self, python_type: Any, of: str | None) -> None:
        self.keys, self._names = [] if of is None else [of], list[str]()
        self._read: list[Callable[[str], Any]] = [json.loads]
        self._given, self._waits = list[Any](), False
        if python_type is None:
            return
        fields = [_Field("", "", python_type)]
        if of is not None:
            if not (fields := _fields_of(python_type, of)):
                raise ArgumentError(f"{show(python_type)} has no field {of!r} whose items could be given.")
            self.keys, self._names = [one.written for one in fields], [one.name for one in fields]
        items = [(item, field.config) for field in fields for item in _items_of(field.hint)]
        if not items:
            raise ArgumentError(f"{show(fields[0].hint)} is no list whose items could be given.")
        distinct = [one for number, one in enumerate(items) if one not in items[:number]]
        self._read = [_adapter(*one).validate_json for one in distinct]

    def read(self, text: str) -> Iterator[Any]:
        """The value of an item's text, if it is certain."""
        if self._waits:
            return
        values, errors = list[Any](), list[ValueError]()
        for read in self._read:
            try:
                values.append(read(text))
            except ValueError as error:
                errors.append(error)
        if not values:
            raise errors[0]
        self._waits = len({(type(one), repr(one)) for one in values}) > 1
        if not self._waits:
            self._given.append(values[0])
            yield values[0]

    def rest(self, value: Any) -> Iterator[Any]:
        """The items that have waited, from the whole value."""
        if not self._waits:
            return
        value = _bare(value)
        for name in self._names:
            if (found := value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)) is not None:
                value = _bare(found)
                break
        if isinstance(value, Set):  # it has an order of its own
            yield from (one for one in value if one not in self._given)
        else:
            yield from islice(value, len(self._given), None)


def _bare(value: Any) -> Any:
    """What a pydantic `RootModel` has in it; other values as they are."""
    return _bare(value.root) if getattr(value, "__pydantic_root_model__", False) else value


def _adapter(item: Any, config: Any) -> "TypeAdapter[Any]":
    """What reads an item's text, under the settings of the class that has the list, unless the item has its own."""
    from pydantic import PydanticUserError, TypeAdapter  # calls without types do not need it

    try:
        return TypeAdapter(item, config=config)
    except PydanticUserError:
        return TypeAdapter(item)


def _parts_of(python_type: Any) -> list[Any] | None:
    """The types of which one is meant: those of a union, an annotation, a pydantic `RootModel`, a NewType or a `type`
    statement; None for others."""
    origin, parts = get_origin(python_type), get_args(python_type)
    if origin in (Union, UnionType):
        return [*parts]
    if origin in (Annotated, Required, NotRequired):
        return [*parts[:1]]
    for name in ("__supertype__", "__value__"):
        if (meant := getattr(python_type, name, None)) is not None:
            return [meant[parts] if parts else meant]
    is_root = isinstance(python_type, type) and getattr(python_type, "__pydantic_root_model__", False)
    return [python_type.model_fields["root"].annotation] if is_root else None


def _fields_of(python_type: Any, of: str) -> list[_Field]:
    """A field by its name in Python, or by that in the text; of a union that of each type which has it."""
    if (parts := _parts_of(python_type)) is not None:
        return [found for part in parts for found in _fields_of(part, of)]
    if not isinstance(python_type, type):
        return []
    config = getattr(python_type, "model_config", getattr(python_type, "__pydantic_config__", None))
    known: Mapping[str, Any] = getattr(python_type, "__pydantic_fields__", {})
    aliases = (config or {}).get("validate_by_alias") is not False
    fields = [
        _Field(_written_name(name, one) if aliases else name, name, one.annotation, config)
        for name, one in known.items()
    ]
    if not known:
        hints = get_type_hints(python_type, include_extras=True)
        fields = [_Field(name, name, hint, config) for name, hint in hints.items()]
    return [one for one in fields if one.name == of][:1] or [one for one in fields if one.written == of][:1]


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
    if hasattr(kind, "__pydantic_fields__") or hasattr(kind, "_fields"):  # a model, a named tuple
        return []
    if kind is tuple and parts[1:] != (...,) and parts:  # its places have types of their own
        return []
    return [parts[0] if parts else Any]
