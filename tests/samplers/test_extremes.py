"""Logits and parameters at the ends of their ranges: every backend gives the limit, with a token of the vocabulary."""

import math
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gen.samplers.backends.choosing
from gen.errors import ArgumentError
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler
from gen.samplers.backends import choosing, torch_backend
from gen.samplers.backends.random import row_keys
from tests.samplers.float64_reference import Ranked, extreme_logits, hard_logits

inf, nan = math.inf, math.nan
HUGE = 1e25  # a temperature that makes all of `hard_logits` equally likely, except infinity
# the given temperature, and the one that the reference uses
TEMPERATURES = {0.0: 0, -1.0: 0, -inf: 0, 1e-46: 1e-46, 1e-40: 1e-40, 0.5: 0.5, 1e35: HUGE, 1e39: HUGE, inf: HUGE}
TOP_KS = {-(2**63): 1, 0: 1, 1: 1, 5: 5, 2**62: 10**6}
TOP_PS = {-inf: 1e-300, 0.0: 1e-300, 1e-320: 1e-300, 1e-50: 1e-50, 0.5: 0.5, 1.0: 1.0, 7.0: 1.0, inf: 1.0}
MIN_PS = {-inf: 0.0, -1.0: 0.0, 1e-320: 1e-320, 0.5: 0.5, 1.0: 1.0, 7.0: 1.0, inf: 1.0}
MEANINGS: dict[str, dict[Any, Any]] = {"temperature": TEMPERATURES, "top_k": TOP_KS, "top_p": TOP_PS, "min_p": MIN_PS}
KINDS: dict[str, Any] = {
    "temperature": torch.float64,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float64,
}
NAMES = [*[(name,) for name in MEANINGS], *combinations(MEANINGS, 2)]
each_backend = pytest.mark.parametrize("backend", [choosing.ON_CPU, torch_backend], ids=["reads", "torch_backend"])


@pytest.fixture(autouse=True)
def chosen_backend(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen.samplers.backends.choosing, "_backend", lambda logits: backend)


def step(logits: Tensor, **parameters: Any) -> tuple[Tensor, Tensor]:
    """The drawn tokens (rows,) and their log-probabilities in float64."""
    keys = row_keys(torch.arange(len(logits)) % 14, 1)[0]
    token_ids, _, weights = MultinomialSampler(**parameters).step(logits, torch.zeros(len(logits)), keys)
    return token_ids.squeeze(1), weights.double()


def check(logits: Tensor, token_ids: Tensor, logprobs: Tensor, meant: dict[str, list[Any]]) -> None:
    """Check that the reference allows the tokens and log-probabilities; `meant` lists each row's parameters."""
    heat = torch.tensor(meant.get("temperature", [1.0] * len(logits)), dtype=torch.float64)
    ranked = Ranked(logits)
    expected = ranked.cut(**{**meant, "temperature": heat.where(heat > 0, 1).tolist()})
    dead = ~expected.kept.any(-1)
    cold = (heat == 0) & ~dead
    assert not token_ids[dead].any() and logprobs[dead].isneginf().all()
    plain = ranked.cut().probabilities
    assert torch.equal(token_ids[cold], plain[cold].argmax(-1))
    wanted = torch.where(cold.unsqueeze(1), plain, expected.probabilities)
    wanted = wanted.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    sure = ~dead & (cold | ~expected.either.any(-1))
    assert (wanted[sure] > 0).all()
    torch.testing.assert_close(logprobs[sure], wanted[sure].log(), atol=3e-5, rtol=1e-5)


@each_backend
@pytest.mark.parametrize("names", NAMES, ids="+".join)
@pytest.mark.parametrize("vocab", [1, 33, 300])
def test_any_value_in_a_tensor_gives_its_limit(backend: Any, names: tuple[str, ...], vocab: int) -> None:
    cases = [*product(*(MEANINGS[name] for name in names))]
    logits = hard_logits(vocab, torch.float32)
    given = {
        name: torch.tensor([case[n] for case in cases for _ in logits], dtype=KINDS[name])
        for n, name in enumerate(names)
    }
    meant = {name: [MEANINGS[name][case[n]] for case in cases for _ in logits] for n, name in enumerate(names)}
    everything = logits.repeat(len(cases), 1)
    check(everything, *step(everything, **given), meant)


