"""The errors that gen raises, checks of numbers and names that raise them, and values shortened for their messages."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from copyreg import __newobj__  # type: ignore[attr-defined]
from difflib import get_close_matches
from numbers import Integral, Rational, Real
from reprlib import Repr
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gen.completions import Completion

E = TypeVar("E", bound=BaseException)


# Characters around what a message says to a caller in Python; those of private use, which `show` writes as escapes.
_SETTING, _ADVICE, _END = "\ue000", "\ue001", "\ue002"
_MARKED = re.compile(f"([{_SETTING}{_ADVICE}])([^{_END}]*){_END}")


def setting(name: str) -> str:
    """The name of a setting in the message of a GenError; see `for_client`."""
    return f"{_SETTING}{name}{_END}"


def in_python(advice: str) -> str:
    """A part of the message of a GenError that helps only a caller in Python; see `for_client`."""
    return f"{_ADVICE}{advice}{_END}"


class _Pickled(BaseException):
    """An error that can be pickled, as between processes, whatever arguments its class takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __newobj__, (type(self), *self.args), vars(self)


class GenError(_Pickled, Exception):
    """Base of all errors of this library."""

    _marked: str | None = None  # the message with its marks; None if it has none

    def __init__(self, *args: object) -> None:
        if args and isinstance(args[0], str) and _MARKED.search(args[0]):
            self._marked = args[0]
            args = _MARKED.sub(r"\2", args[0]), *args[1:]
        super().__init__(*args)


def for_client(error: Exception, words: Mapping[str, str]) -> tuple[str, list[str]]:
    """An error's message for a client who has other words for settings, and those that stand in it.

    Only what the message marks is written otherwise: a text or a schema that it quotes stays as it is.

    Args:
        words: by the names of settings; a setting that is not in it has the same name there.
    """
    marked, found = getattr(error, "_marked", None) or str(error), list[str]()

    def written(match: re.Match[str]) -> str:
        if match[1] == _ADVICE:
            return ""
        found.append(words.get(match[2], match[2]))
        return found[-1]

    return _MARKED.sub(written, marked), found


class ArgumentError(GenError, ValueError):
    """An argument that cannot be used: out of range, of the wrong type, unknown, or in conflict with another one."""


class ContextError(ArgumentError):
    """A prompt that leaves no room for a new token in the model's context."""


class UnknownArgumentError(ArgumentError, TypeError):
    """An argument that a function does not have."""


class FixedError(ArgumentError, AttributeError):
    """An attempt to change an attribute of a sampler, or of another object that is fixed."""


class ResultError(ArgumentError):
    """A sampler or a logits processor of the user has returned something with which no text can go on."""


class DeviceError(GenError, RuntimeError):
    """A device that does not exist, or tensors that are not where they belong."""


class ModelError(GenError, RuntimeError):
    """A model or tokenizer that cannot be found, loaded or used together."""


class SamplingError(GenError, RuntimeError):
    """Every token of a row, or every option of `gen.classify`, had probability zero; or a sampler chose an id of no
    token.
    """


class NoTokenError(SamplingError, ArgumentError):
    """The settings of a text ban every token that its model and its output type leave."""


class ConstraintError(ArgumentError):
    """An output type that cannot be used: it is not supported, no text matches it, or its texts need more tokens."""


class IncompleteError(GenError):
    """A text ended before it was a whole value of its output type, or its limit has shaped it.

    Attributes:
        completion: the text as it is. If it is a whole value, which its limit has shaped or after which max_time was
            over, the completion has this `value`; otherwise the `value` is None.
    """

    def __init__(self, message: str, completion: "Completion") -> None:
        super().__init__(message)
        self.completion = completion


class ValueRefusedError(GenError):
    """A text is whole, but its output type refuses the value, as a validator of yours does.

    The validator's own error is the `__cause__`.

    Attributes:
        text: the text, which meets the type's schema.
        errors: what pydantic says, as `ValidationError.errors()` gives it; empty if another error was raised.
        completion: the text as it is, whose `value` is None.
    """

    def __init__(self, message: str, errors: Sequence[Mapping[str, Any]], completion: "Completion") -> None:
        super().__init__(message)
        self.text, self.errors, self.completion = completion.text, list(errors), completion


class EngineFull(GenError):
    """The engine has as many running and waiting requests as it takes: ask again later."""


class EngineClosed(GenError):
    """The engine takes no more requests: it was closed, or its loop has failed."""


