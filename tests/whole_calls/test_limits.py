"""A limit does not change a value in silence: a text without such an error is that of any larger limit."""

import re
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

import gen
from benchmarks.constraints.limits import checked
from gen.calls.reading import find_step_rows, read_call
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.replay.recorded import Recorded
from gen.loop.runner import Runner
from gen.requests.settings import Settings
from gen.samplers import beam_search, greedy, multinomial
from gen.samplers.base import Sampled
from tests.constraints.vocabularies import spelled, wordy_tokenizer
from tests.helpers import ScriptedModel, needs_kernels_that_agree, tiny_model
from tests.helpers.noting import noted
from virtual_gpus import virtual_gpus

EOS = len(spelled()) - 4
NUMBERS = gen.regex("[0-9]+(x[0-9]{4})?")
ENDLESS = multinomial(logit_bias={EOS: -100.0})
ON_HOST = gen.grammar("start: /[0-9]+/")


def new_model(device: str = "cpu", context: int = 4096) -> Any:
    made = tiny_model(
        "llama", vocab_size=len(spelled()), bos_token_id=None, eos_token_id=EOS, max_position_embeddings=context
    )
    return gen.from_transformers(made.to(device), wordy_tokenizer())


@pytest.fixture(scope="module")
def model() -> Any:
    return new_model()


def test_what_is_not_told_is_the_text_of_any_larger_limit(model: Any) -> None:
    counts = sum((checked(model, number) for number in range(25)), start=checked(model, 25))
    assert min(counts["told"], counts["not told"]) > 30  # neither is all


class Reads:
    """Every way to read a text; each gives its completion or raises."""

    @staticmethod
    def generate(model: Any, kind: Any, **arguments: Any) -> Any:
        return gen.generate(model, "x", kind, details=True, **arguments)

    @staticmethod
    def stream(model: Any, kind: Any, **arguments: Any) -> Any:
        stream = gen.stream(model, "x", kind, **arguments)
        text = "".join(stream)
        assert stream.completion().text == text
        return stream.completion()

    @staticmethod
    def engine(model: Any, kind: Any, **arguments: Any) -> Any:
        with gen.Engine(model, rows=2) as engine:
            submitted = engine.submit("x", kind, **arguments)
            list(submitted)
            return submitted.completion()


READS = [Reads.generate, Reads.stream, Reads.engine]


@pytest.mark.parametrize("read", READS, ids=lambda one: one.__name__)
def test_a_number_that_its_limit_cut_is_told_wherever_it_is_read(model: Any, read: Callable[..., Any]) -> None:
    arguments: dict[str, Any] = {"sampler": multinomial(), "seed": 3, "max_new_tokens": 5}
    with pytest.raises(gen.IncompleteError, match=r"limit of 5 new tokens has shaped the value.*shorten=True") as told:
        read(model, NUMBERS, **arguments)
    made = told.value.completion
    assert made.value == made.text and made.finish_reason == "length" and made.engine == "device"
    assert re.fullmatch("[0-9]+(x[0-9]{4})?", made.text)
    taken = read(model, NUMBERS, **arguments, shorten=True)
    assert (taken.text, taken.value, taken.finish_reason) == (made.text, made.text, "length")
    with pytest.raises(gen.IncompleteError) as cut:
        read(model, ON_HOST, **arguments, shorten=True)
    made = cut.value.completion
    assert made.value is None and made.finish_reason == "length" and made.engine == "host"
    assert len(made.token_ids) == 5 and made.text.isdigit()  # the grammar accepts it


def test_a_text_that_ends_by_itself_is_told_where_its_limit_has_changed_a_token(model: Any) -> None:
    """With one token less than the unchanged text needs, the last ones are drawn again, and the text ends by eos."""
    kind = gen.regex("(ab|[c-z]{4})*")
    arguments: dict[str, Any] = {"sampler": multinomial(), "seed": 5, "details": True, "shorten": True}
    whole = gen.generate(model, "x", kind, **arguments)
    assert whole.finish_reason == "eos"
    for limit in range(len(whole.token_ids)):
        made = gen.generate(model, "x", kind, max_new_tokens=limit, **arguments)
        assert made.finish_reason == "length"
        assert re.fullmatch("(ab|[c-z]{4})*", made.text)
    made = gen.generate(model, "x", kind, max_new_tokens=len(whole.token_ids) + 1, **arguments)
    assert (made.text, made.token_ids, made.finish_reason) == (whole.text, whole.token_ids, "eos")


