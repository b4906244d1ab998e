"""What prompts begin with alike, so that it is read once.

Example: three questions about one document of 600 tokens wait for rows. The first one is read alone, since the other
two save 1,200 tokens. These then begin as copies of its first 600 columns, and read their own questions side by side.

A prompt's columns never change while its text grows. So a joining prompt copies those of any live row that begins as it
does, and nothing waits for a row that is not there.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from gen.loop.jobs import Job
from gen.loop.row_set import RowSet
from gen.loop.slots import Slot
from gen.models.base import ReadsPlaces

LEAST = 32  # tokens that are worth a copy
WORTH = 256  # tokens that others need not read are worth that a prompt is read before them
_NEAR = 16  # tokens by which like lengths differ
_LOOKED_AT = 64  # prompts that wait, to see whether they begin as the first one does


class Prefixes:
    """Finds what joining prompts share with the rows of a batch.

    Args:
        rows: the batch's; where they cannot go on from copies, nothing is shared.
        exact: whether a prompt must give the same bits in any batch: side by side with others it would go on from a
            column of its own, and give others. Then nothing is shared.
    """

    def __init__(self, rows: RowSet, *, exact: bool = False) -> None:
        own = rows.rows
        self._can = not exact and isinstance(own, ReadsPlaces) and own.reads_places and own.refillable
        self._version: object = None
        self._age = 0  # how often the model has become another one

    def look(self, version: object) -> None:
        """Prompts join: columns that were read when the model was another one are given to nobody.

        Args:
            version: what columns that are read now rest on; None where that is not known.
        """
        if version is None or version != self._version:
            self._age += 1
        self._version = version

    def find(self, job: Job, live: Iterable[Slot]) -> tuple[int, int | None]:
        """How many tokens of a prompt need not be read, and the row that has them; (0, None) for none.

        The last token is always read: it gives the logits.
        """
        best, row = LEAST - 1, None
        job.age = self._age
        if not self._shares(job):
            return 0, None
        tokens = job.tokens
        for slot in live:
            own = slot.job.request.prompt_ids
            if not self._shares(slot.job) or len(own) <= best or own[best] != tokens[min(best, len(tokens) - 1)]:
                continue  # most differ there already
            if (shared := min(common(own, tokens), len(tokens) - 1)) > best:
                best, row = shared, slot.row
        return (best, row) if row is not None else (0, None)

    def is_first_of_many(self, head: Job, waiting: Sequence[Job]) -> bool:
        """Whether a prompt is read before those that wait, since they then need not read what they share with it."""
        if not self._shares(head):
            return False
        saved, own = 0, head.request.prompt_ids
        for job in islice(waiting, _LOOKED_AT):
            if not (job.request.inputs or job.ended) and (shared := common(own, job.request.prompt_ids)) >= LEAST:
                saved += max(0, shared - head.read)  # which is there for all
        return saved >= WORTH

    def _shares(self, job: Job) -> bool:
        """Whether a prompt may take columns of others, and give its own: those with images may not."""
        knows = self._can and self._version is not None and job.age == self._age
        return knows and not job.request.inputs and not job.alone and not job.ended


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many tokens two sequences begin alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # alike up to low, not up to high
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low


def together(jobs: Sequence[Job]) -> list[Job]:
    """Jobs in the order in which they run best: like lengths together, first what takes longest, and side by side what
    begins alike."""
    groups = [*range(len(jobs))]  # of each job the number of the first one that it begins like
    order = sorted(range(len(jobs)), key=lambda number: jobs[number].request.prompt_ids)
    for before, number in pairwise(order):
        if common(jobs[before].request.prompt_ids, jobs[number].request.prompt_ids) >= LEAST:
            groups[number] = groups[before]
    longest: dict[int, int] = {}
    for number, job in zip(groups, jobs, strict=True):
        longest[number] = max(longest.get(number, 0), job.request.limit)
    keyed = [
        (len(job.tokens) // _NEAR, longest[number], -number, job.request.limit)
        for number, job in zip(groups, jobs, strict=True)
    ]
    return [jobs[number] for number in sorted(range(len(jobs)), key=lambda number: keyed[number], reverse=True)]