@each_backend
@pytest.mark.parametrize("name", MEANINGS)
def test_a_number_gives_what_it_gives_in_a_tensor(backend: Any, name: str) -> None:
    logits = hard_logits(300, torch.float32)
    for value in MEANINGS[name]:
        try:
            ours = step(logits, **{name: value})
        except ArgumentError:
            continue
        theirs = step(logits, **{name: torch.full((14,), value, dtype=KINDS[name])})
        for result, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(result, wanted, atol=1e-6, rtol=0)


@each_backend
@pytest.mark.parametrize(
    ("value", "same"),
    [
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
        (np.float16(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(2), 2.0),
        (Fraction(1, 10**400), 0.0),
        (Fraction(10**38), 1e38),
        (10**300, 1e300),
    ],
    ids=str,
)
def test_any_kind_of_number_is_a_temperature(backend: Any, value: Any, same: float) -> None:
    logits = hard_logits(300, torch.float32)
    sampler = MultinomialSampler(temperature=value)
    assert type(sampler.temperature) is float
    assert sampler == MultinomialSampler(temperature=same)
    for ours, wanted in zip(step(logits, temperature=value), step(logits, temperature=same), strict=True):
        assert torch.equal(ours, wanted)


@each_backend
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
def test_nan_in_a_tensor_leaves_nothing_to_choose_in_its_row(backend: Any, name: str) -> None:
    logits = hard_logits(300, torch.float32)
    values = torch.full((14,), 0.5)
    expected = step(logits, **{name: values})
    values[1::2] = nan
    token_ids, logprobs = step(logits, **{name: values})
    assert not token_ids[1::2].any() and logprobs[1::2].isneginf().all()
    assert torch.equal(token_ids[::2], expected[0][::2])
    torch.testing.assert_close(logprobs[::2], expected[1][::2])
    settings: dict[str, Any] = {name: values}
    assert MultinomialSampler(**settings).warp(logits)[1::2].isneginf().all()


@each_backend
@pytest.mark.parametrize("temperature", [1e39, 1e300, torch.full((14,), inf)], ids=["1e39", "1e300", "inf"])
def test_a_huge_temperature_draws_uniformly_from_what_is_kept(backend: Any, temperature: Any) -> None:
    logits = torch.tensor([3.0, -inf, -1e4, 9.0, nan, 8.0, 9.0]).expand(3000, -1)
    if isinstance(temperature, Tensor):
        temperature = temperature[:1].expand(3000)
    keys = row_keys(torch.arange(3000), 1)[0]
    for top_k, kept in ((None, [0, 2, 3, 5, 6]), (3, [3, 5, 6])):
        sampler = MultinomialSampler(temperature=temperature, top_k=top_k)
        token_ids, _, weights = sampler.step(logits, torch.zeros(3000), keys)
        counts = torch.bincount(token_ids.flatten(), minlength=7)
        assert counts.nonzero().flatten().tolist() == kept
        expected = 3000 / len(kept)
        assert ((counts[kept] - expected).abs() < 5 * math.sqrt(expected)).all()
        torch.testing.assert_close(weights, torch.full((3000,), -math.log(len(kept))))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1e-30},
    {"temperature": 0.3},
    {"temperature": 1e20},
    {"top_k": 3},
    {"top_k": 700},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"temperature": 0.01, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
]


