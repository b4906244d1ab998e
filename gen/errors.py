"""The errors that gen raises, and checks of arguments: each says what was expected, what came and what to do."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real


class GenError(Exception):
    """Base of all errors of this library."""


class ArgumentError(GenError, ValueError):
    """An argument that cannot be used: out of range, of the wrong type, unknown, or at odds with another one."""


class DeviceError(GenError, RuntimeError):
    """A device that does not exist, or tensors that are not where they belong."""


class ModelError(GenError, RuntimeError):
    """A model or tokenizer that cannot be found, loaded or used together."""


class SamplingError(GenError, RuntimeError):
    """Nothing was left to sample: every token of a row had probability zero."""


def refuse_unknown(function: str, unknown: Iterable[str], known: Sequence[str]) -> None:
    """Raise an ArgumentError that names the nearest known argument, if there is an unknown one."""
    for name in unknown:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"{function} takes {', '.join(known) or 'no arguments'}, got {name!r}{hint}")


def check_number(
    name: str,
    value: object,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise an ArgumentError unless value is a finite number, not a bool, in minimum..maximum and above `above`."""
    right_type = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if right_type and math.isfinite(value) and minimum <= value <= maximum and value > above:  # type: ignore[arg-type, operator]
        return
    bounds = {"at least": minimum, "above": above, "at most": maximum}
    wanted = [f"{word} {bound}" for word, bound in bounds.items() if math.isfinite(bound)]
    kind = "a whole number" if whole else "a number"
    raise ArgumentError(f"{name} must be {kind} {' and '.join(wanted)}".rstrip() + f", got {value!r}")