def test_a_stop_string_ends_a_text_unless_its_limit_has_changed_it_before(model: Any) -> None:
    arguments: dict[str, Any] = {"stop": "q", "shorten": True, "sampler": multinomial()}
    prompts, kind, seeds = ["x"] * 40, gen.regex("[a-z]*"), [*range(40)]
    whole = gen.generate(model, prompts, kind, seed=seeds, max_new_tokens=90, **arguments)
    reasons = set()
    for limit in (3, 9, 20):
        made = gen.generate(model, prompts, kind, seed=seeds, max_new_tokens=limit, details=True, **arguments)
        for one, text in zip(made, whole, strict=True):
            reasons.add(one.finish_reason)
            assert one.finish_reason == "length" or one.text == text
    assert reasons == {"stop", "length", "eos"}


class Counting:
    """A user's sampler that draws as gen does; it notes how often it is called and what it may choose."""

    penalties, samples = None, 1

    def __init__(self) -> None:
        self.allowed: list[int] = []

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        self.allowed.append(int(logits.isfinite().sum()))
        return multinomial().step(logits, weights, keys)


def test_a_users_own_sampler_is_called_once_a_step_and_told_what_fits(model: Any) -> None:
    sampler, kind = Counting(), gen.regex("(ab|[c-z]{4})*")
    arguments: dict[str, Any] = {"seed": 5, "max_new_tokens": 9, "details": True, "shorten": True}
    made = gen.generate(model, "x", kind, sampler=sampler, **arguments)
    assert len(sampler.allowed) == len(made.token_ids) + (made.finish_reason == "eos")
    assert made.finish_reason == "length" and re.fullmatch("(ab|[c-z]{4})*", made.text)
    roomy = Counting()
    arguments["max_new_tokens"] = 200
    whole = gen.generate(model, "x", kind, sampler=roomy, **arguments)
    assert whole.token_ids == gen.generate(model, "x", kind, sampler=multinomial(), **arguments).token_ids
    assert whole.finish_reason == "eos"


class TestBeams:
    @pytest.mark.parametrize("early", [False, True])
    def test_a_search_that_is_done_is_that_of_any_larger_limit(self, model: Any, early: bool) -> None:
        kind, sampler = gen.regex("[ab]{1,4}"), beam_search(3, early_stopping=early)
        arguments: dict[str, Any] = {"sampler": sampler, "num_return_sequences": 3, "details": True, "shorten": True}
        wanted = [(one.text, one.token_ids) for one in gen.generate(model, "x", kind, **arguments)]
        done = []
        for limit in range(1, 8):
            made = gen.generate(model, "x", kind, max_new_tokens=limit, **arguments)
            done.append(all(one.finish_reason == "eos" for one in made))
            assert not done[-1] or [(one.text, one.token_ids) for one in made] == wanted
            assert all(re.fullmatch("[ab]{1,4}", one.text) for one in made)
        assert not done[0] and done[-1] and done == sorted(done)

    def test_it_is_told_where_the_limit_took_a_candidate(self, model: Any) -> None:
        with pytest.raises(gen.IncompleteError, match="limit of 4"):
            gen.generate(model, "x", gen.regex("[a-z]+[.]"), sampler=beam_search(3), max_new_tokens=4)

    def test_one_that_reckons_with_its_limit_is_told_while_beams_are_left(self, model: Any) -> None:
        never = beam_search(2, early_stopping="never")
        arguments: dict[str, Any] = {"sampler": never, "max_new_tokens": 60}
        with pytest.raises(gen.IncompleteError):
            gen.generate(model, "x", gen.regex("[a-z]*"), **arguments)
        assert gen.generate(model, "x", gen.choice(["a", "b"]), **arguments) in ("a", "b")  # no beam is left

    def test_texts_without_a_type_are_as_they_were(self, model: Any) -> None:
        sampler = beam_search(3, early_stopping=True)
        arguments: dict[str, Any] = {"sampler": sampler, "max_new_tokens": 6}
        alone = gen.generate(model, "x", **arguments)
        assert gen.generate(model, ["x", "y"], [None, gen.regex("[a-z]+")], shorten=True, **arguments)[0] == alone


def test_a_validator_that_refuses_a_value_that_a_limit_has_shaped_says_both(model: Any) -> None:
    def refuse(value: list[int]) -> list[int]:
        raise ValueError("too few")

    kind = Annotated[list[int], Field(min_length=2), AfterValidator(refuse)]
    with pytest.raises(
        gen.ValueRefusedError, match=r"(?s)its limit of 5 tokens has shaped it.*more max_new_tokens.*too few"
    ) as raised:
        gen.generate(model, "x", kind, seed=2, max_new_tokens=5)
    assert raised.value.completion.value is None


@pytest.fixture(scope="module")
def short() -> Any:
    return new_model(context=16)


