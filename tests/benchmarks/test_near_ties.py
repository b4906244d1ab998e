"""What counts as a near-tie: the oracle draws from logits that are changed by less than the gap, or by more."""

from typing import Any

import pytest
import torch

import gen
from benchmarks.cases.near_ties import LIMITS, gaps, gaps_of_text, near_ties
from gen.samplers import greedy, multinomial
from gen.samplers.backends.random import row_keys

VOCAB = 300


def chosen(logits: torch.Tensor, key: torch.Tensor, sampler: Any) -> int:
    return int(sampler.step(logits.unsqueeze(0), torch.zeros(1), key)[0])


@pytest.mark.parametrize(
    "sampler",
    [multinomial(), multinomial(temperature=0.7), multinomial(top_p=0.8), multinomial(top_k=9), multinomial(min_p=0.1)],
)
def test_a_choice_that_noise_changes_was_a_near_tie_for_that_noise(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of 0.05 changes some of 400 choices: each of these has such a gap, and without cuts few others have one."""
    monkeypatch.setattr("benchmarks.cases.near_ties.LIMITS", dict.fromkeys(LIMITS, 0.3))
    made = torch.Generator().manual_seed(0)
    changed, near, unchanged = 0, 0, 0
    for seed in range(400):
        logits = 2 * torch.randn(VOCAB, generator=made)
        noisy = logits + 0.05 * torch.randn(VOCAB, generator=made).clamp(-2, 2)
        key = row_keys(torch.tensor([seed]), 1)[0]
        is_near = bool(near_ties(gaps(logits, key, sampler)))
        if chosen(logits, key, sampler) != chosen(noisy, key, sampler):
            changed += 1
            assert is_near, seed
        else:
            unchanged, near = unchanged + 1, near + is_near
    cuts = (sampler.top_p, sampler.top_k, sampler.min_p) != (None, None, None)
    assert changed >= 3 and (cuts or near < unchanged / 2)


def test_a_greedy_choice_is_near_where_the_best_two_are() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0 - 5e-5, 2.0])
    assert near_ties(gaps(logits, None, greedy())) == ["token"]
    assert near_ties(gaps(torch.tensor([1.0, 3.0, 2.99]), None, greedy())) == []


def test_the_gaps_of_a_text_are_those_of_the_choice_it_was_made_by() -> None:
    model = gen.load("demo")
    settings: dict[str, Any] = {"sampler": multinomial(temperature=0.8), "seed": 3, "max_new_tokens": 12}
    text = gen.generate(model, "Once", details=True, **settings)
    [found] = gaps_of_text(model, "Once", None, settings, 7, text.token_ids[:7])
    assert found.keys() == {"block", "token"} and min(found.values()) > 1e-4
    assert gaps_of_text(model, "Once", None, settings, 7, [0] * 7) == []
    [found] = gaps_of_text(model, "Once", None, settings | {"sampler": greedy()}, 0, [])
    assert found.keys() == {"token"}
