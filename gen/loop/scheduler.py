"""A running batch: requests join it at any step, leave it when they end, and no row waits for another.

Example with two rows and three prompts, A, B and C: A ends after two tokens, and C takes its row at once.

    step    1   2   3   4
    row 0   A   A   C   C
    row 1   B   B   B   B
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf
from time import monotonic

from gen.errors import ResultError
from gen.loop.jobs import Job, alike, not_ended
from gen.loop.memory import is_out_of_memory
from gen.loop.options import BESIDE_STEPS, WHOLE, Options
from gen.loop.prefixes.columns import load
from gen.loop.prefixes.sharing import Prefixes
from gen.loop.prefixes.tree import PrefixTree
from gen.loop.replay.recorded import Recorded
from gen.loop.results.ring import Received, Sent
from gen.loop.results.top_tokens import PromptTokens
from gen.loop.slots import Slots
from gen.loop.speculation.widths import tell, widths_for
from gen.models.base import Model


class Scheduler:
    """Runs requests of one kind of search over one set of rows, in the caller's thread.

    Args:
        steps: the steps of a set of rows with nothing in it.
        options: how requests are run.
        width: how many rows a search has; 1 if every row is a text.
        tokens: how many tokens all rows may have room for together; None for what memory allows.
        tree: see `gen.loop.prefixes.sharing.Prefixes`.
    """

    def __init__(
        self,
        model: Model,
        steps: Recorded,
        options: Options,
        *,
        width: int = 1,
        tokens: int | None = None,
        tree: PrefixTree | None = None,
    ) -> None:
        self._model, self._steps = model, steps
        rows, exact = steps.decoder, options.step_rows > 1
        self._rows = rows
        steps.begin(model, replay=options.replay, cuda_graph=options.cuda_graph, measures=not options.fixed)
        self._widths = widths_for(model, rows.rows, rows.search, options.speculate, steps.costs, exact=exact)
        rows.speculate(None if self._widths is None else self._widths.speculation)
        self._tells = not exact and rows.rows.reads_places
        self._admit_tokens = options.admit_tokens or BESIDE_STEPS[rows.device.type]
        self._waiting: deque[Job] = deque()
        self._reading: tuple[Job, int] | None = None  # a job whose prompt has only been read in part, and its row
        self._slots = Slots(steps, width, tokens, options.step_rows)
        self._prefixes = Prefixes(rows, tree, keeps=options.keeps, exact=exact)
        self._deadline = inf  # the earliest deadline of all jobs
        self._checked = False  # whether this turn has checked if the model has changed
        self._sent: deque[tuple[Sent, int, Sequence[tuple[Job, int]]]] = deque()  # with the jobs and their rows
        rows.begin()

    @property
    def _live(self) -> list[Job]:
        return self._slots.live

    def add(self, job: Job) -> None:
        """Let a request wait for rows."""
        self._waiting.append(job)
        self._deadline = min(self._deadline, job.request.deadline or inf)

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs, and no results are on their way."""
        return not (self._waiting or self._reading or self._live or self._sent)

    def advance(self) -> None:
        """Launch a step, admit waiting requests, and take results: texts have grown then, and jobs may have ended."""
        with self._rows.streams.current():
            self._turn()

    def drain(self) -> None:
        """Advance until nothing is left."""
        with self._rows.streams.current():
            while not self.idle:
                self._turn()

    def _turn(self) -> None:
        """Do what `advance` says, on the streams of the rows."""
        self._checked = False
        if self._deadline < inf and monotonic() >= self._deadline:
            self._expire()
        self._free()
        if not self._waiting and not self._reading:
            self._slots.move_down()
        if self._live:
            self._step()
            self._free()
        # prompts come after the step, so that a first token can be read before the second one is launched
        self._admit(self._admit_tokens if self._live else max(self._admit_tokens, WHOLE))
        if not self._live:
            self._catch_up(0)

    def give_up(self) -> list[Job]:
        """The jobs that have not ended, in no order, and the others finish; do not use the batch any more."""
        jobs = dict.fromkeys(job for _, _, sent in self._sent for job, _ in sent)
        jobs |= dict.fromkeys([*self._live, *self._waiting, *([self._reading[0]] if self._reading else [])])
        return not_ended(jobs)

    def _expire(self) -> None:
        """End the texts whose time is over."""
        now, self._deadline = monotonic(), inf
        reading = [] if self._reading is None else [self._reading[0]]
        for job in [*self._live, *reading, *self._waiting]:
            deadline = job.request.deadline or inf
            if deadline <= now:
                job.expire()
            else:
                self._deadline = min(self._deadline, deadline)

    def _free(self) -> None:
        """Free the rows of requests that have ended, and finish jobs that were cancelled."""
        gone = self._slots.free()
        for job in gone:
            if job.cancelled:
                job.finish()
        if gone:
            self._keep_columns(gone)
            self._prefixes.save_for_waiting(gone, self._live, self._waiting)
            self._retain_live()

    def _keep_columns(self, gone: Sequence[Job]) -> None:
        """Let later prompts begin with the columns of rows that are free now."""
        if not self._prefixes.keeps:
            return
        try:
            self._check_model()
        except Exception:  # the model cannot be run any more; requests that join get the error
            return
        for job in gone:
            self._prefixes.insert(job)

    def _retain_live(self) -> None:
        """Stop doing what only finished requests have asked for."""
        rows = {row for job in self._live for row in job.places}
        self._rows.retain_only(rows, {job.request for job in self._live})

    def _admit(self, most: int) -> None:
        """Fill free rows, and read at most so many tokens, so that running rows do not wait long."""
        budget = most
        if not self._rows.rows.refillable:
            if self._waiting and not self._live:
                self._fill_all()
            return
        if self._reading is not None:
            budget -= self._read_on(*self._reading, budget)
        if not self._live and not self._sent:
            self._rows.begin()
        while self._waiting and budget > 0 and self._reading is None:
            head = self._waiting[0]
            if head.ended:
                self._waiting.popleft().finish()
                continue
            first, free = self._slots.make_way(head.rows)
            if not free:
                break
            try:
                self._check_model()
            except Exception as error:
                self._fail([self._waiting.popleft()], first, error)
                continue
            self._share(head)
            if head.left > budget and head.may_be_cut and not self._rows.rows.whole_prompts:
                self._slots.at[first : first + head.rows] = [head] * head.rows
                budget -= self._read_on(self._waiting.popleft(), first, budget)
                continue
            if head.left > budget < most:  # its prompt is read in one piece, as the first of another turn
                break
            jobs = [head]  # they wait until nothing can fail any more before `_fill`, so that none is lost
            alone = self._prefixes.is_first_of_many(head, islice(self._waiting, 1, None))
            while len(jobs) < len(self._waiting) and not alone and (len(jobs) + 1) * head.rows <= free:
                following = self._waiting[len(jobs)]
                self._share(following)
                if not alike(jobs, following, budget):
                    break
                jobs.append(following)
            budget -= sum(job.left for job in jobs)
            for _ in jobs:
                self._waiting.popleft()
            self._fill(jobs, first)

    def _check_model(self) -> None:
        """Check whether the model has changed, once for all requests that join in a turn."""
        if not self._checked:
            self._steps.check_model(self._model)
            self._prefixes.check_version(self._steps.version(self._model))
            self._checked = True

    def _share(self, job: Job) -> None:
        """Find the row, or the kept columns, that have the beginning of a prompt that may join now."""
        job.read, job.source = self._prefixes.find(job, self._live)

    def _begin(self, job: Job, row: int) -> None:
        """Copy the beginning of a prompt into its row, from another row or from kept columns."""
        if job.source is not None:
            if isinstance(job.source, int):
                self._rows.rows.share(job.source, slice(row, row + 1), job.read)
            else:
                load(self._rows.rows, row, job.source, job.read)
            job.cached, job.source = min(job.read, len(job.request.prompt_ids)), None

    def _fill_all(self) -> None:
        """Fill all rows together, if none can be filled while others go on."""
        jobs: list[Job] = []
        while self._waiting and (not jobs or (len(jobs) + 1) * jobs[0].rows <= self._rows.count):
            job = self._waiting[0]
            if job.ended:
                self._waiting.popleft().finish()
            elif jobs and (job.rows != jobs[0].rows or len(job.takers) != len(jobs[0].takers) or jobs[0].alone):
                break
            else:
                jobs.append(self._waiting.popleft())
        if jobs:
            self._slots.filled = len(jobs) * jobs[0].rows
            self._fill(jobs, 0)

    def _read_on(self, job: Job, row: int, budget: int) -> int:
        """Read the next part of a prompt, and after the last part start its text; how many tokens were read."""
        self._reading = None
        if job.ended:
            self._slots.at[row : row + job.rows] = [None] * job.rows
            job.finish()
            return 0
        if (left := job.left) <= budget:
            self._fill([job], row)
            return left
        try:
            self._make_room([job], row)
            self._begin(job, row)
            self._read_part(job, row, job.read + budget)
        except Exception as error:
            self._fail([job], row, error)
        else:
            self._reading = job, row
        return budget

    def _make_room(self, jobs: Sequence[Job], first: int) -> None:
        """Make room for prompts, in rows from `first` on."""
        each = jobs[0].rows
        coming = {row: jobs[(row - first) // each] for row in range(first, first + len(jobs) * each)}
        self._slots.make_room({row: (job, job.longest) for row, job in coming.items()})

    def _read_part(self, job: Job, row: int, end: int) -> None:
        """Read a prompt up to column `end`, which is before its last token."""
        tokens, last = job.tokens, len(job.request.prompt_ids) - 1
        if self._tells and job.request.prompt_logprobs is not None and job.read < last:
            job.prompt = job.prompt if job.read and job.prompt else PromptTokens(job.request.prompt_logprobs)
            told = min(end, last)
            part, following = tokens[job.read : told], tokens[job.read + 1 : told + 1]
            self._rows.read_told(row, part, job.read, following, job.prompt)
            job.read = told
        if job.read < end:
            self._rows.rows.prefill(slice(row, row + 1), [tokens[job.read : end]], [job.read])
            job.read = end

    def _tell_prompt(self, job: Job, row: int) -> None:
        """Compute the log-probabilities of a prompt's tokens: while it is read, or else by reading it once more."""
        request = job.request
        if self._tells:
            self._read_part(job, row, len(request.prompt_ids) - 1)
        elif len(request.prompt_ids) > 1:
            from gen.scoring.pairs import Pair
            from gen.scoring.scorer import Scorer

            first, *others = request.prompt_ids
            pair = Pair(f"prompt {request.number}", (first,), tuple(others))
            [score] = Scorer(self._model, top=max(1, request.prompt_logprobs or 0)).run([pair])
            job.prompt = PromptTokens(request.prompt_logprobs or 0)
            job.prompt.take(score.top_logprobs or [])

    def _fill(self, jobs: Sequence[Job], first: int) -> None:
        """Read prompts and choose their first tokens."""
        rows = slice(first, first + len(jobs) * jobs[0].rows)
        try:
            tokens = [job.tokens for job in jobs]
            if not (jobs[0].read and jobs[0].source is None):  # else its first part has done this
                self._check_model()
            self._make_room(jobs, first)
            for job, row in zip(jobs, range(first, rows.stop, jobs[0].rows), strict=True):
                self._begin(job, row)
                if job.request.prompt_logprobs is not None:
                    self._tell_prompt(job, row)
            requests, weights = [job.request for job in jobs], [job.weight for job in jobs]
            self._rows.fill(rows, requests, tokens, weights=weights, starts=[job.read for job in jobs])
            sent = self._rows.send()
        except Exception as error:
            self._fail(jobs, first, error)
            return
        begun: list[Job] = []
        for job in jobs:
            job.launched = len(job.resumed) + 1
            for one in job.spread():
                one.row = first + len(begun) * one.width
                begun.append(one)
        self._sent.append((sent, rows.stop, [(job, job.row) for job in begun]))
        self._slots.put(begun, [job.longest for job in begun])
        self._catch_up(self._rows.ring.lag)
        self._free()

    def _fail(self, jobs: Sequence[Job], row: int, error: Exception) -> None:
        """Handle prompts that could not be read: the one to blame ends, the others are read again, one by one."""
        rows = sum(job.rows for job in jobs)
        self._slots.at[row : row + rows] = [None] * rows  # a part of the prompt may have taken these rows
        failing = self._rows.failing
        others = bool(failing) and not any(job.runs(failing) for job in jobs)  # functions of other rows' requests
        passed_on = others or isinstance(error, ResultError) or is_out_of_memory(error)  # this prompt is not to blame
        if len(jobs) > 1 or passed_on:
            self._waiting.extendleft(reversed(jobs))
        if passed_on:
            raise error
        self._rows.forget_failure()
        self._retain_live()
        if len(jobs) == 1:
            jobs[0].fail(error)
            return
        for job in jobs:
            job.alone, job.cached = True, 0  # nothing is copied then

    def _step(self) -> None:
        """Launch a step of all live rows."""
        drafts = self._looks_for_drafts()
        width = self._width() if drafts else 1
        count, view = self._slots.shape(width)
        self._rows.short = any(job.short(width) for job in self._live)
        self._steps.run(count, view, self._slots.lengths(count, width), width, timed=drafts)
        self._sent.append((self._rows.send(width, drafted=drafts), count, [(job, job.row) for job in self._live]))
        self._slots.stepped(width)
        for job in self._live:
            job.launched += 1
            job.ahead += width - 1
        self._catch_up(self._rows.ring.lag)

    def _looks_for_drafts(self) -> bool:
        """Whether drafts are looked for in the next step."""
        if self._widths is None or not (
            self._rows.drafts_in_steps or self._rows.typed or self._widths.looks(len(self._live))
        ):
            return False
        hindrance = self._rows.hindrance()
        if hindrance:
            tell(self._model, f"no step reads drafts while a text asks for {hindrance}")
        return not hindrance

    def _width(self) -> int:
        """How many tokens of each row the next step reads."""
        widths = self._widths
        assert widths is not None  # tells mypy
        made = self._rows.draft(((job.row, job.text_so_far) for job in self._live), least=1 if widths.fixed else 2)
        for job, (drafts, kinds) in zip(self._live, made or (), strict=made is not None):
            job.agreement.drafts, job.agreement.kinds = drafts, kinds
        for job in self._live:
            job.agreement.left = job.request.limit - len(job.takers[0].texts[0].token_ids)
        widths.others_wait = bool(self._waiting)
        width = widths.choose(self._slots.count, [job.agreement for job in self._live])
        while width > 1 and not self._slots.fits(width, grows=widths.fixed):
            width = widths.narrower(width)
        if width > 1 and made is not None:
            for job in self._live:
                self._rows.set_drafts(job.row, job.text_so_far.tokens[-1], job.agreement.drafts)
        return width

    def _catch_up(self, lag: int) -> None:
        """Take all results that were sent, except the newest `lag`."""
        while len(self._sent) > lag:
            self._take(*self._sent[0])
            self._sent.popleft()  # not before: after an error, `give_up` finds the jobs here

    def _take(self, sent: Sent, count: int, jobs: Sequence[tuple[Job, int]]) -> None:
        """Give the results of a step to its texts."""
        received = sent.read(count)
        if sent.width > 1:
            self._correct(received, jobs)
            self._steps.costs.judge(count, sent.width, sum(received.made[row] for _, row in jobs) / len(jobs))
        right = 0
        for job, row in jobs:
            taker = job.takers[0]
            if not (taker.ended or job.error is not None):
                right += sent.drafted and self._learn(job, row, received) > 0
                try:
                    for results in received.places[: received.made[row]]:
                        if job.known:
                            job.known -= 1
                        else:
                            taker.take(results, row)
                except Exception as error:  # an error of a tokenizer
                    job.fail(error)
            if taker.ended or job.cancelled or job.error is not None:
                job.finish()
        if sent.drafted and self._widths is not None:
            self._widths.note(2 * right > len(jobs), wide=sent.width > 1)

    def _correct(self, received: Received, jobs: Sequence[tuple[Job, int]]) -> None:
        """Note how many tokens a wide step has made, of those that it might have made."""
        width = len(received.places)
        self._slots.correct({job: width - received.made[row] for job, row in jobs})
        for job, row in jobs:
            job.launched += received.made[row] - 1
            job.ahead -= width - 1

    def _learn(self, job: Job, row: int, received: Received) -> int:
        """Note which drafts were right, and return how many."""
        agreement, width = job.agreement, len(received.places)
        if received.drafts is not None:
            real, kinds, agreed = (numbers[row] for numbers in received.drafts)
            agreement.kinds, right = kinds[:real], int(agreed)
        elif agreement.drafts:  # on a CPU
            first = received.places[0].search[0][row][0]
            right = received.made[row] - 1 if width > 1 else int(first == agreement.drafts[0])
            agreement.drafts = ()
        else:
            return 0
        agreement.learn(width, right)
        if width > 1:
            for text in job.texts:
                text.drafted += min(width - 1, len(agreement.kinds))
                text.accepted += right
        return right
