"""Settings as values: checked and copied when they are given, then fixed; compared and printed by their fields."""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from gen.errors import FixedError, check_number, refuse_unknown

T = TypeVar("T")


def immutable(name: str) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass fail with advice, and print and compare by its fields.

    An unknown keyword raises an ArgumentError that names the nearest known one. Setting an attribute raises an
    ArgumentError that says how to make a new object. A subclass that is no dataclass may add attributes of its own.

    Args:
        name: the name of the class in its repr.
    """

    def decorate(cls: type[T]) -> type[T]:
        inherited = [field.name for base in cls.__bases__ if is_dataclass(base) for field in fields(base)]
        every: Any = fields(cls)  # type: ignore[arg-type]
        every = sorted(every, key=lambda field: (field.kw_only, field.name in inherited))  # its own fields first
        known = [field.name for field in every if field.init]
        fixed = {field.name for field in every} | set(dir(cls))
        make: Any = cls.__init__

        @wraps(make)
        def __init__(self: Any, *values: Any, **named: Any) -> None:
            refuse_unknown(cls.__name__, [keyword for keyword in named if keyword not in known], known)
            make(self, *values, **named)

        def __setattr__(self: Any, attribute: str, value: Any) -> None:
            refuse(self, attribute)
            object.__setattr__(self, attribute, value)

        def __delattr__(self: Any, attribute: str) -> None:
            refuse(self, attribute)
            object.__delattr__(self, attribute)

        def refuse(self: Any, attribute: str) -> None:
            if type(self) is cls or attribute in fixed:
                example = f"dataclasses.replace(it, {attribute if attribute in known else known[0]}=...)"
                raise FixedError(
                    f"{type(self).__name__}.{attribute} cannot be changed; make a new one, as by {example}."
                )

        def __repr__(self: Any) -> str:
            shown = (
                f"{field.name}={_shown(getattr(self, field.name))}"
                for field in every
                if field.init and not _same(getattr(self, field.name), field.default)
            )
            return f"{name if type(self) is cls else type(self).__name__}({', '.join(shown)})"

        def __eq__(self: Any, other: object) -> bool:
            """Compared field by field. Host sync: one for each tensor, whose values are compared."""
            return type(self) is type(other) and all(_same(getattr(self, key), getattr(other, key)) for key in known)

        def __hash__(self: Any) -> int:
            return hash(repr(self))

        for method in (__init__, __setattr__, __delattr__, __repr__, __eq__, __hash__):
            setattr(cls, method.__name__, method)
        return cls

    return decorate


def read_number(name: str, value: object, **limits: float) -> float:
    """A number of any type, or a tensor of shape (), as a float, checked by `gen.errors.check_number`.

    Host sync: one for a tensor on a device.
    """
    if isinstance(value, Tensor) and not value.dim() and not value.is_meta:
        value = value.item()
    if isinstance(value, Decimal | Fraction):
        try:
            value = float(value)
        except (OverflowError, ValueError):  # too large, or a NaN that signals
            value = math.nan
    check_number(name, value, **limits)  # type: ignore[arg-type]
    return float(value)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"<{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}>"
    return repr(value)


def _same(one: object, other: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other)
    return one is other or (one.device == other.device and one.dtype == other.dtype and torch.equal(one, other))
