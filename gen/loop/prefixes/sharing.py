"""Finds the tokens that joining prompts need not read, because a live row or a kept text has their columns already.

Example: three questions about one document of 600 tokens wait for rows. The first one is read alone, because this saves
the other two 1,200 tokens. They then begin as copies of its first 600 columns, and their own questions are read side by
side.

A prompt's columns never change while its text grows. So a joining prompt copies the columns of any live row that begins
like it, and never waits for such a row. When the last one becomes free, the columns with which the next prompt begins
are copied out of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from gen.loop.decoder import Decoder
from gen.loop.jobs import Job
from gen.loop.prefixes.columns import LEAST, WORTH, Columns, Kept, common
from gen.loop.prefixes.tree import PrefixTree

_NEAR = 16  # tokens; lengths that differ by less may count as equal
_LOOKED_AT = 64  # waiting prompts whose beginnings are compared with the first one's


@dataclass(frozen=True)
class _Left:
    """The beginning of a finished text, copied out of its row, and `Prefixes._age` at that time."""

    tokens: Sequence[int]
    salt: str | None
    kept: Kept
    age: int


class Prefixes:
    """Finds what joining prompts share with the rows of a batch, and with what the model has kept.

    Args:
        rows: the rows of the batch. If they cannot go on from copied columns, nothing is shared. Rows with recurrent
            layers only go on from pinned texts.
        tree: what the model has kept; None for nothing.
        keeps: whether finished texts are kept and found again; otherwise only pinned texts are found.
        exact: whether a prompt must give the same bits in any batch. Then nothing is shared: prompts that are read side
            by side, each from another column on, would get other bits.
    """

    def __init__(
        self, rows: Decoder, tree: PrefixTree | None = None, *, keeps: bool = False, exact: bool = False
    ) -> None:
        own = rows.rows
        self._can = not exact and own.reads_places and own.refillable
        self._recurrent = own if not exact and own.recurrent else None
        self._tree = tree if self._recurrent or (self._can and own.saves) else None
        self.keeps = keeps and self._can and self._tree is not None
        self._rows = rows
        self._version: object = None
        self._age = 0  # how often the model has changed
        self._left: _Left | None = None

    def check_version(self, version: object) -> None:
        """Call this when prompts join: columns that were read before the model changed are no longer used.

        Args:
            version: the model's version, on which columns that are read now depend; None if it is not known.
        """
        if version is None or version != self._version:
            self._age += 1
        self._version = version

    def find(self, job: Job, live: Iterable[Job]) -> tuple[int, int | Kept | None]:
        """How many tokens of a prompt need not be read, and the row, or the kept columns, that have them; (0, None) if
        all tokens must be read.

        The last token is always read: it gives the logits.
        """
        best: int = LEAST - 1
        source: int | Kept | None = None
        job.age = self._age
        if not self._takes(job) or job.request.prompt_logprobs is not None:  # prompt_logprobs need all tokens read
            return 0, None
        tokens, salt = job.tokens, job.request.cache_salt
        for other in live if self._can else ():
            own = other.request.prompt_ids
            if not self._gives(other, salt) or len(own) <= best or own[best] != tokens[min(best, len(tokens) - 1)]:
                continue  # most prompts differ at this token already
            if (shared := min(common(own, tokens), len(tokens) - 1)) > best:
                best, source = shared, other.row
        left = self._left
        if left is not None and (left.salt, left.age) == (salt, self._age):
            shared = min(common(left.tokens, tokens), len(tokens) - 1)
            best, source = (shared, left.kept) if shared > best else (best, source)
        if self._tree is not None and best < len(tokens) - 1:
            states = self._recurrent
            shared, kept = self._tree.find(
                tokens[:-1], self._version, salt, pinned=not self.keeps, states=states is not None
            )
            more = len(tokens) - shared
            if shared > best and (states is None or more * states.going_on_costs() <= len(tokens)):
                best, source = shared, kept
        return (best, source) if source is not None else (0, None)

    def save_for_waiting(self, gone: Iterable[Job], live: Iterable[Job], waiting: Iterable[Job]) -> None:
        """Rows are free now: keep the columns that the next prompt begins with, if no other row has them.

        Host sync: none.
        """
        head, rows = next((job for job in waiting if not job.ended), None), self._rows.rows
        if head is None or self.keeps or not self._can or not rows.saves:
            return
        tokens, salt = head.tokens[:-1], head.request.cache_salt
        there: list[Sequence[int]] = [job.request.prompt_ids for job in live if self._gives(job, salt)]
        if self._left is not None and (self._left.salt, self._left.age) == (salt, self._age):
            there.append(self._left.tokens)
        own = [job for job in gone if self._knows(job) and job.request.cache_salt == salt]
        if not own:
            return
        nearest = max(own, key=lambda one: common(one.request.prompt_ids, tokens))
        count = common(nearest.request.prompt_ids, tokens)
        if count < LEAST or any(common(other, tokens) >= count for other in there):
            return
        self._left = None
        self._left = _Left(
            tokens[:count], salt, Kept([(Columns.of(rows.save(nearest.row, 0, count)), count)]), self._age
        )

    def insert(self, job: Job) -> None:
        """Keep the columns of a finished text and its prompt. The row must still be as the text has left it.

        Call `check_version` before.
        """
        if self._tree is None or not self.keeps or not self._knows(job) or job.error is not None or job.width > 1:
            return
        [text] = job.texts
        # the newest token is in no column yet
        tokens = [*job.request.prompt_ids, *text.token_ids[: max(0, job.launched - 1)]]
        self._tree.add(
            tokens,
            self._version,
            job.request.cache_salt,
            lambda start, end: Columns.of(self._rows.rows.save(job.row, start, end)),
            least=LEAST,
        )

    def is_first_of_many(self, head: Job, waiting: Iterable[Job]) -> bool:
        """Whether to read a prompt before those that wait, so that they need not read what they share with it."""
        if not (self._can and self._takes(head)):
            return False
        saved, own = 0, head.request.prompt_ids
        for job in islice(waiting, _LOOKED_AT):
            other = job.request
            if job.ended or other.inputs or other.prompt_logprobs is not None:
                continue
            if other.cache_salt != head.request.cache_salt:
                continue
            if (shared := common(own, job.request.prompt_ids)) >= LEAST:
                saved += max(0, shared - head.read)  # tokens that `head` has read already are there for all
        return saved >= WORTH

    def _knows(self, job: Job) -> bool:
        """Whether the model was as it is now when it read all that was read for a job; not known with images."""
        return (
            (self._can or self._tree is not None)
            and self._version is not None
            and job.age == self._age
            and not job.request.inputs
        )

    def _takes(self, job: Job) -> bool:
        return self._knows(job) and not job.alone and not job.ended

    def _gives(self, job: Job, salt: str | None) -> bool:
        return self._takes(job) and job.request.cache_salt == salt


def together(jobs: Sequence[Job]) -> list[Job]:
    """Jobs in the order in which they run best.

    Texts with drafts that fit come before all others: a step reads equally many tokens of each row, and a text without
    drafts needs one of them. Then the longest texts come first, so that few rows are left alone in the end. Prompts of
    similar length come together, and prompts that begin alike come next to each other.
    """
    groups = [*range(len(jobs))]  # for each job, the number of the first job that begins like it
    order = sorted(range(len(jobs)), key=lambda number: jobs[number].request.prompt_ids)
    for before, number in pairwise(order):
        if common(jobs[before].request.prompt_ids, jobs[number].request.prompt_ids) >= LEAST:
            groups[number] = groups[before]
    longest: dict[int, int] = {}
    for number, job in zip(groups, jobs, strict=True):
        longest[number] = max(longest.get(number, 0), job.request.limit)
    keyed = [
        (
            job.request.draft_fits,
            longest[number],
            len(job.tokens) // _NEAR,
            -number,
            job.request.limit,
        )
        for number, job in zip(groups, jobs, strict=True)
    ]
    return [jobs[number] for number in sorted(range(len(jobs)), key=lambda number: keyed[number], reverse=True)]
