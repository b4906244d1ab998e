"""The errors that gen raises: each says what was expected, what came and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


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


def refuse_unknown(where: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise ArgumentError if there are unknown argument names, with the nearest known name.

    Raises:
        ArgumentError: `unknown` is not empty.
    """
    known = list(known)
    for name in unknown:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(f"{where} has no argument {name!r}: {hint}It takes {', '.join(known)}.")
