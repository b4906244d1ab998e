"""The user's logits processors: gen's own kind, which sees all rows at once, and transformers', which sees one row."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature

from torch import Tensor

from gen.errors import ArgumentError, show

LogitsProcessor = Callable[..., Tensor]  # (token_ids, lengths, logits), or transformers' (input_ids, scores)


def takes_one_row(processor: LogitsProcessor) -> bool:
    """Whether a processor is called as transformers calls its own: (input_ids, scores), here with one row each.

    This is so for a subclass of transformers' `LogitsProcessor`, and for any other function that has two parameters
    without a default.
    """
    if any(kind.__name__ == "LogitsProcessor" and _of_transformers(kind) for kind in type(processor).__mro__):
        return True
    return _count_needed(processor) == 2


def read_processors(given: Sequence[LogitsProcessor] | None) -> tuple[LogitsProcessor, ...]:
    """The processors as a tuple.

    Raises:
        ArgumentError: it is not a list of functions with three or two parameters.
    """
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not all(map(_can_be_called, given)):
        raise ArgumentError(
            "logits_processors must be a list of functions (token_ids, lengths, logits) -> logits, or of transformers' "
            f"processors (input_ids, scores) -> scores, got {show(given)}"
        )
    return tuple(given)


def _can_be_called(processor: object) -> bool:
    """Whether it is a function that takes three arguments, or a processor for one row."""
    if not callable(processor) or isinstance(processor, type):
        return False
    if takes_one_row(processor):
        return True
    try:
        signature(processor).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # Python knows no parameters of the function, as of some builtins
        return True
    return True


def _count_needed(processor: LogitsProcessor) -> int:
    """How many positional parameters without a default a function has; 0 if it takes *args, or Python knows none."""
    try:
        parameters = signature(processor).parameters.values()
    except (TypeError, ValueError):
        return 0
    by_position = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return 0
    return sum(one.kind in by_position and one.default is Parameter.empty for one in parameters)


def _of_transformers(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "transformers"
