"""The multinomial sampler compared with a float64 reference: kept sets, distributions, log-probabilities, edges."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from gen.errors import ArgumentError
from gen.samplers import GreedySampler, MultinomialSampler
from gen.samplers.backends.random import row_keys
from tests.samplers.float64_reference import Ranked, hard_logits

PARAMETERS: dict[str, float] = {"temperature": 0.7, "top_k": 20, "top_p": 0.85, "min_p": 0.02}
SINGLES_AND_PAIRS = [*combinations(PARAMETERS, 1), *combinations(PARAMETERS, 2)]


def probabilities_of(logits: Tensor, parameters: dict[str, float]) -> npt.NDArray[np.float64]:
    """The distribution of one row in float64."""
    return Ranked(logits.unsqueeze(0)).cut(**parameters).probabilities[0].numpy()


def zipf_logits(vocab: int = 301) -> Tensor:
    """Three blocks of tokens, the last one partly filled, with likely and unlikely tokens in each."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.randperm(vocab, generator=generator) + 1
    return -1.1 * ranks.float().log() + 0.1 * torch.randn(vocab, generator=generator)


def counts(sampler: MultinomialSampler, logits: Tensor, seed: int, draws: int = 20_000) -> npt.NDArray[np.int64]:
    total = torch.zeros(len(logits), dtype=torch.int64)
    rows = min(draws, 2_500, 10**7 // len(logits))  # more would not fit into caches
    for keys in row_keys(torch.arange(rows) + seed * draws, draws // rows):
        token_ids, _, _ = sampler.step(logits.expand(rows, -1), torch.zeros(rows), keys)
        total += torch.bincount(token_ids.flatten(), minlength=len(logits))
    return total.numpy()


def chi_square_p(observed: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    """The p-value of the counts; cells with an expected count below ten are merged."""
    assert observed[probabilities == 0].sum() == 0, "a dropped token was drawn"
    expected = probabilities * observed.sum()
    rare = expected < 10
    cells = [*zip(observed[~rare], expected[~rare], strict=True)]
    if expected[rare].sum() > 0:
        cells.append((observed[rare].sum(), expected[rare].sum()))
    seen, wanted = zip(*cells, strict=True)
    return float(stats.chisquare(seen, wanted).pvalue)


@pytest.mark.parametrize("names", SINGLES_AND_PAIRS, ids="+".join)
def test_draws_follow_the_float64_reference(names: tuple[str, ...]) -> None:
    parameters = {name: PARAMETERS[name] for name in names}
    logits = zipf_logits()
    observed = counts(MultinomialSampler(**parameters), logits, seed=1)  # type: ignore[arg-type]
    assert chi_square_p(observed, probabilities_of(logits, parameters)) > 1e-4


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(3, torch.bfloat16, id="ties"),
        pytest.param(4, torch.float16, id="flat"),
        pytest.param(6, torch.float32, id="masked"),
        pytest.param(8, torch.bfloat16, id="NaN"),
        pytest.param(9, torch.float16, id="infinite"),
        pytest.param(13, torch.float32, id="nearly equal"),
    ],
)
def test_draws_follow_the_float64_reference_on_hard_logits(kind: int, dtype: torch.dtype) -> None:
    logits = hard_logits(301, dtype)[kind]
    parameters = {"temperature": 2.5, "top_k": 40, "top_p": 0.87}
    observed = counts(MultinomialSampler(**parameters), logits, seed=4, draws=5_000)  # type: ignore[arg-type]
    assert chi_square_p(observed, probabilities_of(logits, parameters)) > 1e-4


@pytest.mark.parametrize(
    ("vocab", "dtype", "parameters"),
    [
        (32_000, torch.float32, {}),
        (32_000, torch.float32, {"temperature": 1.3, "top_k": 40, "top_p": 0.95}),
        (32_000, torch.float32, {"top_p": 0.8}),
        (151_936, torch.bfloat16, {"top_p": 0.8}),
    ],
    ids=str,
)
def test_draws_follow_the_float64_reference_from_large_vocabularies(
    vocab: int, dtype: torch.dtype, parameters: dict[str, float]
) -> None:
    logits = hard_logits(vocab, dtype)[1]
    draws = 6000 if vocab == 32_000 else 2500
    observed = counts(MultinomialSampler(**parameters), logits, seed=5, draws=draws)  # type: ignore[arg-type]
    probabilities = probabilities_of(logits, parameters)
    assert (probabilities * draws > 10).sum() > 10, "too few cells to tell a wrong distribution from the right one"
    assert chi_square_p(observed, probabilities) > 1e-4


def test_top_k_keeps_every_tie_and_top_p_the_lower_index() -> None:
    tied = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    assert MultinomialSampler(top_k=2).warp(tied).isfinite().tolist() == [[False, True, True, True, True, False]]
    flat = torch.zeros(1, 8)
    assert MultinomialSampler(top_p=0.3).warp(flat).isfinite().tolist() == [[True] * 3 + [False] * 5]
    assert MultinomialSampler(top_k=100).warp(tied).isfinite().all()


@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_temperature_0_leaves_the_most_likely_token_alone(cuts: dict[str, Any]) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [-math.inf, 2.0, 2.0], [-math.inf] * 3])
    nothing = -math.inf
    wanted = torch.tensor([[nothing, 0.0, nothing], [nothing, 0.0, nothing], [nothing] * 3])
    for temperature in (0, torch.zeros(3)):
        assert torch.equal(MultinomialSampler(temperature=temperature, **cuts).warp(logits), wanted)
    assert MultinomialSampler(temperature=0).warp(logits[:0]).shape == (0, 3)


