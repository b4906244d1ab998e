"""The new parts of a text as events: what the model says, what it thinks, and which tools it calls."""

from collections.abc import Callable

from gen.completions import Completion, StreamEvent, TopLogprobs
from gen.constraints.composing.trees import Calls
from gen.loop.results.texts import Text
from gen.requests.request import Request


class Events:
    """Makes events of one text; no part of it comes twice.

    Args:
        of_prompt: gives the prompt's log-probabilities; called once, for the first event.
    """

    def __init__(self, request: Request, of_prompt: Callable[[], list[TopLogprobs] | None]) -> None:
        self.request, self._of_prompt = request, of_prompt
        self._calls = None
        if request.constraint is not None and isinstance(request.constraint.tree, Calls):
            from gen.tools.call_pieces import CallPieces

            self._calls = CallPieces(request.constraint.tree.heads)
        self._tokens = 0  # how many have been in events

    def read(self, text: Text, *, last: bool) -> StreamEvent | None:
        """An event of what is new; None if nothing is.

        Args:
            last: whether the text had ended before this call, so that nothing more will come.
        """
        said, thought = text.read_both(last=last)
        said, calls = (said, []) if self._calls is None else self._calls.push(said, last=last)
        if not (said or thought or calls or last):
            return None
        token_ids, logprobs, top_logprobs = text.tokens_from(self._tokens)
        if not (said or thought or calls or token_ids):
            return None
        self._tokens += len(token_ids)
        of_prompt, self._of_prompt = self._of_prompt(), lambda: None
        return StreamEvent(
            text=said,
            reasoning=thought,
            tool_calls=calls,
            token_ids=token_ids,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            prompt_logprobs=of_prompt,
        )

    def whole(self, made: Completion) -> StreamEvent:
        """The only event of a text that has ended."""
        said, calls = (made.text, []) if self._calls is None else self._calls.push(made.text, last=True)
        return StreamEvent(
            text=said,
            reasoning=made.reasoning or "",
            tool_calls=calls,
            token_ids=made.token_ids,
            logprobs=made.logprobs,
            top_logprobs=made.top_logprobs,
            prompt_logprobs=made.prompt_logprobs,
        )
