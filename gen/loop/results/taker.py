"""What takes the results of rows on the host: a text, or all texts of a search."""

from collections.abc import Sequence
from typing import Protocol

from gen.completions import Completion
from gen.loop.results.ring import StepResults
from gen.loop.results.texts import Text


class Taker(Protocol):
    """Takes what the rows of one text, or of one search, are given step by step."""

    @property
    def ended(self) -> bool:
        """Whether it needs nothing more."""

    @property
    def texts(self) -> Sequence[Text]:
        """Its texts that grow token by token, in the order of their rows; none where only the end tells them."""

    def take(self, results: StepResults, row: int) -> None:
        """Take a step's results; its rows begin at `row`. None counts once it has ended."""

    def completions(self) -> list[Completion]:
        """What has become of it, once it has ended.

        Raises:
            GenError: what went wrong with one of its texts.
        """
