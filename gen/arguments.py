"""Reads and checks arguments: whole numbers of any library, arrays as lists, token ids, texts, flags.

It imports no torch, since servers and jobs check their settings before they load it.
"""

import math
import operator
import sys
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from gen.errors import ArgumentError, in_words, setting, show

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**63 - 1  # the largest int64


class Array(Protocol):
    """A tensor, or an array of numpy or another library."""

    @property
    def dtype(self) -> Any: ...

    def tolist(self) -> Any: ...


def is_whole(value: object) -> bool:
    """Whether this is a whole number: of Python, of numpy, or a tensor of shape (). True and False are not."""
    if type(value) is int:
        return True
    if isinstance(value, bool | type) or not hasattr(value, "__index__"):
        return False
    if hasattr(value, "shape") and len(value.shape):
        return False
    return not hasattr(value, "dtype") or _of_whole_numbers(value)


def read_whole(name: str, value: object, *, minimum: int = 0, maximum: int = LARGEST) -> int:
    """A whole number as an int. Host sync: one for a tensor on a device.

    Raises:
        ArgumentError: it is no whole number, or not in minimum..maximum.
    """
    number = as_lists(value)
    if type(number) is int and minimum <= number <= maximum:
        return number
    upper = math.inf if maximum == LARGEST else maximum
    too_large = " and below 2**63" if type(number) is int and number > LARGEST else ""
    wanted = in_words(minimum, maximum=upper, whole=True)
    raise ArgumentError(f"{setting(name)} must be {wanted}{too_large}, got {show(value)}")


def as_lists(value: object) -> Any:
    """Turn whole numbers of any library into int, and arrays and tensors of them into lists; leave all else as it is.

    Host sync: one for a tensor on a device.
    """
    if type(value) is int:
        return value
    if isinstance(value, str | bytes | type) or (not is_whole(value) and not hasattr(value, "tolist")):
        return value
    if is_whole(value) and not _is_tensor(value):
        return operator.index(value)  # type: ignore[arg-type]
    if not _of_whole_numbers(value):
        return value
    try:
        return value.tolist()  # type: ignore[attr-defined]
    except RuntimeError:  # a tensor without values, as on the meta device
        return value


def read_token_ids(name: str, value: object, known: int) -> list[int]:
    """One token id, or several, as a list of int.

    Args:
        known: the size of the vocabulary.
    Raises:
        ArgumentError: the value is something else, or has an id outside the vocabulary.
    """
    given = as_lists(value)
    given = [given] if is_whole(given) else given
    if not isinstance(given, Sequence | Set) or isinstance(given, str | bytes | bytearray | memoryview):
        raise ArgumentError(f"{setting(name)} must be a token id or a list of token ids, got {show(value)}")
    token_ids = [as_lists(token_id) for token_id in given]
    for token_id in token_ids:
        if not is_whole(token_id) or not 0 <= token_id < known:
            raise ArgumentError(
                f"{setting(name)} has the token id {show(token_id)}; the vocabulary is 0 to {known - 1}."
            )
    return token_ids


def check_salt(salt: object) -> None:
    """Raise an ArgumentError unless this can be a cache_salt: a text, or None."""
    if salt is not None and not isinstance(salt, str):
        raise ArgumentError(f'cache_salt must be a text, as "tenant 7", or None, got {show(salt)}')


def check_text(name: str, text: str) -> None:
    """Raise an ArgumentError if a text has a lone surrogate, which no tokenizer takes.

    Args:
        name: what the error calls the text, such as "prompt 3".
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name} has a lone surrogate \\u{ord(text[error.start]):04x} at character {error.start}; it is half of a "
            "character, or a byte that was not UTF-8. Read the text again, or repair it with "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
        ) from error


def check_flag(name: str, value: object) -> None:
    """Raise an ArgumentError unless value is True or False. Python would count "no" as True."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{setting(name)} must be True or False, got {show(value)}")


def _is_tensor(value: object) -> "TypeGuard[Tensor]":
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))  # without torch there are no tensors


def _of_whole_numbers(array: Any) -> bool:
    if _is_tensor(array):
        return not (array.is_floating_point() or array.is_complex() or array.dtype == sys.modules["torch"].bool)
    return getattr(getattr(array, "dtype", None), "kind", None) in ("i", "u")
