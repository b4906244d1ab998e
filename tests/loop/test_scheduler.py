"""Which rows a batch fills, steps, moves and gives up, step by step; the model logs every call."""

import heapq
import logging
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.loop import runner
from gen.loop.decoder import Decoder
from gen.loop.jobs import Job
from gen.loop.options import Options
from gen.loop.prefixes.sharing import Prefixes
from gen.loop.results.ring import Ring, Sent
from gen.loop.row_pool import RowPool
from gen.loop.runner import Runner, run_all
from gen.loop.speculation.widths import Widths
from gen.models.transformers.rows import TransformersRows
from gen.samplers import MultinomialSampler, Sampler, beam_search, greedy, multinomial
from tests.helpers import ScriptedModel, ScriptedRows, byte_tokenizer, tiny_model
from tests.helpers.noting import fails_once
from tests.loop.calls import kept_rows, new_jobs, run_in_rows
from virtual_gpus import virtual_gpus

Event = tuple[str, Any]


class Logged(ScriptedModel):
    """A scripted model that logs every fill (row and tokens of each prompt) and every step (its rows)."""

    def __init__(self, script: Any, *, refillable: bool = True, whole_prompts: bool = False, most: int = 99) -> None:
        super().__init__(script)
        self.refillable, self.whole_prompts, self.most = refillable, whole_prompts, most
        self.log: list[Event] = []
        self.made = 0  # how often rows were

    def new_rows(self, count: int, length: int) -> "LoggedRows":
        self.made += 1
        return LoggedRows(self, count, length)

    def filled(self) -> list[tuple[int, list[int]]]:
        """Every row that was filled and its tokens, in order of time."""
        return [given for name, event in self.log if name == "fill" for given in event]

    def stepped(self) -> list[int]:
        """How many rows each step had."""
        return [event for name, event in self.log if name == "step"]


class LoggedRows(ScriptedRows):
    """A prompt with "!" in it cannot be read; no more than `most` rows can be read or stepped at once."""

    def __init__(self, model: Logged, count: int, length: int) -> None:
        super().__init__(model, count, length)
        self.refillable, self.whole_prompts = model.refillable, model.whole_prompts
        self._logged = model

    def prefill(self, rows: slice, prompts: Sequence[Sequence[int]], *more: Any, **others: Any) -> Tensor:
        if len(prompts) > self._logged.most:
            raise torch.OutOfMemoryError("planted")
        if any(ord("!") in prompt for prompt in prompts):
            raise ValueError("it has a !")
        given = [(row, [*prompt]) for row, prompt in zip(range(self.count)[rows], prompts, strict=True)]
        self._logged.log.append(("fill", given))
        return super().prefill(rows, prompts, *more, **others)

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        if len(token_ids) > self._logged.most:
            raise torch.OutOfMemoryError("planted")
        self._logged.log.append(("step", len(token_ids)))
        return super().step(token_ids, view)


def say(prompt: str) -> list[int]:
    """ "03 any" says three letters."""
    return [*b"abcdefghijklmnopqrstuvwxyz"[: int(prompt[:2])]]


def said(prompt: str) -> str:
    return bytes(say(prompt)).decode()


def texts(jobs: Sequence[Job]) -> list[str]:
    return [job.completions()[0].text for job in jobs]


def steps_of_list_scheduling(durations: Sequence[int], workers: int) -> int:
    """The total time when each worker that becomes free takes the next job at once."""
    free = [0] * workers
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_a_freed_row_is_filled_again_before_the_next_step(rows: int) -> None:
    rng = random.Random(rows)
    for _ in range(20):
        lengths = [rng.randint(0, 9) for _ in range(rng.randint(1, 20))]
        model, prompts = Logged(say), [f"{length:02} {number:02}" for number, length in enumerate(lengths)]
        [*made] = run_in_rows(model, prompts, rows)
        assert [completion.text for [completion] in made] == [said(prompt) for prompt in prompts]
        # a text's first token comes from the fill, and its last one is the eos, which is no letter
        assert len(model.stepped()) == steps_of_list_scheduling(lengths, min(rows, len(prompts)))


