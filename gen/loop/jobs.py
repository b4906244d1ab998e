"""Requests in a batch, what takes their results, and the rows that these have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gen.requests.request import LogitsProcessor, Request

_NEAR = 16  # prompts whose lengths differ by less are read together


class Taker(Protocol):
    """Takes what the rows of one text, or of one search, are given step by step."""

    @property
    def ended(self) -> bool: ...

    def take(self, results: Sequence[Sequence[Any]], row: int) -> None:
        """Take a step's results; its rows begin at `row`. None counts once it has ended."""


@dataclass(eq=False)
class Job:
    """A request in a batch.

    Attributes:
        takers: what takes its results, each with `width` rows side by side.
        resumed: tokens of its text that were made before, in other rows; they are read like the prompt's.
        weight: their log-probability.
        read: how many tokens of its prompt have been read, where it is read in parts.
        launched: how many tokens of each text have been launched.
        cancelled: whether nobody wants it any more.
        alone: whether its prompt is read by itself, to see which one is to blame.
        error: what went wrong with its prompt.
        done: told once, when nothing more will come.
    """

    request: Request
    takers: Sequence[Taker]
    width: int = 1
    resumed: Sequence[int] = ()
    weight: float = 0.0
    read: int = 0
    launched: int = 0
    cancelled: bool = False
    alone: bool = False
    error: Exception | None = None
    done: Callable[["Job"], object] | None = None

    @property
    def rows(self) -> int:
        """How many rows it needs."""
        return self.width * len(self.takers)

    @property
    def most_tokens(self) -> int:
        """How many tokens a row may come to have."""
        return len(self.request.prompt_ids) + self.request.limit

    @property
    def tokens(self) -> list[int]:
        """What is read before the first token is chosen."""
        return [*self.request.prompt_ids, *self.resumed]

    @property
    def may_be_cut(self) -> bool:
        """Whether its prompt may be read in parts."""
        return not self.request.inputs and self.rows == 1

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.cancelled or self.error is not None or all(taker.ended for taker in self.takers)

    def runs(self, functions: Sequence[LogitsProcessor]) -> bool:
        """Whether these are its logits processors."""
        return [*map(id, functions)] == [*map(id, self.request.logits_processors)]

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.error = error
        self.finish()

    def finish(self) -> None:
        """Tell once that nothing more will come."""
        if self.done is not None:
            done, self.done = self.done, None
            done(self)


@dataclass(eq=False)
class Slot:
    """One taker in its rows, from `row` on."""

    job: Job
    taker: Taker
    row: int

    @property
    def over(self) -> bool:
        """Whether its rows are free for others."""
        job = self.job
        return self.taker.ended or job.cancelled or job.error is not None or job.launched >= job.request.limit


def alike(jobs: Sequence[Job], job: Job, budget: int) -> bool:
    """Whether a prompt is read together with some others, at most so many tokens."""
    first = jobs[0]
    longest = max(len(first.tokens), len(job.tokens))
    return (
        not (job.ended or job.alone or first.alone)
        and job.rows == first.rows
        and len(job.takers) == len(first.takers)
        and not first.request.inputs
        and not job.request.inputs
        and abs(len(first.tokens) - len(job.tokens)) <= max(_NEAR, longest // 8)
        and (len(jobs) + 1) * longest <= budget
    )