class TestTheContextIsTheLimit:
    """The prompt takes one of 16 tokens, so that the context leaves room for 15."""

    @pytest.mark.parametrize("read", READS, ids=lambda one: one.__name__)
    @pytest.mark.parametrize("most", [None, 14, 15, 400])
    def test_a_text_that_the_context_ends_says_so(self, short: Any, read: Callable[..., Any], most: int | None) -> None:
        arguments: dict[str, Any] = {"sampler": multinomial(), "seed": 3, "eos_token_id": [], "max_new_tokens": most}
        made = read(short, None, **arguments)
        expected = ("length", None, 14) if most == 14 else ("length", "context", 15)
        assert (made.finish_reason, made.stop_reason, len(made.token_ids)) == expected

    @pytest.mark.parametrize("read", READS, ids=lambda one: one.__name__)
    @pytest.mark.parametrize("kind", [gen.regex("[0-9]+"), ON_HOST], ids=["device", "host"])
    def test_no_larger_limit_is_advised(self, short: Any, read: Callable[..., Any], kind: Any) -> None:
        for most in (None, 400):
            with pytest.raises(
                gen.IncompleteError, match="The end of the context was its limit: give a shorter prompt"
            ) as told:
                read(short, kind, sampler=ENDLESS, seed=3, max_new_tokens=most)
            assert "max_new_tokens" not in str(told.value)
            assert told.value.completion.stop_reason == "context"

    def test_a_search_says_it_too(self, short: Any) -> None:
        made: Any = gen.generate(short, "x", sampler=beam_search(2), max_new_tokens=400, eos_token_id=[], details=True)
        assert (made.finish_reason, made.stop_reason) == ("length", "context")

    def test_a_prompt_that_is_cut_leaves_max_new_tokens_as_the_limit(self, short: Any) -> None:
        arguments: dict[str, Any] = {"sampler": ENDLESS, "seed": 3, "truncate": "left"}
        made = gen.generate(short, "x" * 40, max_new_tokens=9, eos_token_id=[], details=True, **arguments)
        assert (made.finish_reason, made.stop_reason, len(made.token_ids)) == ("length", None, 9)
        for most in (None, 5):
            with pytest.raises(gen.IncompleteError, match="Give more max_new_tokens"):
                gen.generate(short, "x" * 40, gen.regex("[0-9]+"), max_new_tokens=most, **arguments)
        with pytest.raises(gen.ConstraintError, match="max_new_tokens is 3; give at least 5"):
            gen.generate(short, "x" * 40, gen.regex("[a-z]{15}"), max_new_tokens=3, **arguments)

    def test_max_batch_tokens_may_be_the_limit_of_a_type(self, model: Any) -> None:
        arguments: dict[str, Any] = {"sampler": ENDLESS, "seed": 3, "max_batch_tokens": 8}
        with pytest.raises(gen.IncompleteError, match="max_batch_tokens was its limit: give more") as told:
            gen.generate(model, "x", gen.regex("[0-9]+"), **arguments)
        assert told.value.completion.stop_reason is None
        with pytest.raises(gen.IncompleteError, match="Give more max_new_tokens"):
            gen.generate(model, "x", gen.regex("[0-9]+"), max_new_tokens=3, **arguments)


