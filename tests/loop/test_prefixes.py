"""Shared beginnings of prompts: each text equals that of a separate call, and few tokens are read."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from benchmarks.cases.prefixes import Case, differences, kept_differences, random_case, run_case
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.prefixes import sharing
from gen.loop.prefixes.columns import common
from gen.loop.prefixes.sharing import together
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, tiny_model
from tests.loop.calls import new_jobs
from tests.loop.test_prefix_tree import some

SHAPES = ["llama", "gemma3", "bloom", "mixtral", "mistral"]
SHAPES += ["deepseek_v3", "llama4_text", "qwen3_next", "gpt_neo"]


class Counting(TransformersModel):
    """A model that counts the tokens of prompts that it reads."""

    read = 0

    def forward_all(self, token_ids: Tensor, *rest: Any, **options: Any) -> Tensor:
        self.read += token_ids.numel() if token_ids.shape[1] > 1 else 0
        return super().forward_all(token_ids, *rest, **options)


@pytest.fixture
def counting() -> Counting:
    return Counting(tiny_model(max_position_embeddings=1024), byte_tokenizer())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the test even few tokens are worth sharing, since tiny models have short contexts."""
    monkeypatch.setattr(sharing, "LEAST", 6)
    monkeypatch.setattr(sharing, "WORTH", 12)
    yield


def test_random_calls_give_the_texts_of_calls_of_their_own(demo: Any) -> None:
    shared = 0
    for seed in (*range(10), 17, 19):  # every kind of sampler, and both engines of constraints
        case = random_case(seed, 1900)
        assert not list(differences(demo, case))
        shared += sum(one.cached_tokens > 0 for own in run_case(demo, case) for one in own)
    assert shared > 25


def test_random_engines_give_the_texts_of_calls_of_their_own(demo: Any) -> None:
    made = [one for seed in range(6) for one in kept_differences(demo, seed, 1900)]
    assert not [one for one in made if isinstance(one, str)]
    assert sum(one.cached_tokens > 0 for one in made if not isinstance(one, str)) > len(made) // 4


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("shape", SHAPES)
def test_every_kind_of_cache_gives_the_texts_of_calls_of_their_own(shape: str) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    case = random_case(2, 250, tokens=30)
    case = Case([prompt[:90] for prompt in case.prompts], case.output_type, case.settings, case.options)
    assert not list(differences(model, case))
    shared = sum(one.cached_tokens > 0 for own in run_case(model, case) for one in own)
    for one in kept_differences(model, 3, 250, tokens=30):
        assert not isinstance(one, str), one
        shared += one.cached_tokens > 0
    assert (shared > 0) == (shape != "gpt_neo")  # its rows end in one column


def test_what_prompts_share_is_read_once(counting: Counting) -> None:
    head = some(1, 192)
    prompts = [[*head, number, 7] for number in range(20)]
    made = gen.generate(counting, prompts, max_new_tokens=3, seed=1, details=True)
    assert sorted(one.cached_tokens for one in made) == [0] + [192] * 19
    assert counting.read < 192 + 20 * 16 + 64  # rows are padded to 16 places
    alone = gen.generate(counting, prompts[3], max_new_tokens=3, seed=1, details=True)
    assert made[3].token_ids == alone.token_ids


def test_what_prompts_share_is_read_once_where_few_run_at_a_time_and_end_together(counting: Counting) -> None:
    one, two = some(1, 192), some(2, 192)
    prompts = [[*head, number, 7] for head in (one, two) for number in range(6)]
    settings: Any = {"max_new_tokens": 3, "eos_token_id": [], "seed": 1, "details": True}
    made = gen.generate(counting, prompts, max_batch_tokens=2 * 224, **settings)
    assert sorted(one.cached_tokens for one in made) == [0] * 2 + [192] * 10
    assert counting.read < 2 * 192 + 12 * 16 + 64
    wanted = gen.generate(counting, prompts, **settings)
    assert [one.token_ids for one in made] == [one.token_ids for one in wanted]


def test_nothing_is_read_alone_for_little(counting: Counting) -> None:
    head = some(1, 40)
    made = gen.generate(counting, [[*head, number] for number in range(5)], max_new_tokens=2, seed=1, details=True)
    assert not any(one.cached_tokens for one in made)


def test_columns_that_another_model_has_read_are_given_to_nobody(counting: Counting) -> None:
    head = some(3, 100)
    with gen.Engine(counting, rows=4, prefix_bytes=0) as engine:
        first = engine.submit([*head, 1], max_new_tokens=600, eos_token_id=[], seed=1)
        next(first)
        with torch.no_grad():
            counting.hf_model.model.layers[0].self_attn.v_proj.weight.mul_(-1.5)
        second = engine.submit([*head, 2, 3], max_new_tokens=4, eos_token_id=[], seed=2)
        found = second.completion()
        third = engine.submit([*head, 9], max_new_tokens=4, eos_token_id=[], seed=2)
        first.cancel()
        assert third.completion().cached_tokens == 0  # the second one has left; the first was read with other weights
    assert found.cached_tokens == 0
    alone = gen.generate(counting, [*head, 2, 3], max_new_tokens=4, eos_token_id=[], seed=2, details=True)
    assert found.token_ids == alone.token_ids


def test_what_takes_longest_runs_first_and_what_begins_alike_side_by_side(demo: Any) -> None:
    """Then few rows go on alone in the end."""
    one, two = some(1, 40), some(2, 40)
    prompts = [[*one, 1], [*two, 1], [*one, 2], [*two, 2], some(3, 9)]
    jobs = new_jobs(demo, prompts, max_new_tokens=[9, 5, 5, 7, 300])
    assert [jobs.index(job) for job in together(jobs)] == [4, 0, 2, 3, 1]


def test_texts_whose_drafts_fit_run_before_those_without(demo: Any) -> None:
    """A step reads as many tokens of every row, and only drafts that are right use them."""
    jobs = new_jobs(demo, [some(number, 9) for number in range(4)], max_new_tokens=[5, 9, 5, 9])
    fits = [replace(job.request, draft=[1, 2], draft_fits=number < 2) for number, job in enumerate(jobs)]
    drafted = [new_job(demo, request) for request in fits]
    assert [drafted.index(job) for job in together(drafted)] == [1, 0, 3, 2]
    assert [jobs.index(job) for job in together(jobs)] == [1, 3, 0, 2]


def test_how_much_sequences_begin_alike() -> None:
    source = random.Random(0)
    for _ in range(300):
        one, two = ([source.randrange(2) for _ in range(source.randrange(9))] for _ in range(2))
        alike = 0
        while alike < min(len(one), len(two)) and one[alike] == two[alike]:
            alike += 1
        assert common(one, two) == alike


def test_little_room_and_small_parts_change_no_text(demo: Any) -> None:
    case = random_case(3, 1900)
    for options in (Options(rows=1), Options(rows=2, admit_tokens=40), Options(admit_tokens=33)):
        assert not list(differences(demo, Case(case.prompts, None, case.settings, options)))
