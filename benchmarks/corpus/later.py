"""Calls that are written down before they are made: their text is a case's name, and either commit's gen makes them."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from types import FunctionType
from typing import Any


@dataclass(frozen=True, eq=False, repr=False)
class Later:
    """A value that is found when it is needed; its attributes and calls are such values too.

    Attributes:
        name_: how it is written.
        find_: finds it.
    """

    name_: str
    find_: Callable[[], Any]

    def __getattr__(self, name: str) -> "Later":
        if name.startswith("__"):
            raise AttributeError(name)  # Python's own
        return Later(f"{self.name_}.{name}".removeprefix("gen."), lambda: getattr(self.find_(), name))

    def __call__(self, *args: Any, **named: Any) -> "Later":
        written = ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in named.items())])
        return Later(f"{self.name_}({written})", lambda: self.find_()(*made(args), **made(named)))

    def __repr__(self) -> str:
        return self.name_


Cases = Iterator[Later]


def shown(value: Any) -> str:
    """A value as it is written in names, the same in each process."""
    if type(value) in (list, tuple):
        return f"[{', '.join(map(shown, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{name!r}: {shown(one)}' for name, one in value.items())}}}"
    if isinstance(value, Later):
        return value.name_
    plain = repr(value).startswith("<")  # an object that does not say what it holds
    name = value.__name__ if isinstance(value, type | FunctionType) else type(value).__name__ if plain else repr(value)
    text = " ".join(name.split())
    return text if len(text) < 60 else f"{text[:40]}...{zlib.crc32(text.encode()):x}"


def made(value: Any) -> Any:
    """A value with what is found later in the place of each `Later`."""
    if isinstance(value, Later):
        return value.find_()
    if type(value) in (list, tuple):
        return type(value)(map(made, value))
    return {name: made(one) for name, one in value.items()} if type(value) is dict else value


def later(function: Callable[..., Any]) -> Later:
    """A function whose calls are made later."""
    return Later(function.__name__, lambda: function)


def every(*choices: Iterable[Any]) -> Iterator[Any]:
    """As itertools.product."""
    return product(*choices)


G = Later("gen", lambda: import_module("gen"))
S = G.samplers
