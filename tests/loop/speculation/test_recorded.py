"""Texts that were made before, as drafts: the oracle is the same call without a draft."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

import gen
from benchmarks.cases.drafts import compare_case
from benchmarks.speculation import Person
from gen.completions import Completion
from gen.errors import ArgumentError
from gen.loop.scheduler import Scheduler
from gen.loop.speculation.drafts import RECORDED
from gen.loop.speculation.host_drafts import EarlierText
from gen.loop.step_times import Costs
from gen.models.transformers.model import TransformersModel
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers.demo import short_demo
from tests.helpers.noting import noted
from tests.helpers.waits import waits

PROMPT = "Once upon a time"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an entry for each step of the loop."""
    return noted(monkeypatch, Scheduler, "_step", lambda _: None)


def made(model: TransformersModel, draft: Any = None, **arguments: Any) -> Completion:
    settings: dict[str, Any] = {"seed": 3, "max_new_tokens": 150, "eos_token_id": [], "sampler": greedy()} | arguments
    found: Completion = gen.generate(model, PROMPT, details=True, draft=draft, **settings)
    return found


def tokens(found: list[tuple[int, int]]) -> list[int]:
    return [token for token, _ in found]


def test_a_text_that_is_the_same_gets_ever_more_drafts() -> None:
    recorded, text, counts = EarlierText(range(300)), [7], []
    while len(found := tokens(recorded.drafts(text, 2))):
        counts.append(len(found))
        assert found == [*range(found[0], found[-1] + 1)]
        new = [*range(found[0], min(found[-1] + 2, 300))]  # all drafts are right, and one more token is made
        recorded.follow(new)
        text += new
    assert counts == [7, 15, 31, 63, 63, 63, 52]


def test_a_text_that_parted_comes_back_by_the_tokens_that_follow() -> None:
    recorded = EarlierText([1, 2, 3, 4, 5, 6, 7, 8, 9])
    text = [0, 1, 2, 30]
    recorded.follow(text[1:])
    assert recorded.drafts(text, 2) == []
    text = [0, 1, 2, 30, 5]
    recorded.follow(text[-1:])
    assert recorded.drafts(text, 2) == []  # one token is too few
    text = [0, 1, 2, 30, 5, 6]
    recorded.follow(text[-1:])
    found = recorded.drafts(text, 2)
    assert tokens(found) == [7, 8, 9] and found[0][1] == 2 and RECORDED not in dict(found).values()


def test_of_equal_places_the_nearest_is_taken() -> None:
    recorded, text = EarlierText([1, 2, 3, 4, 9, 5, 1, 2, 7, 7, 1, 2, 8]), [1, 2, 3, 4, 9, 30, 1, 2]
    recorded.follow(text)
    assert tokens(recorded.drafts(text, 2)) == [7, 7, 1, 2, 8]


@pytest.mark.parametrize("sampler", [greedy(), multinomial(temperature=0.8, top_p=0.9)], ids=["greedy", "drawn"])
def test_an_unchanged_text_takes_few_steps(sampler: Any, demo: TransformersModel, steps: list[None]) -> None:
    plain = made(demo, sampler=sampler, speculate=False)
    steps.clear()
    found = made(demo, plain, sampler=sampler)
    assert replace(found, logprobs=plain.logprobs, score=plain.score) == plain
    assert found.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert len(steps) <= 12 and found.accepted > 0.8 * len(found.token_ids)


def test_on_a_gpu_each_step_looks_through_the_draft(
    gpu: torch.device, demo: TransformersModel, steps: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Costs, "_of", lambda self, rows, width: 1.1)  # on virtual GPUs no step is faster than another
    drawn = multinomial(temperature=0.8, top_p=0.95)
    plain = [made(demo, sampler=drawn, speculate=False, seed=seed, max_new_tokens=60) for seed in (3, 4)]
    own = short_demo(device=str(gpu))
    for speculate in ("auto", gen.Speculation(prompt=False)):  # what came before in the text itself is not looked at
        arguments: dict[str, Any] = {"sampler": drawn, "max_new_tokens": 60, "speculate": speculate}
        steps.clear()
        found = made(own, plain[0], **arguments)
        assert (found.token_ids, found.text) == (plain[0].token_ids, plain[0].text)
        assert found.accepted > 40 and len(steps) < 20
        wrong = made(own, plain[1], **arguments)
        assert wrong.token_ids == plain[0].token_ids
        counts, _ = waits(lambda tokens: made(own, plain[0], **(arguments | {"max_new_tokens": tokens})), 12, 60)  # noqa: B023
        assert counts[0] == counts[1] <= 2
    with gen.Engine(own, rows=4) as engine:  # a longer draft joins, and one text has none
        settings: dict[str, Any] = {"eos_token_id": [], "sampler": drawn, "max_new_tokens": 60}
        drafts = [(3, plain[0]), (4, None), (4, [*plain[1].token_ids, *range(400)])]
        running = [engine.submit(PROMPT, seed=seed, draft=one, **settings) for seed, one in drafts]
        texts = [one.completion().token_ids for one in running]
    assert texts == [plain[0].token_ids, plain[1].token_ids, plain[1].token_ids]