def test_a_draw_depends_neither_on_masked_tokens_at_the_end_nor_on_the_number_of_threads() -> None:
    logits = torch.randn(8, 40_000, generator=torch.Generator().manual_seed(0))
    keys = row_keys(torch.arange(8), 1)[0]
    longer = torch.nn.functional.pad(logits, (0, 1000), value=-math.inf)
    for sampler in (MultinomialSampler(), MultinomialSampler(top_p=0.9), MultinomialSampler(top_k=50, top_p=0.9)):
        expected, _, _ = sampler.step(logits, torch.zeros(8), keys)
        assert torch.equal(sampler.step(longer, torch.zeros(8), keys)[0], expected)
        torch.set_num_threads(2)
        try:
            assert torch.equal(sampler.step(logits, torch.zeros(8), keys)[0], expected)
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("vocab", "parameters"),
    [(640, {}), (640, {"top_p": 0.9}), (640, {"min_p": 0.02}), (32_000, {"top_k": 50, "top_p": 0.9})],
    ids=str,
)
def test_noise_of_a_thousandth_changes_few_draws(vocab: int, parameters: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    sampler, changed = MultinomialSampler(**parameters), 0  # type: ignore[arg-type]
    times = 4 if vocab == 640 else 2
    for keys in row_keys(torch.arange(500), times):
        logits = 2 * torch.randn(500, vocab, generator=generator)
        noisy = logits + 1e-3 * torch.randn(logits.shape, generator=generator)
        drawn, again = (sampler.step(values, torch.zeros(500), keys)[0] for values in (logits, noisy))
        changed += int((drawn != again).sum())
    assert changed <= 0.005 * 500 * times


def test_a_generator_advances_and_repeats() -> None:
    logits = torch.zeros(4, 5000)
    rng = torch.Generator().manual_seed(3)
    first, second = (MultinomialSampler()(logits, torch.zeros(4), rng)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert len(set(first.flatten().tolist())) == 4  # equal rows differ
    again, ancestors, weights = MultinomialSampler()(logits, torch.full((4,), -1.5), rng.manual_seed(3))
    assert torch.equal(first, again) and ancestors.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(weights, torch.full((4,), -1.5 - math.log(5000)))


def test_greedy_takes_the_lowest_index_among_equals_and_its_logprob() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0]], dtype=torch.bfloat16)
    token_ids, ancestors, weights = GreedySampler()(logits, torch.tensor([0.0, -2.0]))
    assert token_ids.tolist() == [[1], [0]]
    assert ancestors.tolist() == [0, 1]
    expected = logits.double().log_softmax(-1).amax(-1) + torch.tensor([0.0, -2.0])
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)
    with pytest.raises(ArgumentError, match="got 'top_k'"):
        GreedySampler(top_k=1)  # type: ignore[call-arg]
