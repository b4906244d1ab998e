"""What a text stands for: the value of its request's output type."""

from dataclasses import replace

from gen.errors import IncompleteError, show
from gen.loop.results.texts import Completion
from gen.requests.request import Request


def valued(request: Request, completion: Completion) -> Completion:
    """A completion with its value, and the engine that held the text to its output type.

    Raises:
        IncompleteError: the text is no full match, or its type refuses the value.
    """
    constraint = request.constraint
    if constraint is None:
        return completion
    bare = replace(completion, value=None, engine=constraint.engine)
    text = show(completion.text, 200)
    written = constraint.written(completion.text, completion.token_ids, cut=completion.finish_reason == "stop")
    if not constraint.accepts(written):
        raise IncompleteError(
            f"prompt {request.number}: the text ended ({completion.finish_reason}) before it was a whole value of its "
            f"output type: {text}. Give more max_new_tokens, or another stop; the text is in .completion of this "
            "error.",
            bare,
        )
    try:
        return replace(bare, value=constraint.parse(written))
    except Exception as error:  # validators are the user's code
        raise IncompleteError(
            f"prompt {request.number}: the output type refuses a text that meets its schema, {text}: {error}", bare
        ) from error
