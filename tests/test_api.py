"""The functions that users call, on scripted and tiny models: stops, streams, batches, seeds, failures, bad input."""

import asyncio
import copy
import math
import pickle
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, assert_type

import numpy
import pytest
import torch
from torch import Tensor

import gen
from gen.completions import Completion
from gen.errors import ContextError
from gen.loop.jobs import Job, new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.requests.reading import read_requests
from gen.requests.settings import Settings
from gen.samplers import BeamSearchSampler, beam_search, greedy, multinomial
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import BOS, EOS, OTHER_EOS, ScriptedModel, ScriptedRows, byte_tokenizer, plain_greedy

STORY = "Ünï😀 wörld — 中文 の 物語。 END of it"


def say(prompt: str) -> list[int]:
    """A script that depends on the prompt, so that mixed-up rows show."""
    return [*f"<{prompt}> said {len(prompt)}".encode()]


def test_eos_ends_a_text_and_is_not_part_of_it() -> None:
    completion = gen.generate(ScriptedModel("hello"), "x", details=True)
    assert completion == gen.Completion(
        text="hello",
        value="hello",
        token_ids=[*b"hello"],
        logprobs=[0.0] * 5,
        score=0.0,
        finish_reason="eos",
        seed=completion.seed,
    )


def test_the_loop_ends_with_the_last_text() -> None:
    model = ScriptedModel(lambda prompt: [*prompt.encode()] * 2)
    texts = gen.generate(model, ["a", "bcdef", "gh"], max_new_tokens=100)
    assert texts == ["aa", "bcdefbcdef", "ghgh"]
    assert model.steps == 11  # the longest text and its eos token, not max_new_tokens


def test_any_of_several_eos_ids_ends_a_text() -> None:
    model = ScriptedModel(lambda prompt: [ord("a"), OTHER_EOS, ord("b")])
    assert gen.generate(model, "x") == "ab"  # the other token is a special one, without text
    assert gen.generate(model, "x", eos_token_id=[EOS, OTHER_EOS]) == "a"
    assert gen.generate(model, "x", eos_token_id=ord("a")) == ""
    assert gen.generate(model, "x", eos_token_id=[], max_new_tokens=7, details=True).finish_reason == "length"


def test_max_new_tokens_and_the_context_bound_a_text() -> None:
    completion = gen.generate(ScriptedModel("hello"), "x", max_new_tokens=3, details=True)
    assert (completion.text, completion.finish_reason) == ("hel", "length")
    completions = gen.generate(ScriptedModel("hello", context_length=6), ["abcd", "ab"], details=True)
    assert [(c.text, c.finish_reason) for c in completions] == [("he", "length"), ("hell", "length")]
    model = ScriptedModel("hello")
    assert gen.generate(model, "x", max_new_tokens=0, details=True).finish_reason == "length"
    assert model.steps == 0


def test_a_text_that_ends_within_a_character_shows_it_as_replacement() -> None:
    assert gen.generate(ScriptedModel("a中"), "x", max_new_tokens=3) == "a\ufffd"
    assert list(gen.stream(ScriptedModel("a中"), "x", max_new_tokens=3)) == ["a", "\ufffd"]


@pytest.mark.parametrize(
    ("stop", "first"),
    [
        *(("😀", "😀"), ("文 の", "文"), ("END", "E"), (["zzz", "。 E"], "。"), ("it", "it"), (["E", "END"], "E")),
        (["zzz", re.compile(r"[^。]{2}😀")], "nï😀"),
    ],
)
def test_stops_end_texts_and_streams_alike(stop: Any, first: str) -> None:
    expected = STORY[: STORY.index(first)]
    completion = gen.generate(ScriptedModel(STORY), "x", stop=stop, details=True)
    assert (completion.text, completion.finish_reason) == (expected, "stop")
    assert Tokenizer(byte_tokenizer()).decode(completion.token_ids).startswith(expected)
    assert "".join(gen.stream(ScriptedModel(STORY), "x", stop=stop)) == expected


