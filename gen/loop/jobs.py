"""Requests in a batch: how far each has come, in which rows, and its results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from gen.completions import Completion, TopLogprobs
from gen.errors import own
from gen.loop.prefixes.columns import Kept
from gen.loop.results.texts import Taker, Text
from gen.loop.results.top_tokens import PromptTokens
from gen.loop.searches.by_sampler import kind_of_search
from gen.loop.speculation.host_drafts import SoFar
from gen.loop.speculation.widths import Agreement
from gen.models.base import Model
from gen.requests.processors import LogitsProcessor
from gen.requests.request import Request

_NEAR = 16  # prompts whose lengths differ by less are read together


@dataclass(eq=False)
class Job:
    """A request in a batch: from the queue to its last token.

    If it draws several texts, it has a part for each of them as soon as its prompt has been read.

    Attributes:
        takers: take its results; each has `width` rows side by side.
        row: the first of its rows, once it has any.
        resumed: tokens of its text that were made before, in other rows; they are read like the prompt's.
        weight: the log-probability of these tokens.
        known: how many tokens of its text are made again, from its beginning, and dropped.
        read: how many tokens of its prompt are in its rows, if it is read in parts or goes on from copied columns.
        source: the row, or the kept columns, that have these tokens until its own row has them; then None.
        cached: how many of these tokens were copied instead of read.
        prompt: collects the log-probabilities of the prompt's tokens, if they are asked for.
        age: which state of the model has read its prompt; see `gen.loop.prefixes.sharing`.
        launched: how many tokens of its text have been launched at least.
        ahead: how many more tokens may have been launched, if all drafts were right.
        cancelled: whether its reader wants no more of it.
        alone: whether its prompt is read by itself, to see whether it is to blame for an error.
        error: the error of its prompt, or what ended all that ran with it.
        done: called once, when nothing more will come.
        parts: the jobs that it was split into: one for each text, or for some texts if the rows do not hold all.
        agreement: how good the drafts of its text have been.
    """

    request: Request
    takers: Sequence[Taker]
    width: int = 1
    row: int = -1
    resumed: Sequence[int] = ()
    weight: float = 0.0
    known: int = 0
    read: int = 0
    source: int | Kept | None = None
    cached: int = 0
    prompt: PromptTokens | None = None
    age: int = 0
    launched: int = 0
    ahead: int = 0
    cancelled: bool = False
    alone: bool = False
    error: BaseException | None = None
    done: Callable[["Job"], object] | None = None
    parts: Sequence["Job"] = ()
    agreement: Agreement = field(default_factory=Agreement)
    _followed: SoFar | None = None

    @property
    def texts(self) -> list[Text]:
        """Its texts that grow token by token."""
        if self.parts:
            return [text for part in self.parts for text in part.texts]
        return [text for taker in self.takers for text in taker.texts]

    @property
    def places(self) -> range:
        """Its rows."""
        return range(self.row, self.row + self.width)

    @property
    def text_so_far(self) -> SoFar:
        """For a row that is a text: its prompt, and its tokens as far as the host has them."""
        self._followed = self._followed or SoFar(self.request.prompt_ids, self.request.draft)
        [text] = self.takers[0].texts
        return self._followed.take(text.token_ids)

    @property
    def rows(self) -> int:
        """How many rows it needs."""
        return self.width * len(self.takers)

    @property
    def tokens(self) -> list[int]:
        """The tokens that are read before the next token is chosen."""
        return [*self.request.prompt_ids, *self.resumed]

    @property
    def longest(self) -> int:
        """How many tokens its row has when its prompt has been read."""
        return len(self.request.prompt_ids) + len(self.resumed)

    @property
    def left(self) -> int:
        """How many tokens are still to be read before the next token is chosen."""
        return self.longest - self.read

    @property
    def may_be_cut(self) -> bool:
        """Whether its prompt may be read in parts: not with images, nor for a search, because its steps move rows."""
        return not self.request.inputs and self.width == 1

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.cancelled or self.error is not None or all(one.ended for one in self.parts or self.takers)

    @property
    def launched_all(self) -> bool:
        """Whether no more steps are launched for it; the results of the last one may be on their way."""
        return self.launched >= self.request.limit or self.cancelled or self.error is not None

    @property
    def over(self) -> bool:
        """Whether its rows are free for others."""
        return self.launched_all or self.takers[0].ended

    def short(self, width: int = 1) -> bool:
        """Whether its texts may be short of room for one of their next tokens; see `Request.short`.

        For a text that the host follows, only its possible continuations count.
        """
        launched = self.launched + self.ahead + width - 1
        if not self.request.short(launched):
            return False
        left = self.request.limit - launched
        return any(not taker.texts or any(text.short(left) for text in taker.texts) for taker in self.takers)

    @property
    def only_text(self) -> Text | None:
        """Its text, if it makes only one, and makes it token by token."""
        texts = self.texts
        return texts[0] if len(texts) == 1 else None

    def completions(self) -> list[Completion]:
        """The completions of its texts, once it has ended.

        Raises:
            Exception: the error of the job, or of one of its texts.
        """
        if self.error is not None:
            error, self.error = self.error, own(self.error)  # for the next one who asks
            raise error
        found = [one for source in self.parts or self.takers for one in source.completions()]
        if not self.parts and (told := self.told_of_prompt()) is not None:
            found = [replace(one, prompt_logprobs=told) for one in found]
        return [replace(one, cached_tokens=self.cached) for one in found] if self.cached else found

    def told_of_prompt(self) -> list[TopLogprobs] | None:
        """See `Completion.prompt_logprobs`; call it once there is a first token."""
        if self.request.prompt_logprobs is None:
            return None
        return [] if self.prompt is None else self.prompt.read()

    def so_far(self, *, over: bool) -> Completion:
        """The part of its only text that has come; the value is None with an output type.

        A text that a search makes is empty until the search ends.

        Args:
            over: whether nothing more will come.
        Raises:
            Exception: as `completions`, if nothing more will come.
        """
        text = self.only_text
        if over and all(taker.ended for taker in self.takers):
            found = self.completions()[0]
        elif text is not None:
            found = text.so_far()
        else:
            [seed] = self.request.seeds
            value = None if self.request.typed else ""
            found = Completion(
                text="", value=value, token_ids=[], logprobs=[], score=0.0, finish_reason=None, seed=seed
            )
        if found.finish_reason is None and self.cancelled:
            found = replace(found, finish_reason="cancelled")
        return replace(found, cached_tokens=self.cached).made_by(self.request)

    def runs(self, functions: Sequence[LogitsProcessor]) -> bool:
        """Whether these are its logits processors."""
        return [*map(id, functions)] == [*map(id, self.request.logits_processors)]

    def split(self, model: Model, rows: int) -> Sequence["Job"]:
        """The job itself if it fits into so many rows, else parts with fewer texts each; it ends with the last one."""
        if self.rows <= rows or len(self.takers) == 1:
            return [self]
        seeds, count = self.request.seeds, -(-len(self.takers) // rows)
        borders = [number * len(seeds) // count for number in range(count + 1)]
        return self._part(
            new_job(model, replace(self.request, seeds=seeds[start:end], sample=self.request.sample + start))
            for start, end in pairwise(borders)
        )

    def spread(self) -> Sequence["Job"]:
        """The job itself if it has one taker, else a part for each of them, whose prompt has been read."""
        if len(self.takers) == 1:
            return [self]
        return self._part(replace(self, takers=[taker], agreement=Agreement()) for taker in self.takers)

    def _part(self, parts: Iterable["Job"]) -> Sequence["Job"]:
        """Go on as these jobs."""
        self.parts = [*parts]
        for part in self.parts:
            part.done = self._end_with
            part.cancelled = self.cancelled  # another thread may have cancelled it meanwhile
        return self.parts

    def cancel(self) -> None:
        """End it: its reader wants no more of it."""
        self.cancelled = True
        for part in self.parts:
            part.cancel()

    def _end_with(self, part: "Job") -> None:
        if self.ended:
            self.finish()

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.error = error
        self.finish()

    def expire(self) -> None:
        """End its texts as they are, because its time is over."""
        for text in self.texts:
            text.expire()
        self.finish()

    def finish(self) -> None:
        """Call `done`, once: nothing more will come."""
        if self.done is not None:
            done, self.done = self.done, None
            done(self)


def new_job(model: Model, request: Request) -> Job:
    """A request that has not begun."""
    kind = kind_of_search(request.sampler)
    texts = [Text(request, sample, model.tokenizer) for sample in range(len(request.seeds))]
    return Job(request, kind.takers(texts), width=kind.width)


def alike(jobs: Sequence[Job], job: Job, budget: int) -> bool:
    """Whether the rest of a prompt is read together with the rest of some others, of at most `budget` tokens in all."""
    first = jobs[0]
    longest = max(first.left, job.left)
    return (
        not (job.ended or job.alone or first.alone)
        and first.request.prompt_logprobs is None
        and job.request.prompt_logprobs is None
        and job.rows == first.rows
        and len(job.takers) == len(first.takers)
        and bool(job.read) == bool(first.read)
        and not first.request.inputs
        and not job.request.inputs
        and abs(first.left - job.left) <= max(_NEAR, longest // 8)
        and (len(jobs) + 1) * longest <= budget
    )


def not_ended(jobs: Iterable[Job]) -> list[Job]:
    """The jobs that have not ended; the others finish, since their readers may have cancelled them meanwhile."""
    left = []
    for job in jobs:
        if job.ended:
            job.finish()
        else:
            left.append(job)
    return left


def fail_all(jobs: Iterable[Job], error: Exception) -> None:
    """End jobs with an error: the first prompt's has this one, which a call raises, and the others have copies."""
    for place, job in enumerate(sorted(jobs, key=lambda job: job.request.number)):
        job.fail(own(error) if place else error)
