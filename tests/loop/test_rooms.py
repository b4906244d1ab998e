"""Texts of unlike lengths in one batch: which have memory of their own, and that each is the same as alone."""

import random
from typing import Any

import pytest

import gen
from benchmarks.cases.prefixes import differences, kept_differences, random_case
from gen.loop.decoder import Decoder
from gen.loop.options import Options
from gen.loop.prefixes import sharing
from gen.loop.runner import Runner
from gen.loop.slots import share_out
from gen.loop.speculation.widths import Widths
from gen.samplers import greedy
from tests.helpers import byte_tokenizer, needs_kernels_that_agree, tiny_model
from tests.helpers.noting import noted
from tests.loop.calls import new_jobs


@pytest.mark.parametrize(
    ("count", "shared", "needs", "expected"),
    [
        (4, 32, {0: 30, 1: 9}, (32, {})),
        (4, 32, {0: 40, 1: 9, 2: 9, 3: 50}, (64, {})),  # twice as much as the others would have alone
        (4, 32, {0: 70, 1: 9, 2: 9, 3: 9}, (32, {0: 128})),
        (4, 32, {0: 70, 1: 90, 2: 99, 3: 71}, (128, {})),
        (16, 224, {0: 8000}, (224, {0: 14336})),  # no other text is there, but room for all rows would be wasted
        (2, 32, {0: 70, 1: 40}, (128, {})),
        (3, 32, {0: 70, 1: 40, 2: 5000}, (128, {2: 8192})),
    ],
)
def test_who_has_memory_of_their_own(
    count: int, shared: int, needs: dict[int, int], expected: tuple[int, dict[int, int]]
) -> None:
    assert share_out(count, shared, needs) == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_text_has_far_more_memory_than_alone(seed: int) -> None:
    drawn = random.Random(seed)
    count, shared = drawn.randint(1, 40), 32 * drawn.randint(1, 20)
    needs = {row: drawn.choice([20, 500, 9000]) for row in range(drawn.randint(1, count))}
    length, rooms = share_out(count, shared, needs)
    assert all(rooms.get(row, length) >= need for row, need in needs.items())
    assert all(length <= max(2 * shared, 4 * need) for need in needs.values())  # each is doubled, perhaps twice
    alone = sum(max(shared, 2 * need) for need in needs.values()) + (count - len(needs)) * shared
    assert count * length + sum(rooms.values()) <= 2 * alone + 512 * len(rooms)


@pytest.mark.parametrize("through", ["generate", "engine"])
@pytest.mark.parametrize("exact", [False, True])
def test_texts_of_unlike_lengths_are_those_of_each_alone(
    through: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = gen.from_transformers(tiny_model(max_position_embeddings=2048), byte_tokenizer())
    if exact:
        needs_kernels_that_agree(model)
    drawn = random.Random(1)
    prompts = [[drawn.randrange(90) for _ in range(drawn.choice([5, 30, 1100, 60]))] for _ in range(14)]
    limits = [drawn.choice([3, 30, 90]) for _ in prompts]
    arguments: dict[str, Any] = {"sampler": greedy(), "eos_token_id": [], "seed": 0}
    alone = [
        gen.generate(model, prompt, max_new_tokens=limit, details=True, exact=exact, **arguments)
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    model.release()
    tokens: list[tuple[int, int]] = []
    lay_out = Decoder.lay_out

    def noted(rows: Decoder, *args: Any) -> None:
        lay_out(rows, *args)
        tokens.append((rows.tokens, rows.count * rows.length))

    monkeypatch.setattr(Decoder, "lay_out", noted)
    if through == "engine":
        with gen.Engine(model, rows=8, admit_tokens=200, exact=exact) as engine:
            streams = [
                engine.submit(prompt, max_new_tokens=limit, **arguments)
                for prompt, limit in zip(prompts, limits, strict=True)
            ]
            found = [stream.completion() for stream in streams]
    else:
        found = gen.generate(model, prompts, max_new_tokens=limits, details=True, exact=exact, **arguments)
    assert [one.token_ids for one in found] == [one.token_ids for one in alone]
    if exact:
        assert [one.logprobs for one in found] == [one.logprobs for one in alone]
    assert any(own < uniform / 2 for own, uniform in tokens)


def test_random_calls_and_engines_with_a_few_long_prompts_give_the_texts_of_calls_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Samples, beams, constraints and penalties, with shared beginnings, little room, and rows that are used again."""
    monkeypatch.setattr(sharing, "LEAST", 6)
    monkeypatch.setattr(sharing, "WORTH", 12)
    model = gen.from_transformers(tiny_model(max_position_embeddings=4096), byte_tokenizer())
    parted = noted(monkeypatch, Decoder, "lay_out", lambda rows, shared, rooms: bool(rooms))
    for seed in range(3):
        assert not list(differences(model, random_case(seed, 250, tokens=30, longest=500)))
        made = list(kept_differences(model, seed, 250, tokens=30, longest=500))
        assert not [one for one in made if isinstance(one, str)]
    assert sum(parted) > 3


def test_a_row_that_is_read_in_parts_is_looked_at_no_further_than_it_has_columns() -> None:
    """A text with memory of its own ends; a short prompt is read into its row while another long text goes on."""
    model: Any = gen.from_transformers(tiny_model(max_position_embeddings=2048), byte_tokenizer())
    drawn = random.Random(2)
    prompts = [[drawn.randrange(90) for _ in range(length)] for length in (5, 700, 650, 60)]
    arguments: dict[str, Any] = {"sampler": greedy(), "eos_token_id": [], "seed": 0, "max_new_tokens": [90, 40, 60, 3]}
    short, ends, long, joins = jobs = new_jobs(model, prompts, **arguments)
    seen: list[dict[int, int]] = []
    with Runner(model, [short], Options(admit_tokens=20), rows=16) as runner:
        for job in (ends, long):
            runner.add(job)
        while not ends.ended:
            runner.advance()
        runner.add(joins)
        while not joins.launched:
            runner.advance()
            seen.append(dict(runner._steps.decoder.rooms))
        runner.drain()
    assert [*map(len, seen)] == [1] * 3  # parts of its prompt; another row has memory of its own
    found = [one.token_ids for job in jobs for one in job.completions()]
    assert found == [one.token_ids for one in gen.generate(model, prompts, details=True, **arguments)]


def test_a_wide_step_looks_no_further_than_its_rows_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row had memory of its own, and is free now; the others have less room than a wide step may look at."""
    monkeypatch.setattr(Widths, "choose", lambda self, count, texts: 8)
    model: Any = gen.from_transformers(tiny_model(max_position_embeddings=2048), byte_tokenizer())
    prompts = ["ha ha ha", "ho ho", "x" * 700]
    settings: dict[str, Any] = {"sampler": greedy(), "eos_token_id": [], "max_new_tokens": [30, 28, 2]}
    expected = gen.generate(model, prompts, speculate=False, **settings)
    jobs = new_jobs(model, prompts, **settings)
    with Runner(model, jobs[:2], Options(rows=3), 3) as runner:
        runner.advance()
        runner.add(jobs[2])
        seen = list[tuple[bool, int]]()
        while not runner.idle:
            runner.advance()
            seen.append((jobs[2].ended, len(runner._steps.decoder.rooms)))
    assert (True, 1) in seen[:-1]
    assert [one.text for job in jobs for one in job.completions()] == expected