def test_each_prompt_of_a_list_has_stops_of_its_own() -> None:
    model, prompts = ScriptedModel("one two three"), ["a", "b", "c"]
    assert gen.generate(model, prompts, stop=[["tw"], None, [" ", "x"]]) == ["one ", "one two three", "one"]
    assert gen.generate(model, prompts, stop=["tw", "n"]) == ["o"] * 3
    with pytest.raises(gen.ArgumentError, match="the prompt is a single one; give stop as a list of strings"):
        gen.generate(model, "a", stop=[["tw"]])


@pytest.mark.parametrize("stop", ["tw", re.compile("t.")])
def test_what_ended_a_text_is_kept_where_that_is_asked_for(stop: Any) -> None:
    model = ScriptedModel("one two three")
    assert gen.generate(model, "a", stop=stop, include_stop=True) == "one tw"
    assert "".join(gen.stream(model, "a", stop=stop, include_stop=True)) == "one tw"
    special = ScriptedModel(lambda prompt: [*b"one", OTHER_EOS, *b"two"])
    assert gen.generate(special, "x", stop="e<end>t", include_stop=True) == "one<end>t"
    assert gen.generate(special, "x", stop=re.compile(re.escape("<end>") + "t")) == "one"


@pytest.mark.parametrize(
    ("script", "stop", "text", "finish_reason"),
    [
        ([*b"one", OTHER_EOS, *b"two"], "<end>", "one", "stop"),
        ([*b"one", OTHER_EOS, *b"two"], ["x", "<end>"], "one", "stop"),
        ([*b"one", OTHER_EOS, *b"two"], "ne<end>t", "o", "stop"),  # text on both sides of it
        ([*b"one", OTHER_EOS, OTHER_EOS, *b"two"], "<end><end>", "one", "stop"),
        ([*b"one", OTHER_EOS, *b"two"], "<end>!", "onetwo", "eos"),  # not what comes after it
        ([*b"one", OTHER_EOS, *b"two"], "et", "on", "stop"),  # no stop string names it, so it has no text
        ([*b"one", OTHER_EOS, *b"two"], "<en", "onetwo", "eos"),  # nor is a part of its name in the text
        ([*b"one <end> two"], "<end>", "one ", "stop"),  # written in plain letters
        ([*b"one", EOS, *b"two"], "</s>", "one", "eos"),  # an eos is one first
        ([*b"one", OTHER_EOS], "<end>!", "one", "eos"),
        (["中".encode()[0], OTHER_EOS, *b"two"], "<end>", "\ufffd", "stop"),
        (["中".encode()[0], OTHER_EOS, OTHER_EOS, *b"two"], "<end><end>", "\ufffd", "stop"),
        ([*b"G", "中".encode()[0], OTHER_EOS, *b"two"], "G<end>", "", "stop"),  # an unfinished character has no text
    ],
)
def test_a_stop_string_may_have_special_tokens_in_it(
    script: list[int], stop: str | list[str], text: str, finish_reason: str
) -> None:
    model = ScriptedModel(lambda prompt: script)
    completion = gen.generate(model, "x", stop=stop, details=True)
    assert (completion.text, completion.finish_reason) == (text, finish_reason)
    assert "".join(gen.stream(model, "x", stop=stop)) == text
    beams: Any = gen.generate(model, "x", stop=stop, sampler=beam_search(2), details=True)
    assert (beams.text, beams.finish_reason) == (text, finish_reason)
    if finish_reason == "stop":  # the special token that ended it is among the tokens, as with other stop strings
        assert completion.token_ids == script[: len(completion.token_ids)]


@pytest.mark.parametrize("sampler", [None, beam_search(1)])
def test_stops_that_never_come_change_no_text(sampler: Any) -> None:
    """Special tokens, which have no text, stand anywhere, within characters too. Oracle: all tokens decoded at once."""
    rng = random.Random(0)
    tokenizer = Tokenizer(byte_tokenizer())
    for _ in range(12):
        script = [*"aߞ中🙂".encode()]
        for _ in range(rng.randint(1, 3)):
            script.insert(rng.randint(0, len(script)), OTHER_EOS)
        del script[rng.randint(len(script) - 2, len(script)) :]
        model = ScriptedModel(partial(_same, script))
        made: Any = gen.generate(model, "x", stop="<end>!", sampler=sampler, details=True)
        assert (made.token_ids, made.text) == (script, tokenizer.decode(script))
        assert "".join(gen.stream(model, "x", stop="<end>!", sampler=sampler)) == made.text


