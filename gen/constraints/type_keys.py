"""Tells whether a Python type has changed, by comparing each part that it is made of.

Example: `list[Person]` is made of `list`, `Person` and all attributes of the class `Person`, among them pydantic's own
for its fields. If you change the class, or pydantic rebuilds it, one of these is another object.
"""

from collections.abc import Hashable
from inspect import get_annotations
from typing import Annotated, Any, Literal, get_args, get_origin

_UNCHANGED = frozenset({"abc", "builtins", "collections", "enum", "pydantic", "typing"})  # classes there stay


class TypeKey:
    """What a type is made of; `ids` are equal for types made of the same objects, as long as one of the keys lives.

    Attributes:
        known: whether all parts are known. Names in annotations are not, since their meaning may change.
        ids: the identities of all parts.
    """

    def __init__(self, output_type: Any) -> None:
        self.known = True
        self._parts: list[Any] = []  # kept, so that no other object gets their ids
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
        elif any(part is one for one in (None, Any, ...)):  # not by ==, which a type may define in any way
            self._parts.append(part)
        else:
            self.known = False

    def _class(self, one: type) -> None:
        said = vars(one)
        for name, value in said.items():
            self._parts += (name, value)
        if said.get("__pydantic_complete__") is not True:  # else pydantic keeps what it has read of them
            for annotation in get_annotations(one).values():
                self._look(annotation)


def _identity(part: Any) -> Hashable:
    """A key that only equal parts share: a small value itself, since several objects may have it; otherwise the id."""
    return (type(part), part) if isinstance(part, str | int | float | None) else id(part)