@pytest.mark.parametrize("seed", [0, 1, 7, 8])
def test_no_draft_changes_a_text(seed: int, demo: TransformersModel) -> None:
    _, differences = compare_case(demo, seed, longest=60, drafts=True)
    assert differences == []


def test_no_draft_changes_a_text_on_a_gpu(gpu: torch.device) -> None:
    own = short_demo(device=str(gpu))
    for seed in (1, 5):
        _, differences = compare_case(own, seed, longest=30, drafts=True)
        assert differences == []


def test_every_function_takes_a_draft(demo: TransformersModel) -> None:
    plain = made(demo)
    settings: dict[str, Any] = {"seed": 3, "max_new_tokens": 150, "eos_token_id": [], "sampler": greedy()}
    stream = gen.stream(demo, PROMPT, draft=plain.token_ids, **settings)
    assert "".join(stream) == plain.text and stream.completion().accepted > 75
    again = asyncio.run(gen.agenerate(demo, PROMPT, details=True, draft=plain.text, **settings))
    assert again == replace(plain, logprobs=again.logprobs, score=again.score) and again.accepted > 75
    pairs = dict(gen.generate_iter(demo, ["A", PROMPT], draft=[None, plain], rows=1, details=True, **settings))
    assert pairs[1].token_ids == plain.token_ids and pairs[1].accepted > 75
    with pytest.raises(ArgumentError, match="one draft or None for each prompt"):
        gen.generate_iter(demo, [PROMPT], draft=plain.text)
    with gen.Engine(demo, rows=2) as engine:
        found = engine.submit(PROMPT, draft=plain.receipt, **settings).completion()
    assert found.token_ids == plain.token_ids and found.accepted > 75


def test_each_prompt_of_a_list_has_its_own_and_samples_share_theirs(demo: TransformersModel) -> None:
    sampler = multinomial(2, temperature=0.001)  # both texts are the same
    arguments: dict[str, Any] = {"seed": 1, "max_new_tokens": [60, 2], "sampler": sampler, "eos_token_id": []}
    plain: Any = gen.generate(demo, [PROMPT, "A"], details=True, speculate=False, **arguments)
    found: Any = gen.generate(demo, [PROMPT, "A"], details=True, draft=[plain[0][0], None], **arguments)
    assert [[one.token_ids for one in each] for each in found] == [[one.token_ids for one in each] for each in plain]
    assert all(one.accepted > 5 for one in found[0])


def test_a_typed_text_follows_a_draft_as_far_as_the_type_allows(demo: TransformersModel) -> None:
    arguments: dict[str, Any] = {"seed": 5, "details": True}
    plain = gen.generate(demo, "Describe Ada as JSON.\n", Person, speculate=False, **arguments)
    for draft in (plain, plain.text[:20] + "}" + plain.text[20:], "no JSON"):
        found = gen.generate(demo, "Describe Ada as JSON.\n", Person, draft=draft, **arguments)
        assert found.token_ids == plain.token_ids and found.value == plain.value


def test_a_search_ignores_a_draft_and_says_so(demo: TransformersModel, caplog: pytest.LogCaptureFixture) -> None:
    own = short_demo()
    with caplog.at_level(logging.INFO, "gen"):
        found = gen.generate(own, PROMPT, sampler=beam_search(2), max_new_tokens=9, draft="no")
    assert found == gen.generate(demo, PROMPT, sampler=beam_search(2), max_new_tokens=9)
    assert "no step reads drafts: a beam search" in caplog.text