def _same(script: list[int], prompt: Sequence[int]) -> list[int]:
    return script


def test_batches_keep_their_order_and_rows_their_prompts() -> None:
    prompts = ["a", "bb", "中", "", "dddd"]
    model = ScriptedModel(say)
    assert gen.generate(model, prompts) == [bytes(say(prompt)).decode() for prompt in prompts]
    assert gen.generate(model, "bb") == "<bb> said 2"
    assert gen.generate(model, ["bb"]) == ["<bb> said 2"]
    assert gen.generate(model, ("a", "bb")) == ["<a> said 1", "<bb> said 2"]


def test_samples_come_as_a_list_for_each_prompt() -> None:
    model = ScriptedModel(say)
    assert gen.generate(model, "a", sampler=multinomial(samples=3)) == ["<a> said 1"] * 3
    assert gen.generate(model, ["a", "bb"], sampler=multinomial(2)) == [["<a> said 1"] * 2, ["<bb> said 2"] * 2]


def test_a_prompt_may_be_token_ids_or_messages() -> None:
    model = ScriptedModel(say)
    assert gen.generate(model, [BOS, *b"bb"]) == "<bb> said 2"
    assert gen.generate(model, [[*b"a"], [*b"bb"]]) == ["<a> said 1", "<bb> said 2"]
    model.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    rendered = "[user] hi\n[assistant] "
    messages = [{"role": "user", "content": "hi"}]
    for answer in (gen.generate(model, "hi", chat=True), gen.generate(model, messages)):
        assert answer == f"<{rendered}> said {len(rendered)}"
    assert gen.generate(model, [messages, messages]) == [gen.generate(model, messages)] * 2


