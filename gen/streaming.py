"""A text that comes piece by piece, and the completion that it ends as."""

from collections.abc import Generator, Iterator

from gen.errors import GenError
from gen.loop.batch import Job
from gen.loop.running import completions
from gen.loop.texts import Completion


class Stream(Iterator[str]):
    """The pieces of one text, none of them empty, and at its end the completion.

    Each piece is asked of the model when the one before it has been taken; `close` ends the work early.
    """

    def __init__(self, pieces: Generator[str], job: Job) -> None:
        self._pieces = pieces
        self._job = job

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop generating and free the text's memory; the pieces so far were all."""
        self._pieces.close()

    def completion(self) -> Completion:
        """What `generate` returns for the same arguments with `details=True`.

        Raises:
            GenError: the text has not ended: there are pieces to take, or it was closed or failed before its end.
        """
        if not self._job.ended:
            raise GenError(
                "the text has not ended; take all pieces of the stream before its completion (a stream that was closed "
                "early, or that failed, has none)."
            )
        try:
            return completions(self._job)[0]
        except Exception as error:  # a processor of the user's fails with errors of every kind
            raise GenError(f"the stream has failed and has no completion: {error}") from error
