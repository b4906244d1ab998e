"""Steps that read drafts change no text: the oracle is the same call with `speculate=False`.

Widths are drawn at random, whatever they cost, so that each occurs everywhere.
"""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import gen
from benchmarks.cases.drafts import Order, any_widths, compare_case
from gen.loop.speculation.widths import Widths
from gen.models.transformers.model import TransformersModel
from gen.samplers import greedy, multinomial
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.demo import short_demo
from tests.helpers.waits import waits
from virtual_gpus import virtual_gpus

PROMPT = "The quick brown fox. The quick brown fox. The quick"


@pytest.mark.parametrize("shape", ["demo", "gemma3", "mixtral", "gpt2", "opt", "deepseek_v3"])
def test_texts_are_those_of_plain_steps(shape: str, demo: TransformersModel) -> None:
    own = demo if shape == "demo" else gen.from_transformers(tiny_model(shape), byte_tokenizer())
    assert isinstance(own, TransformersModel) and own.goes_wide
    counts = Counter[str]()
    for seed in range(8 if shape == "demo" else 2):  # most texts of the others reach the end of the context
        found, differences = compare_case(own, seed, longest=60 if shape == "demo" else own.context_length)
        assert differences == []
        counts.update(drafted=sum(one.drafted for one in found), accepted=sum(one.accepted for one in found))
    assert counts["drafted"] > 0 and (counts["accepted"] > 100 or shape != "demo")


def test_a_lone_text_that_repeats_itself_takes_few_steps(demo: TransformersModel, monkeypatch: Any) -> None:
    monkeypatch.setattr(Widths, "choose", lambda self, count, texts: 8)
    settings: dict[str, Any] = {"sampler": greedy(), "eos_token_id": [], "max_new_tokens": 40, "details": True}
    plain, drafted = (
        gen.generate(demo, "ha ha ha ha ha ha", speculate=drafts, **settings) for drafts in (False, gen.Speculation())
    )
    assert drafted.accepted >= 20 and plain.token_ids == drafted.token_ids and plain.drafted == 0


def test_what_is_kept_for_later_prompts_is_what_counted(demo: TransformersModel) -> None:
    """A second request goes on from the columns of the first text, which wide steps have written."""
    beginning = "The quick brown fox. " * 8
    settings: dict[str, Any] = {"sampler": multinomial(temperature=0.6), "seed": 4, "eos_token_id": []}
    first = gen.generate(demo, beginning, speculate=False, details=True, max_new_tokens=60, **settings)
    prompt = [*demo.tokenizer.encode(beginning), *first.token_ids, 40, 41]
    expected = gen.generate(demo, prompt, speculate=False, details=True, max_new_tokens=30, **settings)
    with any_widths(Random(0)), gen.Engine(demo, rows=2, speculate=gen.Speculation()) as engine:
        told = engine.submit(beginning, max_new_tokens=60, **settings).completion()
        made = engine.submit(prompt, max_new_tokens=30, **settings).completion()
    assert told.token_ids == first.token_ids and told.accepted > 0
    assert made.cached_tokens >= len(prompt) - 4
    assert (made.token_ids, made.text) == (expected.token_ids, expected.text)
    assert made.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    with any_widths(Random(0)), gen.prefix(demo, beginning):
        made = gen.generate(demo, beginning, speculate=gen.Speculation(), details=True, max_new_tokens=60, **settings)
    assert made.cached_tokens > 0 and made.token_ids == first.token_ids


def test_drafts_are_no_part_of_what_makes_texts_equal(demo: TransformersModel) -> None:
    one = gen.generate(demo, "a", seed=1, details=True, max_new_tokens=3)
    assert replace(one, drafted=9, accepted=4) == one


@pytest.mark.parametrize(("output_type", "cuda_graph"), [(None, False), (Order, True)], ids=["text", "record"])
def test_on_a_gpu_the_host_waits_for_no_draft(output_type: Any, cuda_graph: bool, demo: TransformersModel) -> None:
    settings: dict[str, Any] = {"seed": 1, "details": True, "shorten": True}
    expected = gen.generate(demo, PROMPT, output_type, speculate=False, **settings, max_new_tokens=56)
    settings |= {"speculate": gen.Speculation(), "cuda_graph": cuda_graph}
    with any_widths(Random(0)), virtual_gpus(2):
        on_gpu = short_demo(device="cuda:1")
        (_, short, long), found = waits(  # the first call places the type's tables
            lambda most: gen.generate(on_gpu, PROMPT, output_type, **settings, max_new_tokens=most), 48, 52, 56
        )
    assert found.token_ids == expected.token_ids
    assert short == long