def test_a_chat_takes_arguments_for_its_template_and_goes_on_with_the_assistants_message() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% if tools %}{{ tools[0].function.name }}:{% endif %}{% if enable_thinking is false %}fast:{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    model = ScriptedModel(lambda prompt: [*prompt.encode()])
    model.tokenizer = Tokenizer(tokenizer)
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    given = {"tools": [tool], "enable_thinking": False}
    assert gen.generate(model, "hi", chat=True) == "[user]hi;[assistant]"
    assert gen.generate(model, "hi", chat=True, chat_template_kwargs=given) == "look:fast:[user]hi;[assistant]"
    messages = [{"role": "user", "content": "hi"}]
    both = gen.generate(model, [messages, messages], chat_template_kwargs={"enable_thinking": False})
    assert both == ["fast:[user]hi;[assistant]"] * 2
    begun = [*messages, {"role": "assistant", "content": "It is"}]
    assert gen.generate(model, begun) == "[user]hi;[assistant]It is"
    assert gen.generate(model, begun, chat=True, chat_template_kwargs=given) == "look:fast:[user]hi;[assistant]It is"
    assert "".join(gen.stream(model, begun, chat_template_kwargs=given)) == "look:fast:[user]hi;[assistant]It is"
    ended = {"continue_final_message": False, "add_generation_prompt": True}
    assert gen.generate(model, begun, chat_template_kwargs=ended) == "[user]hi;[assistant]It is;[assistant]"


def test_the_types_of_results_follow_the_prompt_the_sampler_and_details() -> None:
    model, messages = ScriptedModel("hi"), [{"role": "user", "content": "hi"}]
    model.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    assert_type(gen.generate(model, "x"), str)
    assert_type(gen.generate(model, [65, 66]), str)
    assert_type(gen.generate(model, messages, chat=True), str)
    assert_type(gen.generate(model, "x", sampler=greedy(), stop="z"), str)
    assert_type(gen.generate(model, "x", details=True), Completion)
    assert_type(gen.generate(model, ["x", "y"]), list[str])
    assert_type(gen.generate(model, ("x", [65], messages), details=False), list[str])
    assert_type(gen.generate(model, [[65], [66]]), list[str])
    assert_type(gen.generate(model, [messages], details=True), list[Completion])
    assert_type(gen.generate(model, "x", sampler=multinomial(2)), Any)
    assert_type(gen.generate(model, "x", sampler=beam_search(2), details=True), Any)
    assert_type(gen.generate(model, ["x"], sampler=multinomial()), Any)
    assert_type(gen.generate(model, ["x"], sampler=multinomial(), details=True), Any)
    assert_type(gen.generate(model, ["x", "y"], sampler=[greedy(), greedy()]), list[str])
    several: list[gen.samplers.Sampler] = [greedy(), multinomial(2)]
    assert_type(gen.generate(model, ["x", "y"], sampler=several), Any)
    assert_type(gen.generate(model, ["x", "y"], sampler=several, details=True), Any)
    assert_type(gen.stream(model, "x"), gen.Stream)
    assert_type(gen.stream(model, "x").completion, Callable[[], Completion])

    def unknown(prompt: str | list[str], sampler: gen.samplers.Sampler | None, details: bool) -> None:
        assert_type(gen.generate(model, prompt), str | list[str])
        result = gen.generate(model, prompt, sampler=sampler, details=details)
        assert isinstance(result, Completion if details else str)

    unknown("x", None, True)
    unknown("x", greedy(), False)


def test_equal_seeds_give_equal_texts_and_drawn_seeds_are_reported(llama: Any) -> None:
    first, second = gen.generate(llama, ["same", "same"], seed=3, max_new_tokens=12)
    assert first == second == gen.generate(llama, "same", seed=3, max_new_tokens=12)
    drawn = gen.generate(llama, ["same"] * 4, max_new_tokens=12, details=True)
    assert len({completion.seed for completion in drawn}) == 4
    assert len({completion.text for completion in drawn}) == 4
    for completion in drawn:
        assert gen.generate(llama, "same", seed=completion.seed, max_new_tokens=12) == completion.text


def test_threads_share_a_model(llama: Any) -> None:
    prompts = [f"thread {number}" for number in range(8)]
    expected = [gen.generate(llama, prompt, seed=5, max_new_tokens=12) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda prompt: gen.generate(llama, prompt, seed=5, max_new_tokens=12), prompts))
    assert texts == expected


def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(llama: Any) -> None:
    prompt_ids = [*b"once"]
    for sampler in (multinomial(temperature=0.7, top_k=5), greedy(), multinomial()):
        completion = gen.generate(llama, prompt_ids, sampler=sampler, seed=1, max_new_tokens=8, details=True)
        token_ids = torch.tensor([prompt_ids + completion.token_ids])
        with torch.no_grad():
            logits = llama.hf_model(token_ids).logits[0, len(prompt_ids) - 1 : -1, :259].double()
        if isinstance(sampler, multinomial):
            logits = sampler.warp(logits).double()
        expected = logits.log_softmax(-1).gather(1, token_ids[0, len(prompt_ids) :, None]).flatten()
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert completion.score == pytest.approx(sum(completion.logprobs))


MIXED = ["a", "once upon a time there was", "the cat", "Zürich 中", "x" * 45, "0", "go on and on"]
EACH: list[gen.samplers.Sampler] = [
    greedy(),
    multinomial(temperature=0.8, top_k=20),
    multinomial(top_p=0.9, repetition_penalty=1.3),
    greedy(no_repeat_ngram_size=2, bad_words=["e"], min_new_tokens=3),
    multinomial(min_p=0.02, frequency_penalty=0.5, presence_penalty=0.3),
    greedy(logit_bias={97: 3.0}),
    multinomial(),
]
LIMITS = [5, 20, 0, 9, 33, 1, 14]


def alone(model: Any, samplers: Sequence[gen.samplers.Sampler] = EACH, **arguments: Any) -> list[Any]:
    """Each of `MIXED` by itself, with its sampler, its limit and its number as seed."""
    return [
        gen.generate(model, prompt, sampler=sampler, max_new_tokens=limit, seed=seed, **arguments)
        for seed, (prompt, sampler, limit) in enumerate(zip(MIXED, samplers, LIMITS, strict=True))
    ]


