"""What users of Outlines' samplers rely on: constructors, attributes, processors, calls and results."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.errors import ArgumentError
from gen.samplers import beam_search, greedy, keep_top_k_logits, keep_top_p_logits, multinomial, rescale_logits
from tests.samplers.float64_reference import Ranked, hard_logits
from virtual_gpus import virtual_gpus


def run(processors: list[Any], logits: Tensor) -> Tensor:
    for processor in processors:
        logits = processor(logits)
    return logits


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 0),
        ({"top_k": 5}, 1),
        ({"top_p": 0.9}, 1),
        ({"top_k": 5, "top_p": 0.9}, 1),
        ({"temperature": 2}, 1),
        ({"top_k": 5, "temperature": 0.5}, 2),
        ({"top_p": 0.8, "temperature": 0.5, "min_p": 0.1}, 2),
    ],
)
def test_processors_one_after_the_other_give_what_is_drawn_from(settings: dict[str, Any], count: int) -> None:
    sampler = multinomial(3, **settings)
    assert sampler.samples == 3
    assert {name: getattr(sampler, name) for name in settings} == settings
    assert len(sampler.logits_processors) == count
    logits = hard_logits(400, torch.float32)[:4]
    expected = Ranked(logits).cut(**settings)
    probabilities = run(sampler.logits_processors, logits).double().softmax(-1)
    torch.testing.assert_close(probabilities, expected.probabilities, atol=1e-5, rtol=0)
    assert torch.equal(sampler.warp(logits).isfinite(), expected.kept)


def test_processors_mask_and_rescale_new_logits_of_the_same_type() -> None:
    logits = torch.tensor([[1.0, 4.0, math.nan, 3.0, 3.0]], dtype=torch.bfloat16)
    inf = math.inf
    assert keep_top_k_logits(2)(logits).tolist() == [[-inf, 4.0, -inf, 3.0, 3.0]]
    assert keep_top_p_logits(0.7)(logits).tolist() == [[-inf, 4.0, -inf, 3.0, -inf]]
    assert rescale_logits(2.0)(logits)[0, :2].tolist() == [0.5, 2.0]
    assert keep_top_p_logits(1)(logits).dtype == rescale_logits(0.5)(logits).dtype == torch.bfloat16


@pytest.mark.parametrize("sampler", [greedy(), multinomial(top_k=4), beam_search(2)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "weights", [torch.zeros(4), torch.zeros(4, dtype=torch.int64), torch.zeros(4).double()], ids=str
)
def test_a_call_takes_logits_weights_and_a_generator(sampler: Any, weights: Tensor) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    for rng in (None, torch.Generator().manual_seed(1)):
        token_ids, ancestors, new_weights = sampler(logits, weights, rng)
        assert token_ids.shape == (4, 1) and token_ids.dtype == ancestors.dtype == torch.int64
        assert ancestors.shape == new_weights.shape == (4,)
        assert new_weights.is_floating_point() and (new_weights < 0).all()


@pytest.mark.parametrize("sampler", [greedy(), multinomial(top_p=0.8), beam_search(2)], ids=lambda s: type(s).__name__)
def test_logits_weights_and_generator_may_be_on_any_mix_of_devices(sampler: Any) -> None:
    logits, weights = torch.linspace(-3, 3, 4 * 60).sin().view(4, 60), -torch.ones(4)
    expected = sampler(logits, weights, torch.Generator().manual_seed(1))
    with virtual_gpus(2):
        for there, home, source in product(("cpu", "cuda:0", "cuda:1"), repeat=3):
            rng = torch.Generator(source).manual_seed(1)
            results = sampler(logits.to(there), weights.to(home), rng)
            assert {str(result.device) for result in results} == {home}
            if source == "cpu":
                for result, wanted in zip(results, expected, strict=True):
                    torch.testing.assert_close(result.cpu(), wanted)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize(
    "sampler",
    [greedy(), multinomial(), multinomial(top_k=5, top_p=0.9), beam_search(2)],
    ids=lambda s: type(s).__name__,
)
def test_logits_of_a_model_in_training_are_sampled_as_any_others(sampler: Any, device: str) -> None:
    logits = torch.linspace(-3, 3, 2 * 300).sin().view(2, 300)
    expected = sampler(logits, -torch.ones(2), torch.Generator().manual_seed(1))
    with virtual_gpus(2):
        results = sampler(logits.to(device).requires_grad_(), -torch.ones(2), torch.Generator().manual_seed(1))
        for result, wanted in zip(results, expected, strict=True):
            assert not result.requires_grad
            torch.testing.assert_close(result, wanted)


def test_a_forced_token_is_not_mistaken_for_the_start() -> None:
    """A forced token has a log-probability of 0, and weights of 0 mark the start."""
    inf, beams = math.inf, 2
    forced = torch.tensor([[-inf, 0.0, -inf, -inf]] * 2 * beams)
    free = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 2 * beams).log()
    weights = torch.zeros(2 * beams)
    for logits in (forced, forced, free):
        token_ids, ancestors, weights = beam_search(beams)(logits, weights)
    # each prompt goes on from its one real beam, the first, in its two best ways
    assert token_ids.flatten().tolist() == [3, 2, 3, 2]
    assert ancestors.tolist() == [0, 0, 2, 2]
    torch.testing.assert_close(weights.exp(), torch.tensor([3 / 6, 2 / 6] * 2))
    # a third step has two real beams, and starts from both
    logits = torch.tensor([[0.0, 0, 9, 1], [0.0, 0, 0, 1]] * 2).log()
    token_ids, ancestors, weights = beam_search(beams)(logits, weights)
    assert token_ids.flatten().tolist() == [2, 3, 2, 3]
    assert ancestors.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(weights.exp(), torch.tensor([3 / 6 * 0.9, 2 / 6] * 2))


def test_beam_search_emits_no_masked_token_where_fewer_are_allowed_than_there_are_beams() -> None:
    inf = math.inf
    start = torch.tensor([[-inf, 0.0, -inf]] * 3)
    token_ids, ancestors, weights = beam_search(3)(start, torch.zeros(3))
    assert token_ids.tolist() == [[1]] * 3
    assert weights.tolist() == [0.0, -inf, -inf]
    logits = torch.tensor([[-inf, 1.0, 1.0], [3.0, -inf, -inf], [3.0, -inf, -inf]])
    token_ids, ancestors, weights = beam_search(3)(logits, weights)
    assert {tuple(pair) for pair in zip(token_ids.flatten().tolist(), ancestors.tolist(), strict=True)} == {
        (1, 0),
        (2, 0),
    }
    assert weights.isfinite().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("make", "value", "message"),
    [
        (keep_top_k_logits, -1, "`k` must be a strictly positive integer, got -1"),
        (keep_top_k_logits, 0.1, "`k` must be a strictly positive integer, got 0.1"),
        (keep_top_p_logits, 0.0, "`p` must be a floating point number between 0 .excluded. and 1 .included., got 0.0"),
        (keep_top_p_logits, 1.1, "got 1.1"),
        (rescale_logits, 1, "`temperature` must be a strictly positive floating point number, got 1"),
        (rescale_logits, -0.1, "got -0.1"),
        (rescale_logits, 0.0, "Please use the greedy sampler"),
    ],
)
def test_processors_refuse_what_outlines_refuses(make: Any, value: float, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as refused:
        make(value)
    assert isinstance(refused.value, ValueError)
