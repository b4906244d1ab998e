"""What is new of a text, as events: what is said, what was thought, and which tools are called."""

from gen.completions import Completion, StreamEvent
from gen.loop.results.texts import Text
from gen.requests.request import Request


class Events:
    """Makes events of one text; nothing is read twice."""

    def __init__(self, request: Request) -> None:
        self.request = request
        told = None if request.constraint is None else request.constraint.told
        self._calls = None
        if told is not None:
            from gen.tools.call_pieces import CallPieces

            self._calls = CallPieces(told.heads)
        self._tokens = 0  # how many have been told

    def read(self, text: Text, *, last: bool) -> StreamEvent | None:
        """What is new; None where that is nothing.

        Args:
            last: whether nothing more will come, which was so before the text is read.
        """
        said, thought = text.read_both(last=last)
        said, calls = (said, []) if self._calls is None else self._calls.push(said, last=last)
        if not (said or thought or calls or last):
            return None
        token_ids, logprobs, top_logprobs = text.tokens_from(self._tokens)
        self._tokens += len(token_ids)
        if not (said or thought or calls or token_ids):
            return None
        return StreamEvent(
            text=said,
            reasoning=thought,
            tool_calls=calls,
            token_ids=token_ids,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )

    def whole(self, made: Completion) -> StreamEvent:
        """All of a text that is told at its end alone."""
        said, calls = (made.text, []) if self._calls is None else self._calls.push(made.text, last=True)
        return StreamEvent(
            text=said,
            reasoning=made.reasoning or "",
            tool_calls=calls,
            token_ids=made.token_ids,
            logprobs=made.logprobs,
            top_logprobs=made.top_logprobs,
        )
