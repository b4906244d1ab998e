"""The host engine: its texts are those of the device engine for the same language, wherever they run."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.errors import SamplingError
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.samplers import Sampler, beam_search, greedy, multinomial
from tests.helpers import EOS, byte_tokenizer, tiny_model
from tests.helpers.waits import waits
from tests.loop.calls import check_resumed, new_jobs, run_in_rows
from virtual_gpus import virtual_gpus

PROMPTS = ["a rose is a rose", "x", "to be or not to be", "ab", "once upon a time, in a land far away"]
LANGUAGES = ["[a-c]{2,6}", "(ab|ba){0,9}c", "x", "[0-9]{1,20};", "é{1,3}|ü"]  # shorter than the limits below
SAMPLERS = [greedy(), multinomial(temperature=1.5), multinomial(3), beam_search(3)]


def new_model(device: str | None = None, **changes: Any) -> Any:
    model = tiny_model(vocab_size=259, **changes).to(device or "cpu")
    return gen.from_transformers(model, byte_tokenizer(), probe=False)


@pytest.fixture(scope="module")
def model() -> Any:
    return new_model(eos_token_id=EOS)


def on_host(pattern: str) -> Any:
    return gen.grammar(f"start: /{pattern}/")


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("eos_token_id", [EOS, None])
def test_texts_equal_those_of_the_device_engine(sampler: Sampler, eos_token_id: int | None) -> None:
    own = new_model(eos_token_id=eos_token_id)
    arguments: dict[str, Any] = {"sampler": sampler, "seed": 5, "max_new_tokens": 32}
    prompts = [prompt for prompt in PROMPTS[:3] for _ in LANGUAGES]
    patterns = LANGUAGES * 3
    wanted = run_in_rows(own, prompts, 15, output_type=list(map(gen.regex, patterns)), **arguments)
    made = run_in_rows(own, prompts, 4, output_type=list(map(on_host, patterns)), **arguments)
    for group, others in zip(made, wanted, strict=True):
        assert [one.text for one in group] == [one.text for one in others]
        assert [one.finish_reason for one in group] == [one.finish_reason for one in others]


def test_rows_with_and_without_constraints_come_and_go_beside_each_other(model: Any) -> None:
    prompts = [f"{prompt} {number}" for number in range(3) for prompt in PROMPTS]
    kinds: list[Callable[[str], Any]] = [on_host, gen.regex, lambda pattern: None]
    types = [kinds[number % 3](LANGUAGES[number % 5]) for number in range(len(prompts))]
    arguments: dict[str, Any] = {"sampler": multinomial(), "max_new_tokens": 24}
    seeds = list(range(len(prompts)))
    alone = [
        gen.generate(model, prompt, kind, seed=seed, details=True, **arguments)
        for prompt, kind, seed in zip(prompts, types, seeds, strict=True)
    ]
    assert {one.engine for one in alone} == {"host", "device", None}
    for rows in (2, 7):
        made = run_in_rows(model, prompts, rows, output_type=types, seed=seeds, **arguments)
        assert [one.text for [one] in made] == [one.text for one in alone]
    back = gen.generate(model, prompts[::-1], types[::-1], seed=seeds[::-1], details=True, **arguments)
    assert [one.text for one in back[::-1]] == [one.text for one in alone]


def test_recorded_steps_make_the_same_texts() -> None:
    def texts(*, replay: bool) -> list[str]:
        own = new_model(eos_token_id=EOS)
        kind = gen.grammar('start: /[a-z ]{20,}/ "."')
        jobs = new_jobs(own, ["ab"] * 4, kind, seed=[1, 2, 3, 4], max_new_tokens=29, sampler=multinomial())
        run_all(own, jobs, Options(replay=replay))
        leased: Any = own.idle.take()
        assert bool(leased.recordings) == replay
        return [job.completions()[0].text for job in jobs]

    plain = texts(replay=False)
    assert texts(replay=True) == plain
    assert len(set(plain)) == 4


def test_a_text_that_begins_anew_in_other_rows_goes_on_where_it_was(model: Any) -> None:
    kind = gen.grammar('start: "(" start ")" | /[a-c]{3}/')
    check_resumed(model, kind, 1, sampler=multinomial(), seed=7, max_new_tokens=30)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_on_a_gpu_texts_are_the_same_and_the_host_does_not_wait_for_each_token(sampler: Sampler) -> None:
    kind = gen.grammar('start: /[a-z ]{5,}/ ("(" start ")")? "."')
    arguments: dict[str, Any] = {"sampler": sampler, "seed": 11, "stop": "zz", "output_type": kind}
    wanted = run_in_rows(new_model(num_hidden_layers=1), PROMPTS[:3], 4, max_new_tokens=11, **arguments)
    with virtual_gpus(2):
        own = new_model("cuda:1", num_hidden_layers=1)
        counts, made = waits(lambda most: run_in_rows(own, PROMPTS[:3], 4, max_new_tokens=most, **arguments), 7, 11)
    assert [[one.text for one in group] for group in made] == [[one.text for one in group] for group in wanted]
    assert counts[0] == counts[1]


def test_only_texts_of_a_grammar_that_is_not_regular_come(model: Any) -> None:
    kind = gen.grammar('start: "(" start ")" start | "x"')
    found = set()
    for seed in range(10):
        try:
            text = gen.generate(model, "a", kind, seed=seed, max_new_tokens=60)
        except gen.IncompleteError as error:
            assert error.completion.finish_reason == "length"
            assert error.completion.engine == "host"
            assert error.completion.value is None
            continue
        while text != "x":  # the oracle reduces the text by the rule
            shorter = text.replace("(x)x", "x", 1)
            assert shorter != text
            text = shorter
        found.add(text)
    assert found


def test_what_nothing_is_left_of_is_an_error_of_its_row(model: Any) -> None:
    def ban_a(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return logits.index_fill(1, torch.tensor([ord("a")], device=logits.device), -torch.inf)

    with pytest.raises(gen.BatchError) as raised:
        gen.generate(
            model, ["x", "y"], [gen.grammar('start: "ba"'), gen.grammar('start: "bb"')], logits_processors=[ban_a]
        )
    [error, text] = raised.value.results
    assert isinstance(error, SamplingError)
    assert text == "bb"


def test_where_nothing_can_follow_a_text_ends_whatever_is_banned() -> None:
    for eos_token_id in (EOS, [EOS, 258], None):
        own = new_model(eos_token_id=eos_token_id)
        samplers: list[Any] = [greedy(min_new_tokens=9), beam_search(2, min_new_tokens=9)]
        for sampler in samplers:
            for text in ("", "ab"):
                made: list[Any] = [
                    gen.generate(own, "x", kind, sampler=sampler, details=True)
                    for kind in (gen.grammar(f'start: "{text}"'), gen.choice([text]))
                ]
                assert [(one.text, one.finish_reason) for one in made] == [(text, "eos")] * 2
                token_ids = [*b"x", *text.encode()]
                logits = own.hf_model(torch.tensor([token_ids])).logits.detach()[0, :-1].log_softmax(-1)
                # beams keep the model's log-probabilities; where nothing but the end may come, it has probability 1
                total = float(logits.gather(1, torch.tensor(token_ids[1:]).unsqueeze(1)).sum())
                wanted = total / (len(text) + 1) if sampler.samples > 1 else 0.0
                assert [one.score for one in made] == pytest.approx([wanted] * 2, abs=1e-5)


@pytest.mark.parametrize("limit", ["step_max_items", "max_items_in_row"])
def test_a_row_whose_matcher_fails_says_so(model: Any, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A matcher fails in the middle of a text without raising: while it makes a mask, or while it takes a token."""
    from llguidance import LLMatcher, LLParserLimits

    from gen.constraints.host_engine import _tokenizer_of

    lark = 'start: "a" | start start'
    kind = gen.compile(model, gen.grammar(lark))
    assert kind.grammar is not None
    tight: dict[str, Any] = {limit: 4}
    matcher = LLMatcher(
        _tokenizer_of(kind.vocabulary)[0],
        LLMatcher.grammar_from_lark(lark),
        log_level=0,
        limits=LLParserLimits(**tight),
    )
    monkeypatch.setattr(kind.grammar, "_start", matcher)
    with pytest.raises(gen.BatchError) as raised:
        gen.generate(model, ["x", "y"], [kind, gen.grammar('start: "b"')], eos_token_id=[], max_new_tokens=50)
    [error, text] = raised.value.results
    assert isinstance(error, gen.ConstraintError) and "llguidance: " in str(error)
    assert text == "b"


@pytest.mark.parametrize("pattern", LANGUAGES)
def test_a_stream_gives_the_same_text(model: Any, pattern: str) -> None:
    arguments: dict[str, Any] = {"seed": 1, "max_new_tokens": 40, "sampler": multinomial()}
    wanted = gen.generate(model, "ab", on_host(pattern), **arguments)
    assert re.fullmatch(pattern, wanted)
    stream = gen.stream(model, "ab", on_host(pattern), **arguments)
    assert "".join(stream) == wanted == stream.completion().value
    with gen.Engine(model, rows=2) as engine:
        streams = [engine.submit("ab", on_host(pattern), **arguments) for _ in range(3)]
        assert ["".join(one) for one in streams] == [wanted] * 3