def test_rows_move_down_so_that_a_step_has_no_more_than_it_needs() -> None:
    rng = random.Random(0)
    for _ in range(30):
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 16))]
        model, prompts = Logged(say), [f"{length:02}" for length in lengths]
        made = run_in_rows(model, prompts, 16)
        assert [completion.text for [completion] in made] == [said(prompt) for prompt in prompts]
        live = [sum(length > step for length in lengths) for step in range(max(lengths))]
        powers = [next(power for power in (1, 2, 4, 8, 16) if power >= count) for count in live]
        assert model.stepped() == [min(power, len(lengths)) for power in powers]


def test_rows_move_to_make_room_for_a_request_of_several() -> None:
    """Every other one of six rows is free after two steps: three samples begin in the third."""
    model = Logged(say)
    long, short, several = "20", "02", "05"
    jobs = [job for _ in range(3) for prompt in (long, short) for job in new_jobs(model, [prompt])]
    [last] = new_jobs(model, [several], sampler=multinomial(3))
    with Runner(model, jobs, Options(), rows=6) as runner:
        runner.add(last)
        while not runner.idle:
            runner.advance()
    assert texts(jobs) == [said(long), said(short)] * 3
    assert [one.text for one in last.completions()] == [said(several)] * 3
    begun = next(place for place, (name, event) in enumerate(model.log) if name == "fill" and event[0][1] == [*b"05"])
    assert [name for name, _ in model.log[:begun]].count("step") == 2


def test_searches_move_down_whole() -> None:
    model, prompts = Logged(say), ["02", "03", "09", "01", "12"]  # the bucket of 5 searches has room for 8
    made = run_in_rows(model, prompts, 15, sampler=beam_search(3))
    assert [group[0].text for group in made] == [said(prompt) for prompt in prompts]
    assert model.stepped() == [15] + [12] * 2 + [6] * 6 + [3] * 3


def read_between_steps(model: Logged) -> list[int]:
    """How many prompt tokens were read before, between and after steps."""
    read = [0]
    for name, event in model.log:
        if name == "step":
            read.append(0)
        else:
            read[-1] += sum(len(tokens) for _, tokens in event)
    return read


def test_where_no_row_waits_prompts_are_read_at_once() -> None:
    model = Logged("ab")
    for lengths in ([700], [300, 310, 290], [900] * 4):
        model.log.clear()
        with Runner(model, new_jobs(model, ["x" * length for length in lengths]), Options(admit_tokens=64)) as runner:
            runner.drain()
        assert read_between_steps(model)[0] == sum(lengths)


@pytest.mark.parametrize("whole_prompts", [False, True])
def test_between_two_steps_no_more_prompt_is_read_than_may_be(whole_prompts: bool) -> None:
    model = Logged(lambda prompt: b"a" * 60 if prompt == "first" else b"b", whole_prompts=whole_prompts)
    [running] = new_jobs(model, ["first"])
    lengths = [100, 3, 55, 40, 41, 9, 9, 9, 9, 9, 9, 120]
    jobs = new_jobs(model, ["x" * length for length in lengths])
    with Runner(model, [running], Options(admit_tokens=40), rows=4) as runner:
        runner.advance()
        for job in jobs:
            runner.add(job)
        while not runner.idle:
            runner.advance()
    assert texts([running, *jobs]) == ["a" * 60] + ["b"] * len(jobs)
    assert sum(len(tokens) for _, tokens in model.filled()) == sum(lengths) + len("first")
    read = read_between_steps(model)
    if whole_prompts:  # a longer prompt is read by itself
        assert {one for one in read if one > 40} == {100, 55, 41, 120}
    else:
        assert max(read) == 40
    assert len(model.stepped()) == 60  # the first text got its token at every step


