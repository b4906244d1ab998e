"""What a function is called with while it runs as before, or but for one call."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest
import torch


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str, tell: Callable[..., Any]) -> list[Any]:
    """What `tell` says of the arguments of each call from now on; the owner is an object, or the name of a module."""
    told: list[Any] = []
    owner = resolve_name(owner) if isinstance(owner, str) else owner
    function = getattr(owner, name)

    def noting(*given: Any, **more: Any) -> Any:
        told.append(tell(*given, **more))
        return function(*given, **more)

    patch.setattr(owner, name, noting)
    return told


def fails_once(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int = 0) -> list[Any]:
    """The call of this number, from 0, finds no memory; the list has an entry for each call."""

    def tell(*_: object, **__: object) -> None:
        if len(calls) == call:
            calls.append(None)
            raise torch.OutOfMemoryError("planted")

    calls = noted(patch, owner, name, tell)
    return calls
