"""Steps that read drafts change no text: the oracle is the same call with `speculate=False`.

Widths are drawn at random here, whatever they cost, so that each occurs everywhere.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import gen
from gen.completions import Completion
from gen.loop.speculation.widths import Widths
from gen.models.transformers.model import TransformersModel
from gen.samplers import greedy, multinomial
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.demo import short_demo
from tests.helpers.waits import waits
from virtual_gpus import virtual_gpus

PROMPTS = [
    "The quick brown fox. The quick brown fox. The quick",
    "Tom said: hello hello hello hello",
    "Describe Ada as JSON.\n",
    "def f(x):\n    return x\ndef f(y):\n",
]
PENALTIES: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "no_repeat_ngram_size": 4}


class Item(BaseModel):
    title: Annotated[str, Field(max_length=20)]
    colour: Literal["red", "green", "blue"]
    count: int
    tags: Annotated[list[Literal["x", "yy"]], Field(max_length=2)]


@pytest.fixture(autouse=True)
def widths(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Draw the widths of steps at random; the set has those that occurred."""
    draw, came = random.Random(0), set[int]()

    def choose(self: Widths, count: int, texts: object) -> int:
        came.add(width := min(draw.choice([1, 4, 8]), self.widest))
        return width

    monkeypatch.setattr(Widths, "choose", choose)
    monkeypatch.setattr(Widths, "looks", lambda self, rows: True)
    yield came


def both(model: Any, prompts: Any = PROMPTS, output_type: Any = None, **arguments: Any) -> list[list[Completion]]:
    """Each prompt's completions without drafts, and with them."""
    settings: dict[str, Any] = {
        "details": True,
        "shorten": True,
        "seed": [*range(len(prompts))],
        "max_new_tokens": 40,
    } | arguments
    plain: Any = gen.generate(model, prompts, output_type, speculate=False, **settings)
    drafted: Any = gen.generate(model, prompts, output_type, speculate=gen.Speculation(), **settings)
    return [[part for one in found for part in (one if isinstance(one, list) else [one])] for found in (plain, drafted)]


def check(plain: list[Completion], drafted: list[Completion], *, accepts: bool = True) -> None:
    for one, other in zip(plain, drafted, strict=True):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        for told, expected in zip(other.top_logprobs or [], one.top_logprobs or [], strict=True):
            assert told.token_ids == expected.token_ids
            assert [told.logprob, *told.logprobs] == pytest.approx([expected.logprob, *expected.logprobs], abs=1e-4)
        assert replace(other, logprobs=one.logprobs, score=one.score, top_logprobs=one.top_logprobs) == one
    assert sum(one.drafted for one in plain) == 0
    assert sum(one.accepted for one in drafted) > 0 or not accepts
    assert all(one.accepted <= one.drafted for one in drafted)


@pytest.mark.parametrize(
    "arguments",
    [
        {"sampler": greedy()},
        {"sampler": multinomial(temperature=0.7, top_p=0.9, samples=2)},
        {"sampler": [greedy(), multinomial(top_k=20), multinomial(temperature=0.3), greedy(repetition_penalty=1.2)]},
        {"sampler": multinomial(temperature=0.3, min_new_tokens=9, **PENALTIES)},
        {"sampler": greedy(bad_words=[" the"]), "stop": ["quick", "e."], "max_new_tokens": [1, 9, 30, 70]},
        {"sampler": multinomial(temperature=0.5), "eos_token_id": []},
        {"sampler": multinomial(temperature=0.5, repetition_penalty=1.1), "top_logprobs": 3},
    ],
    ids=["greedy", "samples", "each its own", "penalties", "stops", "no end", "likeliest tokens"],
)
def test_texts_are_those_of_plain_steps(arguments: dict[str, Any], demo: TransformersModel, widths: set[int]) -> None:
    check(*both(demo, **arguments), accepts="bad_words" not in repr(arguments))
    assert widths == {1, 4, 8}


@pytest.mark.parametrize("limit", [None, 20])
@pytest.mark.parametrize("output_type", [Item, gen.regex(r"(yes|no), (19|20)\d\d-[01]\d")])
def test_values_are_those_of_plain_steps_and_so_is_what_a_limit_has_shaped(
    output_type: Any, limit: int | None, demo: TransformersModel
) -> None:
    prompts = PROMPTS[:3]
    least = gen.compile(demo, output_type).least_tokens or 0
    limits = None if limit is None else [max(limit, least + more) for more in range(3)]
    check(*both(demo, prompts, output_type, sampler=multinomial(temperature=0.9), max_new_tokens=limits))