@pytest.fixture(scope="module")
def each_alone(llama: Any) -> list[Any]:
    """The completions of each of `MIXED` by itself."""
    return alone(llama, details=True)


def as_texts(completions: list[Any]) -> list[Any]:
    return [as_texts(one) if isinstance(one, list) else one.text for one in completions]


def test_each_prompt_may_have_its_own_sampler_and_limit(llama: Any, each_alone: list[Any]) -> None:
    texts = gen.generate(llama, MIXED, sampler=EACH, max_new_tokens=LIMITS, seed=range(7))
    assert texts == as_texts(each_alone)
    made = gen.generate(llama, MIXED, sampler=EACH, max_new_tokens=LIMITS, seed=range(7), details=True)
    assert made[0].token_ids == plain_greedy(llama.hf_model, [*b"a"], 5)
    assert [len(one.token_ids) for one in made] == LIMITS
    limits: Any = numpy.array(LIMITS)
    assert gen.generate(llama, MIXED, max_new_tokens=limits, sampler=tuple(EACH), seed=range(7)) == texts


LIKELIEST: Any = SimpleNamespace(samples=1, penalties=None, step=greedy().step)  # a sampler that gen does not know


def test_a_list_of_samplers_may_mix_draws_beams_samples_and_the_users_own(llama: Any) -> None:
    samplers: list[gen.samplers.Sampler] = [multinomial(2), beam_search(2), LIKELIEST, *EACH[3:5]]
    samplers += [beam_search(3, repetition_penalty=1.1), multinomial(3, temperature=0.7)]
    texts = gen.generate(llama, MIXED, sampler=samplers, max_new_tokens=LIMITS, seed=range(7))
    assert texts == alone(llama, samplers)
    assert [len(one) if isinstance(one, list) else 1 for one in texts] == [2, 1, 1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    "way",
    [
        "in a batch",
        "streamed",
        Options(rows=2),
        Options(rows=2, replay=False),
        Options(rows=3, admit_tokens=4),
    ],
    ids=str,
)
def test_texts_are_the_same_alone_in_a_batch_streamed_and_in_rows_that_are_filled_anew(
    llama: Any, each_alone: list[Any], way: str | Options
) -> None:
    arguments: Any = {"max_new_tokens": LIMITS, "seed": range(7)}
    if way == "in a batch":
        assert gen.generate(llama, MIXED, sampler=EACH, details=True, **arguments) == near(each_alone)
        return
    if way == "streamed":
        for seed, (prompt, sampler, limit) in enumerate(zip(MIXED, EACH, LIMITS, strict=True)):
            stream = gen.stream(llama, prompt, sampler=sampler, max_new_tokens=limit, seed=seed)
            assert "".join(stream) == each_alone[seed].text
            assert [stream.completion()] == near([each_alone[seed]])
        return
    requests = read_requests(llama, MIXED, Settings(max_new_tokens=LIMITS, seed=range(7)), EACH, [()] * len(MIXED))
    jobs = [new_job(llama, request) for request in requests]
    ended: list[Job] = []
    assert isinstance(way, Options)
    run_all(llama, jobs, way, ended.append)
    assert [one for job in jobs for one in job.completions()] == near(each_alone)
    assert len(ended) == len({id(job) for job in ended}) == len(jobs)


class near:
    """Equal to completions whose logprobs differ by no more than rounding in sums of another order."""

    def __init__(self, completions: list[Completion]) -> None:
        self._completions = completions

    def __eq__(self, others: object) -> bool:
        assert isinstance(others, list)
        for one, other in zip(self._completions, others, strict=True):
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
            assert other.score == pytest.approx(one.score, abs=1e-3)
            assert replace(other, logprobs=one.logprobs, score=one.score) == one
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("most", [78, 100, 200, 10_000])
def test_max_batch_tokens_changes_no_text(llama: Any, each_alone: list[Any], most: int) -> None:
    arguments: Any = {"sampler": EACH, "max_new_tokens": LIMITS, "seed": range(7)}
    assert gen.generate(llama, MIXED, max_batch_tokens=most, **arguments) == as_texts(each_alone)


