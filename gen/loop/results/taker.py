"""The interface of takers, which take the results of rows on the host: a text, or all texts of a search."""

from collections.abc import Sequence
from typing import Protocol

from gen.completions import Completion
from gen.loop.results.ring import StepResults
from gen.loop.results.texts import Text


class Taker(Protocol):
    """Takes the results of the rows of one text, or of one search, step by step."""

    @property
    def ended(self) -> bool:
        """Whether it needs nothing more."""

    @property
    def texts(self) -> Sequence[Text]:
        """Its texts that grow token by token, in the order of their rows; empty if they are only known at the end."""

    def take(self, results: StepResults, row: int) -> None:
        """Take a step's results; its rows begin at `row`. Results that come after its end are ignored."""

    def completions(self) -> list[Completion]:
        """Its completions, once it has ended.

        Raises:
            GenError: the error of one of its texts.
        """


class Again:
    """Takes the results of a text that is made again from its beginning, and drops those that it has already.

    Args:
        taker: has taken the text so far.
        known: how many tokens it has.
    """

    def __init__(self, taker: Taker, known: int) -> None:
        self.taker: Taker = taker.taker if isinstance(taker, Again) else taker
        self._known = known

    @property
    def ended(self) -> bool:
        return self.taker.ended

    @property
    def texts(self) -> Sequence[Text]:
        return self.taker.texts

    def take(self, results: StepResults, row: int) -> None:
        if self._known:
            self._known -= 1
        else:
            self.taker.take(results, row)

    def completions(self) -> list[Completion]:
        return self.taker.completions()