@pytest.mark.parametrize("shape", ["gemma3", "mixtral", "gpt2", "opt", "deepseek_v3"])
def test_texts_of_windows_experts_and_learned_positions_are_those_of_plain_steps(shape: str) -> None:
    own = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    context = own.context_length  # all texts but the shortest reach its end
    assert isinstance(own, TransformersModel) and own.goes_wide
    prompts = ["abcabcabcabc" * 6, "aaaa", "xyxyxyxy" * 9]
    check(*both(own, prompts, sampler=multinomial(temperature=0.2), max_new_tokens=context), accepts=False)


def test_a_lone_text_that_repeats_itself_takes_few_steps(demo: TransformersModel, monkeypatch: Any) -> None:
    monkeypatch.setattr(Widths, "choose", lambda self, count, texts: 8)
    [[plain], [drafted]] = both(demo, ["ha ha ha ha ha ha"], sampler=greedy(), eos_token_id=[])
    assert drafted.accepted >= 20 and plain.token_ids == drafted.token_ids


def test_requests_that_join_and_leave_an_engine_get_the_same_texts(demo: TransformersModel) -> None:
    arguments: list[dict[str, Any]] = [
        {
            "seed": number,
            "max_new_tokens": 9 + 7 * number % 40 + 30 * (number % 3 == 0),
            "sampler": multinomial(temperature=0.6),
        }
        for number in range(12)
    ]
    prompts = [PROMPTS[number % 4] for number in range(12)]
    types = [Item if number % 3 == 0 else None for number in range(12)]
    expected = [
        gen.generate(demo, prompt, kind, speculate=False, details=True, shorten=True, **one)
        for prompt, kind, one in zip(prompts, types, arguments, strict=True)
    ]
    with gen.Engine(demo, rows=4, speculate=gen.Speculation(), admit_tokens=16) as engine:
        streams = [
            engine.submit(prompt, kind, shorten=True, **one)
            for prompt, kind, one in zip(prompts, types, arguments, strict=True)
        ]
        assert ["".join(stream) for stream in streams] == [one.text for one in expected]
        assert [stream.completion().token_ids for stream in streams] == [one.token_ids for one in expected]


def test_what_is_kept_for_later_prompts_is_what_counted(demo: TransformersModel) -> None:
    """A second request goes on from the columns of the first text, which wide steps have written."""
    beginning = "The quick brown fox. " * 8
    settings: dict[str, Any] = {"sampler": multinomial(temperature=0.6), "seed": 4, "eos_token_id": []}
    first = gen.generate(demo, beginning, speculate=False, details=True, max_new_tokens=60, **settings)
    prompt = [*demo.tokenizer.encode(beginning), *first.token_ids, 40, 41]
    expected = gen.generate(demo, prompt, speculate=False, details=True, max_new_tokens=30, **settings)
    with gen.Engine(demo, rows=2, speculate=gen.Speculation()) as engine:
        told = engine.submit(beginning, max_new_tokens=60, **settings).completion()
        made = engine.submit(prompt, max_new_tokens=30, **settings).completion()
    assert told.token_ids == first.token_ids and told.accepted > 0
    assert made.cached_tokens >= len(prompt) - 4
    check([expected], [replace(made, cached_tokens=0)], accepts=False)
    with gen.prefix(demo, beginning):
        made = gen.generate(demo, beginning, speculate=gen.Speculation(), details=True, max_new_tokens=60, **settings)
    assert made.cached_tokens > 0 and made.token_ids == first.token_ids


def test_drafts_are_no_part_of_what_makes_texts_equal(demo: TransformersModel) -> None:
    one = gen.generate(demo, "a", seed=1, details=True, max_new_tokens=3)
    assert replace(one, drafted=9, accepted=4) == one


@pytest.mark.parametrize(("output_type", "cuda_graph"), [(None, False), (Item, True)], ids=["text", "record"])
def test_on_a_gpu_the_host_waits_for_no_draft(output_type: Any, cuda_graph: bool, demo: TransformersModel) -> None:
    settings: dict[str, Any] = {"seed": 1, "details": True, "shorten": True}
    expected = gen.generate(demo, PROMPTS[0], output_type, speculate=False, **settings, max_new_tokens=40)
    settings |= {"speculate": gen.Speculation(), "cuda_graph": cuda_graph}
    with virtual_gpus(2):
        on_gpu = short_demo(device="cuda:1")
        (_, short, long), found = waits(  # the first call places the type's tables
            lambda most: gen.generate(on_gpu, PROMPTS[0], output_type, **settings, max_new_tokens=most), 32, 36, 40
        )
    assert found.token_ids == expected.token_ids
    assert short == long
