"""The value that a text stands for, by its request's output type."""

from collections.abc import Mapping
from dataclasses import replace

from gen.completions import Completion
from gen.errors import IncompleteError, ValueRefusedError, show
from gen.requests.request import Bound, Request

_MORE: Mapping[Bound, str] = {
    "max_new_tokens": "Give more max_new_tokens",
    "context": "The end of the context was its limit: give a shorter prompt",
    "max_batch_tokens": "max_batch_tokens was its limit: give more of these",
}
_LATER = "Give more max_time"


def valued(request: Request, completion: Completion, rank: int = 0) -> Completion:
    """A completion with its value and its request.

    Args:
        rank: of a beam search, which of its texts it is.
    Raises:
        IncompleteError: the text is no whole value, its limit has shaped it, or max_time was over.
        ValueRefusedError: the text is whole, and its type refuses the value.
    """
    constraint = request.constraint
    if constraint is None:
        return completion.made_by(request, rank)
    name = f"prompt {request.number}"
    bare = replace(completion, attempts=request.attempt).made_by(request, rank)
    text, limited = show(completion.text, 200), completion.finish_reason == "length"
    late = completion.finish_reason == "timeout"
    more = f"{_MORE[request.bound]}, or a type whose strings and lists have bounds"
    cut = completion.finish_reason == "stop" or (limited and bool(request.stops))  # a stop may have ended it as well
    if request.has_messages and not cut:
        written: str | bytes = constraint.vocabulary.written(completion.token_ids[completion.reasoning_tokens :])
    else:
        written = constraint.written(completion.text, completion.token_ids, cut=cut)
    found = None if limited and not constraint.ends(written) else constraint.matched(written)
    if found is None:
        raise IncompleteError(
            f"{name}: the text ended ({completion.finish_reason}) before it was a whole value of its output type: "
            f"{text}. {more if limited else _LATER if late else 'Give another stop'}; the text is in .completion of "
            "this error.",
            bare,
        )
    try:
        made = replace(bare, value=constraint.value(found)).made_by(request, rank)
    except Exception as error:  # validators are the user's code
        from pydantic_core import ValidationError  # calls without types do not need it

        shaped = f" (its limit of {request.room} tokens has shaped it)" if limited else ""
        advice = more if limited else "Draw again with another seed, or say in the prompt what the type asks for"
        raise ValueRefusedError(
            f"{name}: the output type refuses a text that meets its schema{shaped}: {text}. {advice}; the text is in "
            f".text of this error. The type says: {error}",
            error.errors(include_url=False) if isinstance(error, ValidationError) else [],
            bare,
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
            f"{name}: the limit of {request.room} new tokens has shaped the value, which is whole but may not be what "
            f"the model would have written: {text}. {more}, or take it as it is with shorten=True; it is in "
            ".completion of this error.",
            made,
        )
    return made
