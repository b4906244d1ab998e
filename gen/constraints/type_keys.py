"""Tells whether a Python type is what it was: by all that it is made of, one by one.

Example: of `list[Person]` that is `list`, `Person` and everything that stands in the class `Person`, among it what
pydantic has made of its fields. Where the class is changed, or rebuilt by pydantic, something else stands there.
"""

from collections.abc import Hashable
from inspect import get_annotations
from typing import Annotated, Any, Literal, get_args, get_origin

_UNCHANGED = frozenset({"abc", "builtins", "collections", "enum", "pydantic", "typing"})  # modules whose classes do not


class TypeKey:
    """What a type is made of; equal for two types that are made of the same objects, as long as one of the keys lives.

    Attributes:
        known: whether all of it is known. Names in annotations are not, since they may come to mean something else.
        ids: the identities of all parts.
    """

    def __init__(self, output_type: Any) -> None:
        self.known = True
        self._parts: list[Any] = []  # kept, so that nothing else gets their identities
        self._classes: set[int] = set()
        self._look(output_type)
        self.ids: tuple[Hashable, ...] = tuple(map(_identity, self._parts))

    def _look(self, part: Any) -> None:
        origin, arguments = get_origin(part), get_args(part)
        if origin is Literal:
            self._parts += (origin, *arguments, None)
        elif origin is Annotated:
            self._parts.append(origin)
            self._look(arguments[0])
            self._parts += (*arguments[1:], None)
        elif origin is not None:
            self._parts.append(origin)
            for one in arguments:
                self._look(one)
            self._parts.append(None)  # the end, so that list[int] | str is not list[int | str]
        elif isinstance(part, type):
            self._parts.append(part)
            if id(part) not in self._classes:
                self._classes.add(id(part))
                for one in part.__mro__:
                    if one.__module__.partition(".")[0] not in _UNCHANGED:
                        self._class(one)
        elif any(part is one for one in (None, Any, ...)):  # whose `==` may be anything
            self._parts.append(part)
        else:
            self.known = False

    def _class(self, one: type) -> None:
        said = vars(one)
        for name, value in said.items():
            self._parts += (name, value)
        if said.get("__pydantic_complete__") is not True:  # pydantic has read them, and keeps what it has read
            for annotation in get_annotations(one).values():
                self._look(annotation)


def _identity(part: Any) -> Hashable:
    """What is equal for equal parts only: a small value itself, since it may be there as several objects, or an id."""
    return (type(part), part) if isinstance(part, str | int | float | None) else id(part)