class BatchError(GenError):
    """Some prompts of a list could not be continued; the others were.

    Attributes:
        results: one for each prompt, in order: what the call would have returned, or the exception in its place.
    """

    def __init__(self, prompts: int, errors: Mapping[int, Exception], results: list[Any]) -> None:
        number, error = next(iter(errors.items()))
        which = f"prompt {number}" if len(errors) == 1 else f"{len(errors)} prompts, the first of them prompt {number}"
        super().__init__(f"of {prompts} prompts {which} failed: {error} The other texts are in .results of this error.")
        self.results = results


@contextmanager
def kept_in(failed: dict[int, GenError] | None, number: int) -> Iterator[None]:
    """Keep the first GenError of a prompt, instead of raising it; None keeps none."""
    try:
        yield
    except GenError as error:
        if failed is None:
            raise
        failed.setdefault(number, error)


class Interrupted(_Pickled, KeyboardInterrupt):
    """You pressed Ctrl-C while a list of prompts was being continued.

    Attributes:
        results: one for each prompt, in order: what the call would have returned; for a text that had begun, a
            `Completion` of its part so far, whose finish_reason is None (a list of them if the prompt has several
            texts); for other prompts None.
    """

    def __init__(self, results: list[Any]) -> None:
        begun = sum(map(_goes_on, results))
        done = sum(result is not None for result in results) - begun
        others = f", and what there is of {begun} others" if begun else ""
        super().__init__(f"interrupted; {done} of {len(results)} texts are in .results of this error{others}.")
        self.results = results


def _goes_on(result: Any) -> bool:
    """Whether a result has a text that had not ended."""
    texts = result if isinstance(result, list) else [result]
    return any(getattr(text, "finish_reason", "") is None for text in texts)


class _Short(Repr):
    """Shortens long values, and shows tensors and arrays by shape and dtype, also within lists."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = longest
        self.maxlevel = 3

    def repr_instance(self, x: object, level: int) -> str:
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if shape and dtype is not None and not isinstance(x, type):
            return f"{type(x).__name__} {tuple(shape)} {str(dtype).removeprefix('torch.')}"
        if isinstance(x, bytes | bytearray):
            return f"{x[:20]!r}{'...' if len(x) > 20 else ''}"
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(x))
        half = (self.maxother - 3) // 2
        short = text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"
        return short if "\n" not in text else f"<{type(x).__name__}>"


def own(error: E) -> E:
    """A copy of an error, so that each reader raises its own: raising changes an error's traceback and context."""
    try:
        made = copy(error)
    except Exception:  # a class of the user, whose constructor takes other arguments than its `args`
        made = type(error).__new__(type(error), *error.args)
        vars(made).update(vars(error))
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made.with_traceback(error.__traceback__)


def show(value: object, longest: int = 80) -> str:
    """A user's value as errors quote it: its repr on one line, shortened to `longest` characters."""
    try:
        text = " ".join(_Short(longest).repr(value).split())
    except Exception:  # numbers of thousands of digits, and classes whose repr or shape fails
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def show_path(path: object) -> str:
    """A path as errors quote it, shortened to 200 characters."""
    return show(str(path), 200)


def refuse_unknown(function: str, unknown: Iterable[str], known: Sequence[str]) -> None:
    """Raise an UnknownArgumentError that names the nearest known argument, if there is an unknown one."""
    for name in unknown:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownArgumentError(f"{function} takes {', '.join(known) or 'no arguments'}, got {show(name)}{hint}")


def check_number(
    name: str,
    value: object,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise an ArgumentError unless value is a finite number in minimum..maximum and above `above`.

    Numbers are those of Python and numpy, without bool and Fraction, which torch does not take.
    """
    real = isinstance(value, Real) and not isinstance(value, Rational)
    if (isinstance(value, Integral) and not isinstance(value, bool)) or (real and not whole):
        number: float = value  # type: ignore[assignment]
        if (whole or _finite(number)) and minimum <= number <= maximum and number > above:
            return
    wanted = in_words(minimum, above, maximum, whole=whole)
    raise ArgumentError(f"{setting(name)} must be {wanted}, got {show(value)}")


def in_words(
    minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf, *, whole: bool = False
) -> str:
    """Which numbers are allowed, in words, such as "a whole number at least 1"."""
    bounds = {"at least": minimum, "above": above, "at most": maximum}
    wanted = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound not in (-math.inf, math.inf))
    return f"{'a whole number' if whole else 'a number'} {wanted}".rstrip()


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number or fraction that no float can hold
        return False
