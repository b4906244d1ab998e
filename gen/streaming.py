"""A text that comes piece by piece, and the completion that it ends as."""

from collections.abc import Generator, Iterator

from gen.errors import GenError
from gen.texts import Completion, GrowingText


class Stream(Iterator[str]):
    """The pieces of one text, none of them empty, and at its end the completion.

    Each piece is asked of the model when the one before it has been taken; `close` ends the work early.
    """

    def __init__(self, steps: Generator[list[str]], text: GrowingText) -> None:
        self._steps = steps  # each step's new text, as a list of one; the text grows as they are taken
        self._text = text

    def __next__(self) -> str:
        return next(piece for [piece] in self._steps if piece)

    def close(self) -> None:
        """Stop generating and free the text's memory; the pieces so far were all."""
        self._steps.close()

    def completion(self) -> Completion:
        """What `generate` returns for the same arguments with `details=True`.

        Raises:
            GenError: the text has not ended: there are pieces to take, or it was closed or failed before its end.
        """
        if self._text.finish_reason is None:
            raise GenError(
                "the text has not ended; take all pieces of the stream before its completion (a stream that was closed "
                "early, or that failed, has none)."
            )
        return self._text.completion()
