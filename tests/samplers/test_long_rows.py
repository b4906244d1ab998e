"""Greedy choices in long rows: float64's choice, wherever the best logit is."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.samplers import GreedySampler, MultinomialSampler
from tests.samplers.float64_reference import Ranked, extreme_logits, hard_logits

LONG = 16_384
each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    token_ids, _, weights = GreedySampler().step(logits, torch.zeros(len(logits)), torch.arange(len(logits)))
    return token_ids, weights


@each_type
@pytest.mark.parametrize(("threads", "vocab"), [(1, LONG), (1, LONG + 77), (2, LONG + 77)], indirect=["threads"])
def test_long_rows_are_as_in_float64(vocab: int, dtype: torch.dtype, threads: int) -> None:
    logits = torch.cat((hard_logits(vocab, dtype), extreme_logits(vocab, dtype)))
    before = logits.clone()
    expected = Ranked(logits).cut().probabilities
    dead = expected.sum(-1) == 0
    token_ids, weights = greedy(logits)
    assert torch.equal(token_ids.squeeze(1), expected.argmax(-1).masked_fill(dead, 0))
    wanted = expected.amax(-1).log().masked_fill(dead, -math.inf)
    torch.testing.assert_close(weights.double(), wanted, atol=3e-6, rtol=1e-6)
    assert torch.equal(logits.nan_to_num(nan=3.5), before.nan_to_num(nan=3.5))


@pytest.mark.parametrize("shift", [-1e30, -1e4, -100.0, -33.0, -31.0, 0.0, 31.0, 33.0, 100.0, 1e4])
def test_where_the_best_logit_lies_changes_nothing(shift: float) -> None:
    logits = 8 * torch.rand(2, LONG, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = (logits - logits.amax(-1, keepdim=True) + shift).float()
    expected = logits.double().log_softmax(-1).amax(-1)
    torch.testing.assert_close(greedy(logits)[1].double(), expected, atol=3e-6, rtol=0)


def test_the_only_token_left_is_certain() -> None:
    logits = torch.full((3, LONG), -math.inf)
    logits[0, 5], logits[1, 6], logits[2, 7] = 17.3, -1e20, 3e38
    token_ids, weights = greedy(logits)
    assert token_ids.flatten().tolist() == [5, 6, 7] and weights.tolist() == [0, 0, 0]


def test_a_row_alone_and_beside_drawn_ones_is_the_same_to_the_last_bit(threads: int) -> None:
    logits = hard_logits(LONG + 77, torch.float32)
    token_ids, weights = greedy(logits)
    for row in range(14):
        alone = greedy(logits[row : row + 1])
        assert torch.equal(alone[0], token_ids[row : row + 1]) and torch.equal(alone[1], weights[row : row + 1])
    cold = torch.arange(14) % 3 == 1
    for other in ({}, {"top_k": 50}, {"top_p": 0.9}):
        settings: dict[str, Any] = {"temperature": torch.where(cold, 0, 0.8), **other}
        mixed = MultinomialSampler(**settings).step(logits, torch.zeros(14), torch.arange(14))
        assert torch.equal(mixed[0][cold], token_ids[cold]) and torch.equal(mixed[2][cold], weights[cold])