def test_a_cancelled_job_frees_its_row_by_the_next_step_and_one_that_waits_never_starts() -> None:
    model = Logged(lambda prompt: b"z" * 90 if prompt.startswith("long") else prompt.encode())
    jobs = new_jobs(model, ["long 1", "long 2"])
    waiting = new_jobs(model, ["never", "next", "last"])
    ended: list[Job] = []
    for job in [*jobs, *waiting]:
        job.done = ended.append
    with Runner(model, jobs, Options(), rows=2) as runner:
        for job in waiting:
            runner.add(job)
        for _ in range(5):
            runner.advance()
        assert len(model.filled()) == 2  # three prompts wait
        before: Any = jobs[0].takers[0]
        length = len(before.token_ids)
        jobs[0].cancelled = waiting[0].cancelled = True
        runner.advance()
        assert ended == [jobs[0], waiting[0]]
        assert len(before.token_ids) == length
        assert model.filled()[-1] == (0, [*b"next"])
        while not runner.idle:
            runner.advance()
    assert texts([jobs[1], *waiting[1:]]) == ["z" * 90, "next", "last"]
    assert sorted(map(id, ended)) == sorted(map(id, [*jobs, *waiting]))
    assert [*b"never"] not in [tokens for _, tokens in model.filled()]


def test_a_job_that_is_cancelled_while_rows_are_freed_ends_too() -> None:
    class CancelledLate(Job):
        """Another thread cancels it right after it was seen to go on, while the other one is over."""

        @property
        def over(self) -> bool:
            seen = Job.over.fget(self)  # type: ignore[attr-defined]
            self.cancelled = self.cancelled or first.over
            return bool(seen)

    model = Logged(lambda prompt: b"abcde"[: int(prompt)])
    late, first, last = new_jobs(model, ["5", "2", "3"])
    late.__class__ = CancelledLate
    ended: list[Job] = []
    for job in (late, first, last):
        job.done = ended.append
    with Runner(model, [late, first], Options(), rows=2) as running:
        running.add(last)
        for _ in range(20):
            running.advance()
        assert running.idle
    assert [*map(id, ended)] == [*map(id, (first, late, last))]
    assert texts([first, last]) == ["ab", "abc"]


