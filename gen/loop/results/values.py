"""The value that a text stands for, by its request's output type."""

from dataclasses import replace

from gen.completions import Completion
from gen.errors import IncompleteError, show
from gen.requests.request import Request

_MORE = "Give more max_new_tokens, or a type whose strings and lists have bounds"

_LATER = "Give more max_time"


def valued(request: Request, completion: Completion) -> Completion:
    """A completion with its value, and the engine that held the text to its output type.

    Raises:
        IncompleteError: the text is no whole value, its limit has shaped it, max_time was over, or its type refuses the
            value.
    """
    constraint = request.constraint
    if constraint is None:
        return completion
    name, bare = f"prompt {request.number}", replace(completion, value=None, engine=constraint.engine)
    text, limited = show(completion.text, 200), completion.finish_reason == "length"
    late = completion.finish_reason == "timeout"
    cut = completion.finish_reason == "stop" or (limited and bool(request.stops))  # a stop may have ended it as well
    written = constraint.written(completion.text, completion.token_ids, cut=cut)
    if (limited and constraint.engine == "host") or not constraint.accepts(written):
        raise IncompleteError(
            f"{name}: the text ended ({completion.finish_reason}) before it was a whole value of its output type: "
            f"{text}. {_MORE if limited else _LATER if late else 'Give another stop'}; the text is in .completion of "
            "this error.",
            bare,
        )
    try:
        made = replace(bare, value=constraint.parse(written))
    except Exception as error:  # validators are the user's code
        shaped = f" (its limit of {request.limit} tokens has shaped it)" if limited else ""
        raise IncompleteError(
            f"{name}: the output type refuses a text that meets its schema{shaped}, {text}: {error}", bare
        ) from error
    if late and not request.shorten:
        raise IncompleteError(
            f"{name}: max_time was over before the text had ended; it is whole, but may not be all that the model "
            f"would have written: {text}. {_LATER}, or take it as it is with shorten=True; it is in .completion of "
            "this error.",
            made,
        )
    if limited and not request.shorten:
        raise IncompleteError(
            f"{name}: the limit of {request.limit} new tokens has shaped the value, which is whole but may not be what "
            f"the model would have written: {text}. {_MORE}, or take it as it is with shorten=True; it is in "
            ".completion of this error.",
            made,
        )
    return made