class TestSteps:
    """Only steps in which a row may be short of room have the second draw."""

    def test_short_steps_are_those_in_which_some_token_may_not_fit(
        self, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For steps that make one token each."""
        short = noted(monkeypatch, Recorded, "run", lambda steps, *_, **__: steps.decoder.short)
        for pattern, times in (("[a-z]*", 1), ("x{40}[a-z]*", 1), ("x{40}([a-z]{30}-)*", 7)):
            arguments: dict[str, Any] = {"max_new_tokens": 60, "shorten": True, "eos_token_id": [], "speculate": False}
            gen.generate(model, "x", gen.regex(pattern), seed=0, **arguments)
            assert sum(short) == times
            short.clear()

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    def test_they_are_recorded_and_captured(self, device: str) -> None:
        kind = gen.regex("[ab]{9,}(x{70})?")
        arguments: dict[str, Any] = {"seed": [1, 2], "max_new_tokens": 70, "eos_token_id": []}
        arguments |= {"details": True, "shorten": True, "speculate": False}
        with virtual_gpus(1):
            own = new_model(device)
            plain = gen.generate(own, ["x", "y"], kind, replay=False, cuda_graph=False, **arguments)
            own.release()
            made = gen.generate(own, ["x", "y"], kind, **arguments)
            assert [one.token_ids for one in made] == [one.token_ids for one in plain]
            assert "length" in [one.finish_reason for one in made]
            kept = own.idle.take()
            assert any(key[-3] for key in kept.recordings)  # of steps that are near their limit


class TestUsualLimit:
    """The limit without max_new_tokens."""

    def limits(self, own: Any, types: Any, **more: Any) -> list[int]:
        prompts = ["xyz"] * (len(types) if isinstance(types, list) else 1)
        call = read_call(own, prompts, types, Settings(sampler=more.pop("sampler", greedy())), **more)
        return [request.limit for request in call.requests]

    def test_it_is_128_and_with_a_type_the_least_of_2048_the_context_and_the_batch(self) -> None:
        roomy, tight = ScriptedModel("x", context_length=5000), ScriptedModel("x", context_length=900)
        assert self.limits(roomy, [None, int, ON_HOST]) == [128, 2048, 2048]
        assert self.limits(tight, [None, int]) == [128, 897]
        assert self.limits(roomy, [None, int], max_batch_tokens=1000) == [128, 997]
        assert self.limits(roomy, [int], max_batch_tokens=1000, sampler=beam_search(4)) == [247]
        with gen.Engine(roomy, max_batch_tokens=400) as engine:
            submitted: Any = engine.submit("xyz", gen.regex("[a-z]{3}x"))  # not compiled yet
            assert submitted._feed.job.request.limit == 397

    def test_a_type_that_the_batch_has_no_room_for_is_refused(self) -> None:
        scripted = ScriptedModel("a" * 40)
        with pytest.raises(gen.ConstraintError, match="has 30 tokens, max_batch_tokens leaves room for 17"):
            gen.generate(scripted, "xyz", gen.regex("a{30}"), max_batch_tokens=20)
        with pytest.raises(gen.ArgumentError, match="max_batch_tokens=2 is too little"):
            gen.generate(scripted, "xyz", gen.regex("a*"), max_batch_tokens=2)
        assert scripted.steps == 0

    def test_where_steps_have_several_rows_each_text_needs_room_in_all_of_them(self, model: Any) -> None:
        needs_kernels_that_agree(model)
        rows = find_step_rows(model, True)
        needed = rows * (3 + 10)
        arguments: Any = {"max_new_tokens": 10, "eos_token_id": [], "seed": 1}
        message = f"max_batch_tokens={needed - 1} is too little for prompt 0 .* give at least {needed}"
        for errors in ("raise", "return"):
            with pytest.raises(gen.ArgumentError, match=message):
                [error] = gen.generate(
                    model, ["abc"], exact=True, max_batch_tokens=needed - 1, errors=errors, **arguments
                )
                raise error
        with gen.Engine(model, exact=True, max_batch_tokens=needed - 1) as engine:
            with pytest.raises(gen.ArgumentError, match=message):
                engine.submit("abc", **arguments)
            typed: Any = engine.submit("abc", gen.regex("[a-z]+"))
            assert typed._feed.job.request.limit == (needed - 1) // rows - 3
        with gen.Engine(model, exact=True, max_batch_tokens=needed) as engine:
            made = engine.submit("abc", **arguments).completion().text
        assert made == gen.generate(model, "abc", **arguments, exact=True, max_batch_tokens=needed)

    def test_room_is_taken_as_tokens_come(self, model: Any) -> None:
        """There are as many rows as for texts without a type, with the same room at first."""
        sizes = []
        for kind in (None, int):
            call = read_call(model, ["x"] * 40, kind, Settings(sampler=greedy()), max_batch_tokens=6000)
            jobs = [new_job(model, request) for request in call.requests]
            model.release()
            with Runner(model, jobs, Options(max_batch_tokens=6000)) as runner:
                sizes.append((runner._steps.decoder.count, runner._steps.decoder.length))
        assert sizes[0] == sizes[1] and sizes[0][0] > 20

    def test_many_long_texts_fit_a_small_batch(self, model: Any) -> None:
        kind = gen.regex("[ab]{300}")
        made = gen.generate(model, ["x"] * 8, kind, seed=[*range(8)], max_batch_tokens=700)
        assert all(re.fullmatch("[ab]{300}", one) for one in made)


def test_transformers_generate_is_told_too() -> None:
    from gen.integrations.transformers import ConstraintProcessor

    own = new_model()
    constraint = gen.compile(own, gen.regex("[0-9]{1,30}x"))
    told = {}
    for limit in (4, 60):
        processor = ConstraintProcessor(constraint, max_new_tokens=limit, eos_token_id=EOS)
        made = own.hf_model.generate(
            torch.tensor([[65], [66]]), max_new_tokens=limit, do_sample=False, logits_processor=[processor]
        )
        texts = [own.tokenizer.decode([token for token in row if token != EOS]) for row in made[:, 1:].tolist()]
        assert all(re.fullmatch("[0-9]{1,30}x", text) for text in texts)
        assert processor.squeezed is not None
        told[limit] = processor.squeezed.tolist()
    assert told == {4: [True] * 2, 60: [False] * 2}