@pytest.mark.parametrize("serves", [True, False])
def test_a_job_that_is_cancelled_while_a_step_fails_ends_too(serves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Logged(say)
    jobs, ended = new_jobs(model, ["06", "07", "01"]), list[Job]()
    for job in jobs:
        job.done = ended.append
    with Runner(model, jobs[:2], Options(), rows=2) as running:
        running.advance()
        running.advance()
        if serves:  # memory runs out in the step in which it is cancelled
            model.most = 1
            plain_step = LoggedRows.step

            def step(rows: LoggedRows, token_ids: Tensor, view: int) -> Tensor:
                jobs[0].cancelled = True
                return plain_step(rows, token_ids, view)

            monkeypatch.setattr(LoggedRows, "step", step)
        else:  # or rows do not serve the model any more
            jobs[0].cancelled = True
            monkeypatch.setattr(Decoder, "serves", lambda self, model: False)
            running.add(jobs[2])
            monkeypatch.undo()
        while not running.idle:
            running.advance()
    assert sorted(map(id, ended)) == sorted(map(id, jobs[: 2 if serves else 3]))


def test_a_text_that_cannot_be_read_ends_though_its_last_token_is_on_its_way() -> None:
    with virtual_gpus(1):
        model = gen.from_transformers(tiny_model(vocab_size=259, num_hidden_layers=1).to("cuda"), byte_tokenizer())
        job, other = new_jobs(model, ["once", "upon"], max_new_tokens=[4, 8], eos_token_id=[])
        ended: list[Job] = []
        job.done = ended.append
        with Runner(model, [job, other], Options(), rows=2) as running:
            while job.launched < 4:
                running.advance()
            assert not ended  # its last token is on its way
            job.error, job.cancelled = ValueError("planted"), True  # as a reader does whose tokenizer fails
            while not running.idle:
                running.advance()
        assert ended == [job]


@pytest.mark.usefixtures("in_parts")
def test_a_job_is_cancelled_while_its_prompt_is_read_in_parts() -> None:
    model = Logged("done")
    first, other = new_jobs(model, ["x" * 50, "y"])
    with Runner(model, [first], Options(admit_tokens=10), rows=1) as runner:
        runner.add(other)
        runner.advance()
        first.cancelled = True
        while not runner.idle:
            runner.advance()
    assert model.filled() == [(0, [*b"x"] * 10), (0, [*b"y"])]
    assert texts([other]) == ["done"]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("where", [5, 25, 49])
def test_a_prompt_that_cannot_be_read_on_fails_alone_and_frees_its_row(where: int) -> None:
    model = Logged(lambda prompt: prompt.encode()[:3])
    bad = "x" * where + "!" + "x" * (49 - where)
    jobs = new_jobs(model, [bad, "abc", "def"])
    run_all(model, jobs, Options(rows=1, admit_tokens=10))
    with pytest.raises(ValueError, match="it has a !"):
        jobs[0].completions()
    assert texts(jobs[1:]) == ["abc", "def"]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("sampler", [multinomial(5), beam_search(4)])
@pytest.mark.parametrize("admit_tokens", [4, 4096])
def test_samples_and_beams_of_a_prompt_are_read_once(sampler: Sampler, admit_tokens: int) -> None:
    model, prompts = Logged(lambda prompt: prompt.encode()), ["abcdef", "gh", "ijklmnopq"]
    jobs = new_jobs(model, prompts, sampler=sampler)
    run_all(model, jobs, Options(admit_tokens=admit_tokens))
    assert [{one.text for one in job.completions()} for job in jobs] == [{prompt} for prompt in prompts]
    read = "".join(bytes(tokens).decode() for _, tokens in model.filled())
    assert sorted(read) == sorted("".join(prompts)) and all(prompt in read for prompt in prompts)
    cut = isinstance(sampler, MultinomialSampler)  # a search's steps move its rows
    assert max(len(tokens) for _, tokens in model.filled()) == (min(admit_tokens, 9) if cut else 9)


@pytest.mark.parametrize("samples", [1, 3])
def test_beside_rows_that_go_on_32_tokens_are_read_between_two_steps(samples: int) -> None:
    model = Logged(lambda prompt: b"a" * 90 if len(prompt) < 5 else b"b")
    running = new_jobs(model, [f"{number}" for number in range(29)])
    with Runner(model, running, Options(admit_tokens=None), rows=32) as runner:
        runner.advance()
        assert [len(tokens) for _, tokens in model.filled()] == [*map(len, map(str, range(29)))]
        long = new_jobs(model, ["x" * 900], sampler=multinomial(samples))
        long += new_jobs(model, ["y" * 70] * 2)
        for job in long:
            runner.add(job)
        read = []
        while not all(job.launched for job in long):
            before = len(model.filled())
            runner.advance()
            read.append(sum(len(tokens) for _, tokens in model.filled()[before:]))
        assert max(read) == 32 and read.count(0) == 0
        while not runner.idle:
            runner.advance()
    assert texts(long[1:]) == ["b"] * 2
    assert [one.text for one in long[0].completions()] == ["b"] * samples
    assert sum(len(tokens) for _, tokens in model.filled()) == 1040 + sum(len(str(number)) for number in range(29))


def test_rows_that_cannot_be_refilled_are_filled_together_and_all_stepped_until_the_last_ends() -> None:
    model = Logged(say, refillable=False, whole_prompts=True)
    prompts = ["03 a", "07 b", "01 c", "00 d", "05 e", "02 f", "04 g"]
    made = run_in_rows(model, prompts, 3)
    assert [completion.text for [completion] in made] == [said(prompt) for prompt in prompts]
    assert model.stepped() == [3] * 7 + [3] * 5 + [1] * 4
    fills = [[row for row, _ in event] for name, event in model.log if name == "fill"]
    assert fills == [[0, 1, 2], [0, 1, 2], [0]]


def test_one_prompt_that_cannot_be_read_fails_alone_where_rows_cannot_be_refilled() -> None:
    model = Logged(lambda prompt: prompt.encode(), refillable=False, whole_prompts=True)
    jobs = new_jobs(model, ["good", "bad!", "nice"])
    run_all(model, jobs, Options(rows=2))
    assert [job.error is None for job in jobs] == [True, False, True]
    assert texts([jobs[0], jobs[2]]) == ["good", "nice"]


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("refillable", [True, False])
def test_where_memory_is_out_rows_are_halved_with_one_warning_and_texts_are_the_same(
    most: int, refillable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, prompts = Logged(say, most=most, refillable=refillable), [f"{length:02}" for length in range(20)]
    with caplog.at_level(logging.WARNING, "gen"):
        made = run_in_rows(model, prompts, 16)
    assert [completion.text for [completion] in made] == [said(prompt) for prompt in prompts]
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 16 rows; going on with 8: planted"
    ]
    assert max(model.stepped()) <= most


PROMPTS = ["once upon", "a", "the cat sat on the mat", "xy", "to be or not to be", "12", "ab", "cd"]
LIMITS = [8, 17, 12, 14, 10, 1, 15, 5]
SEARCHES = [
    multinomial(temperature=0.9),
    multinomial(3, repetition_penalty=1.2, min_new_tokens=4),
    beam_search(3, no_repeat_ngram_size=2),
]


class OutOfMemory:
    """Makes a method of the rows fail halfway through one of its calls, while there are more than so many rows."""

    def __init__(self, method: Callable[..., Any], most: int, call: int) -> None:
        self.method, self.most, self.call, self.failed = method, most, call, 0

    def of(self) -> Callable[..., Any]:
        def limited(rows: TransformersRows, *args: Any, **kwargs: Any) -> Any:
            self.call -= 1
            out = self.method(rows, *args, **kwargs)
            if self.call < 0 and rows.count > self.most:
                self.failed += 1
                raise torch.OutOfMemoryError("planted")
            return out

        return limited


def told(groups: Any) -> list[Any]:
    return [
        (one.text, one.token_ids, one.finish_reason, one.seed, [top.token_ids for top in one.top_logprobs or []])
        for group in groups
        for one in (group if isinstance(group, list) else [group])
    ]


@pytest.mark.parametrize(("sampler", "wide"), [*((one, False) for one in SEARCHES), (SEARCHES[1], True)])
def test_texts_are_the_same_wherever_memory_ran_out(
    llama: Any, sampler: Sampler, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: Any = {"sampler": sampler, "seed": range(8), "max_new_tokens": LIMITS, "details": True}
    arguments["speculate"] = gen.Speculation() if wide else False
    arguments["top_logprobs"] = 3 if isinstance(sampler, MultinomialSampler) else None
    monkeypatch.setattr(Widths, "choose", lambda self, count, texts: 4)
    monkeypatch.setattr(runner, "_HEADROOM", 8)  # so that rows grow, too
    # jobs that end first come first, so that rows move
    monkeypatch.setattr(runner, "together", lambda jobs: sorted(jobs, key=lambda job: job.request.limit))
    llama.release()
    expected = told(gen.generate(llama, PROMPTS, **arguments))
    steps = [("verify" if wide else "step", call) for call in (0, 3, 4 if wide else 11)]
    copies = [("copy", call) for call in (0, 1)]
    for method, call in [("prefill", 0), *steps, *copies, ("grow", 0)]:
        planted = OutOfMemory(getattr(TransformersRows, method), 5, call)
        with monkeypatch.context() as patch:
            patch.setattr(TransformersRows, method, planted.of())
            llama.release()
            assert told(gen.generate(llama, PROMPTS, replay=False, **arguments)) == expected, (method, call)
        assert 1 <= planted.failed <= 3, (method, call)


def test_on_a_gpu_a_text_whose_last_token_is_on_its_way_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    step = TransformersRows.step
    with virtual_gpus(1):
        model = gen.from_transformers(tiny_model(vocab_size=259, num_hidden_layers=1).to("cuda"), byte_tokenizer())
        expected = gen.generate(model, PROMPTS, sampler=greedy(), max_new_tokens=LIMITS)
        for call in (0, 1, 3, 8):
            model.release()
            monkeypatch.setattr(TransformersRows, "step", OutOfMemory(step, 4, call).of())
            assert gen.generate(model, PROMPTS, sampler=greedy(), max_new_tokens=LIMITS) == expected


@pytest.mark.parametrize("method", [Ring.send, Sent.read, Prefixes.find, Prefixes.is_first_of_many])
def test_no_request_is_lost_where_memory_runs_out_beside_the_model(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"Ring": Ring, "Sent": Sent, "Prefixes": Prefixes}[method.__qualname__.split(".")[0]]
    arguments: Any = {"sampler": greedy(), "max_new_tokens": LIMITS}
    with virtual_gpus(1):
        model = gen.from_transformers(tiny_model(vocab_size=259, num_hidden_layers=1).to("cuda"), byte_tokenizer())
        expected = gen.generate(model, PROMPTS, **arguments)
        for call in (0, 1, 2, 7):
            left = iter([False] * call + [True])

            def failing(own: Any, *given: Any, left: Any = left, **named: Any) -> Any:
                if next(left, False):
                    raise torch.OutOfMemoryError("planted")
                return method(own, *given, **named)

            monkeypatch.setattr(owner, method.__name__, failing)
            assert gen.generate(model, PROMPTS, **arguments) == expected


def test_rows_that_cannot_be_made_are_halved_too_and_the_old_ones_are_freed_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Small(Logged):
        last: weakref.ref[LoggedRows] | None = None

        def new_rows(self, count: int, length: int) -> LoggedRows:
            assert self.last is None or self.last() is None, "the old rows are still there"
            if count > 8:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
            rows = super().new_rows(count, length)
            self.last = weakref.ref(rows)
            return rows

    model, prompts = Small(say, most=2), [f"{length:02}" for length in range(20)]
    with caplog.at_level(logging.WARNING, "gen"):
        made = run_in_rows(model, prompts, 20)
    assert [completion.text for [completion] in made] == [said(prompt) for prompt in prompts]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("sampler", [greedy(), multinomial(2), beam_search(2)])
def test_where_not_even_one_prompt_fits_the_error_says_so(sampler: Sampler) -> None:
    with pytest.raises(gen.ModelError, match="not even one prompt at a time fits into the memory of cpu: planted"):
        gen.generate(Logged("x", most=0), ["a", "b", "c"], sampler=sampler)


def test_kept_rows_serve_the_next_call_unless_there_are_more_than_may_be() -> None:
    model = Logged(say)
    run_in_rows(model, ["02"] * 8, 8)
    run_in_rows(model, ["02"] * 3, 8)
    assert model.made == 1
    run_in_rows(model, ["02"] * 8, 2)
    assert model.made == 2
    assert max(model.stepped()[-8:]) == 2


class Weighing:
    """A user's sampler whose choice depends on the weight so far."""

    samples, penalties = 1, None

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best = logits.log_softmax(-1).topk(2)
        which = (-10 * weights).long() % 2
        logprobs, token_ids = (one.gather(1, which.unsqueeze(1)) for one in best)
        return token_ids, torch.arange(len(logits)), weights + logprobs.squeeze(1)


@pytest.mark.parametrize(("method", "call"), [("step", 0), ("step", 3), ("step", 40), ("grow", 0)])
def test_a_stream_of_a_users_sampler_goes_on_where_memory_ran_out(
    llama: Any, method: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: Any = {"sampler": Weighing(), "max_new_tokens": 90}
    monkeypatch.setattr(runner, "_HEADROOM", 32)
    llama.release()
    expected = gen.generate(llama, "once", details=True, **arguments)
    llama.release()
    calls = fails_once(monkeypatch, TransformersRows, method, call)
    monkeypatch.setattr(RowPool, "fewer", lambda pool, count, error: count)  # one row is as few as can be
    stream = gen.stream(llama, "once", replay=False, **arguments)
    assert "".join(stream) == expected.text
    assert stream.completion().token_ids == expected.token_ids
    assert len(calls) > call


def test_what_was_recorded_in_deterministic_mode_is_not_run_outside_of_it(llama: Any) -> None:
    llama.release()
    arguments: Any = {"sampler": multinomial(temperature=0.8), "seed": 1, "max_new_tokens": 40}
    expected = gen.generate(llama, PROMPTS, **arguments)
    rows = kept_rows(llama)
    assert rows.recordings
    usual = dict(rows.recordings)
    for deterministic in (True, False):
        torch.use_deterministic_algorithms(deterministic)
        try:
            assert gen.generate(llama, PROMPTS, **arguments) == expected
        finally:
            torch.use_deterministic_algorithms(False)
        assert not set(map(id, rows.recordings.values())) & set(map(id, usual.values()))
        usual |= {(number, deterministic): one for number, one in enumerate(rows.recordings.values())}