def test_a_progress_bar_counts_prompts_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert gen.generate(ScriptedModel(say), ["a", "bb"], progress=True) == ["<a> said 1", "<bb> said 2"]
    out, err = capsys.readouterr()
    assert ("2/2" in err, out) == (True, "")
    gen.generate(ScriptedModel(say), ["a", "bb"])
    assert capsys.readouterr() == ("", "")


class Broken(ScriptedModel):
    """Says its prompt. It cannot read a prompt with a "!", and has no token left at the end of one with a "?"."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: [*prompt.encode()])

    def script(self, prompt_ids: Sequence[int]) -> list[int]:
        if ord("!") in prompt_ids:
            raise ZeroDivisionError("no such thing")
        return [one for one in super().script(prompt_ids) if one != EOS or ord("?") not in prompt_ids]

    class rows(ScriptedRows):
        def logits(self, rows: Sequence[int]) -> Tensor:
            over = torch.tensor([self._said[row] >= len(self._scripts[row]) for row in rows])
            return super().logits(rows).masked_fill(over.unsqueeze(1), -math.inf)


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("sampler", [greedy(), multinomial(2), beam_search(2), LIKELIEST])
def test_prompts_that_fail_leave_the_others_results_in_the_error(sampler: Any, details: bool) -> None:
    prompts = ["ab", "c!", "def", "gh?", "i", "!"]
    with pytest.raises(
        gen.BatchError, match=r"^of 6 prompts 3 prompts, the first of them prompt 1 failed: no such thing .* \.results"
    ) as caught:
        gen.generate(Broken(), prompts, sampler=sampler, details=details)
    results = caught.value.results
    good = [number for number, prompt in enumerate(prompts) if prompt.isalpha()]
    expected = [gen.generate(Broken(), prompts[number], sampler=sampler, seed=1, details=details) for number in good]
    assert [without_seed(results[number]) for number in good] == [without_seed(one) for one in expected]
    assert [type(results[number]) for number in (1, 3, 5)] == [ZeroDivisionError, gen.SamplingError, ZeroDivisionError]
    assert str(results[3]).startswith("prompt 3")
    assert caught.value.__cause__ is results[1]


@pytest.mark.parametrize("how", ["generate", "agenerate"])
def test_errors_may_be_returned_each_in_the_place_of_its_prompt(how: str) -> None:
    def generate(*given: Any, **settings: Any) -> Any:
        if how == "generate":
            return gen.generate(*given, errors="return", **settings)
        return asyncio.run(gen.agenerate(*given, errors="return", **settings))

    model = ScriptedModel(lambda prompt: [*(b"true" if "true" in prompt else prompt.encode())], context_length=16)
    prompts = ["ab", "x" * 20, [{"role": "user"}], "is it true?", [300], ""]
    made = generate(model, prompts, max_new_tokens=8)
    assert made[0] == "ab" and made[3] == "true"
    errors = [type(made[1]), type(made[2]), type(made[4])]
    assert errors == [ContextError, gen.ArgumentError, gen.ArgumentError]
    assert "prompt 1 has 20 tokens" in str(made[1]) and "prompt 4: " in str(made[4])
    made = generate(model, ["is it true?", "x" * 20, "ab"], [bool, bool, None], max_new_tokens=[4, 4, 2])
    assert made[0] is True and made[2] == "ab" and isinstance(made[1], ContextError)
    made = generate(model, ["is it true?", "abc"], [bool, gen.regex("x{20}")], max_new_tokens=4)
    assert made[0] is True and isinstance(made[1], gen.ConstraintError)
    assert [type(one) for one in generate(model, ["x" * 20], details=True)] == [ContextError]
    for given, settings in (("ab", {}), (["ab"], {"seed": -1})):
        with pytest.raises(gen.ArgumentError):
            generate(model, given, **settings)
    assert [type(one) for one in generate(Broken(), ["a!", "b", "c?"])] == [ZeroDivisionError, str, gen.SamplingError]
    with pytest.raises(gen.ArgumentError, match='errors must be "raise", or "return" for a list'):
        gen.generate(model, ["ab"], errors="ignore")  # type: ignore[call-overload]
    drafted = generate(model, ["ab", "cd"], draft=[[10**6], "cd"], max_new_tokens=2)
    assert "draft has the token id 1000000" in str(drafted[0]) and drafted[1] == "cd"
    chats: list[Any] = ["ab", [{"role": "user", "content": "ab"}]]
    for name, value in (("describe", True), ("retries", 1)):
        told = generate(gen.load("demo"), chats, gen.choice(["a", "b"]), **{name: value})
        assert isinstance(told[0], gen.ArgumentError) and "prompt 0 is none" in str(told[0]) and told[1] in ("a", "b")
    if how == "generate":
        made = generate(model, ["ab", "abcdefgh"], max_new_tokens=8, max_batch_tokens=12)
        assert made[0] == "ab" and "max_batch_tokens=12 is too little for prompt 1" in str(made[1])


def without_seed(result: Any) -> Any:
    if isinstance(result, list):
        return [without_seed(one) for one in result]
    return replace(result, seed=0) if isinstance(result, Completion) else result


def test_the_error_itself_is_raised_where_no_prompt_is_left() -> None:
    for prompt in ("a!", ["a!"], ["a!", "b?"]):
        with pytest.raises(ZeroDivisionError, match="no such thing"):
            gen.generate(Broken(), prompt)
    with pytest.raises(gen.SamplingError, match=r"^prompt 0: no token") as caught:
        gen.generate(Broken(), ["a?", "b!"])
    results: Any = caught.value.results  # type: ignore[attr-defined]
    assert str(results[0]) == str(caught.value) and isinstance(results[1], ZeroDivisionError)
    assert not hasattr(results[0], "results")  # it is no circle
    assert caught.value.__notes__ == ["All 2 prompts failed; the error of each is in .results of this error."]
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again.results[0]) == str(again) == str(caught.value)
    with pytest.raises(gen.IncompleteError) as unfinished:
        gen.generate(ScriptedModel('"a long'), ["x", "y"], gen.grammar('start: /"[a-z ]+"/'), max_new_tokens=4)
    unwhole: Any = unfinished.value
    assert [one.completion.text for one in unwhole.results] == ['"a l', '"a l']
    with pytest.raises(gen.BatchError, match=r"^of 2 prompts prompt 1 failed: prompt 1: no token .* are in \.results"):
        gen.generate(Broken(), ["a", "b?"])


def stop(logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
    """Ctrl-C comes when it would choose an "e"."""
    if logits[:, ord("e")].max() == 0:
        raise KeyboardInterrupt
    return greedy().step(logits, weights, keys)


STOPPING: Any = SimpleNamespace(samples=1, penalties=None, step=stop)


def test_an_interrupt_within_a_sampler_leaves_the_results_that_are_done() -> None:
    model, prompts = Broken(), ["abcdefgh", "ij", "k", "l?", "m!"]
    with pytest.raises(gen.Interrupted, match=r"2 of 5 texts are in \.results") as caught:
        gen.generate(model, prompts, sampler=STOPPING)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert "what there is of 1 others" in str(caught.value)
    begun, *others = caught.value.results
    assert (begun.text, begun.finish_reason, len(begun.token_ids)) == ("abcd", None, 4)
    assert others == ["ij", "k", None, None]
    assert gen.generate(model, prompts[:3]) == prompts[:3]
    with pytest.raises(gen.Interrupted) as caught:  # batches run one after the other, the longest prompts first
        gen.generate(model, ["ab", "a long one", "x?", "ef"], sampler=[STOPPING, greedy(), greedy(), STOPPING])
    assert caught.value.results == [None, "a long one", None, None]
    with pytest.raises(gen.Interrupted, match=r"0 of 1 texts") as caught:
        gen.generate(model, "abcdef", gen.regex("[a-z]*"), sampler=STOPPING)
    assert [(one.text, one.value) for one in caught.value.results] == [("abcd", None)]


@pytest.mark.parametrize("sampler", [greedy(), multinomial(2), beam_search(2)])
def test_an_interrupt_within_the_models_step_leaves_the_results_that_are_done(sampler: Any) -> None:
    class Rows(ScriptedRows):
        def step(self, token_ids: Tensor, view: int) -> Tensor:
            if max(self._said) == 4:
                raise KeyboardInterrupt
            return super().step(token_ids, view)

    prompts, model = ["ab", "abcdefgh", "cd"], ScriptedModel(lambda prompt: [*prompt.encode()])
    model.rows = Rows
    with pytest.raises(gen.Interrupted) as caught:
        gen.generate(model, prompts, sampler=sampler, details=True)
    first, second, third = caught.value.results
    texts = [[one.text for one in (made if isinstance(made, list) else [made])] for made in (first, third)]
    assert texts == [["ab"] * len(texts[0]), ["cd"] * len(texts[0])]
    if isinstance(sampler, BeamSearchSampler):  # a beam search has no text before its end
        assert second is None
    else:
        begun = [one.text for one in (second if isinstance(second, list) else [second])]
        assert begun == ["abcde"] * len(texts[0])


def test_an_interrupt_within_the_users_processor_leaves_a_text_that_had_no_limit_left() -> None:
    def interrupt(*_: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(gen.Interrupted) as caught:
        gen.generate(ScriptedModel("hello"), ["a", "b"], max_new_tokens=[0, 3], logits_processors=[interrupt])
    assert caught.value.results == ["", None]


def test_a_logits_processor_that_adds_is_a_bias(llama: Any) -> None:
    def add(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return logits + torch.where(torch.arange(logits.shape[1]) == 97, 2.5, 0.0)

    for make in (greedy, multinomial, partial(beam_search, 3)):
        arguments: Any = {"seed": range(7), "max_new_tokens": 12, "details": True}
        biased: Any = gen.generate(llama, MIXED, sampler=make(logit_bias={97: 2.5}), **arguments)
        processed: Any = gen.generate(llama, MIXED, sampler=make(), logits_processors=[add], **arguments)
        assert processed == near(biased)
        assert biased != gen.generate(llama, MIXED, sampler=make(), **arguments)


def test_a_list_of_no_prompts_gives_an_empty_list() -> None:
    model: Any = ScriptedModel("ab")
    calls: list[Callable[..., Any]] = [
        partial(gen.generate, model),
        lambda prompts, *rest, **more: asyncio.run(gen.agenerate(model, prompts, *rest, **more)),
        lambda prompts, *rest, **more: list(gen.generate_iter(model, prompts, *rest, **more)),
    ]
    nothing: list[Any] = [[], (), numpy.zeros((0, 3), int)]
    for call in calls:
        for prompts in nothing:
            assert call(prompts) == call(prompts, bool, details=True) == []
        with pytest.raises(gen.ArgumentError, match="num_return_sequences"):
            call([], sampler=beam_search(2), num_return_sequences=0)
    names = ["sampler", "seed", "max_new_tokens", "stop", "images", "output_type"]
    lists: dict[str, Any] = {name: [] for name in names}
    assert gen.generate(model, [], progress=True, errors="return", **lists) == []
    assert gen.generate(model, [], sampler=beam_search(2), num_return_sequences=2, max_batch_tokens=1) == []
    with gen.Engine(model) as engine:
        assert engine.submit_all([]) == engine.submit_all([], bool, sampler=[]) == []
    none: Any = []
    assert gen.score(model, none) == gen.score(model, none, none) == gen.classify(model, none, ["a", "b"]) == []


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_model_says_why_it_is_neither_pickled_nor_copied(copied: Callable[[Any], Any]) -> None:
    model = gen.load("demo")
    for held in (model, {"model": model}, gen.Engine(model)):
        with pytest.raises(gen.ModelError, match="neither pickled nor copied: load it in each process"):
            copied(held)