@each_backend
@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logits_at_the_ends_of_their_type(backend: Any, vocab: int, dtype: torch.dtype) -> None:
    logits = extreme_logits(vocab, dtype)
    ranked = Ranked(logits)
    for parameters in SETTINGS:
        meant = {name: [value] * 12 for name, value in parameters.items()}
        check(logits, *step(logits, **parameters), meant)
        expected = ranked.cut(**parameters)
        alive = expected.kept.any(-1) & ~expected.either.any(-1)
        sampler = MultinomialSampler(**parameters)
        warped = processed = sampler.warp(logits)
        if sampler.logits_processors:
            processed = logits
            for processor in sampler.logits_processors:
                processed = processor(processed)
        for scores in (warped, processed):
            assert not scores.isnan().any()
            probabilities = scores.double().softmax(-1)[alive]
            torch.testing.assert_close(probabilities, expected.probabilities[alive], atol=2e-3, rtol=0)
        assert warped[~expected.kept.any(-1)].isneginf().all()


@each_backend
@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_greedy_and_beams_at_the_ends_of_the_logits_type(backend: Any, vocab: int, dtype: torch.dtype) -> None:
    logits = extreme_logits(vocab, dtype)
    expected = Ranked(logits).cut()
    dead = ~expected.kept.any(-1)
    best = expected.probabilities.amax(-1).log()
    token_ids, _, weights = GreedySampler().step(logits, torch.zeros(12), torch.zeros(12, dtype=torch.int64))
    assert torch.equal(token_ids.squeeze(1), expected.probabilities.argmax(-1).masked_fill(dead, 0))
    torch.testing.assert_close(weights.double(), best.masked_fill(dead, -inf), atol=3e-5, rtol=1e-5)
    token_ids, _, weights = BeamSearchSampler(1).candidates(logits, torch.zeros(12), 1)
    torch.testing.assert_close(weights.squeeze(1).double(), best.masked_fill(dead, -inf), atol=3e-5, rtol=1e-5)
    chosen = expected.probabilities.gather(1, token_ids).squeeze(1).log()
    torch.testing.assert_close(chosen[~dead], best[~dead])
    assert not token_ids[dead].any()


@each_backend
@pytest.mark.parametrize("vocab", [1, 128, 300, 1024])
@pytest.mark.parametrize("parameters", SETTINGS, ids=str)
def test_the_layout_of_the_logits_changes_nothing_and_they_stay(
    backend: Any, vocab: int, parameters: dict[str, Any]
) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    keys = row_keys(torch.arange(6), 1)[0]
    layouts = {
        "columns first": logits.t().contiguous().t(),
        "every second": logits.repeat_interleave(2, 0)[::2],
        "every second token": logits.repeat_interleave(2, 1)[:, ::2],
        "trained": logits.clone().requires_grad_(),
    }
    samplers: list[Any] = [MultinomialSampler(**parameters), GreedySampler(), BeamSearchSampler(2)]
    for sampler in samplers:
        expected = sampler.step(logits, -torch.ones(6), keys)
        for name, layout in layouts.items():
            for result, wanted in zip(sampler.step(layout, -torch.ones(6), keys), expected, strict=True):
                torch.testing.assert_close(result, wanted, msg=name)
        one = logits[:1]
        expected = sampler.step(one.repeat(6, 1), -torch.ones(6), keys)
        for result, wanted in zip(sampler.step(one.expand(6, -1), -torch.ones(6), keys), expected, strict=True):
            torch.testing.assert_close(result, wanted)
    warp = MultinomialSampler(**parameters).warp
    for name, layout in layouts.items():
        torch.testing.assert_close(warp(layout), warp(logits), msg=name)
    assert torch.equal(logits, before) and torch.equal(layouts["every second token"], before)


@each_backend
def test_eight_bit_floats_are_logits_too(backend: Any) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    samplers: list[Any] = [GreedySampler(), MultinomialSampler(top_k=9, top_p=0.9), BeamSearchSampler(2)]
    for sampler in samplers:
        results = [sampler.step(values, -torch.ones(4), torch.arange(4)) for values in (logits, logits.float())]
        for result, wanted in zip(*results, strict=True):
            assert torch.equal(result, wanted)
