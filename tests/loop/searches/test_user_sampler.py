"""Users' own samplers in the loop."""

from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from tests.helpers import byte_tokenizer, tiny_model


class InPlace:
    """Greedy, and adds to its weights in place."""

    samples, penalties = 1, None

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
        logprobs, token_ids = logits.float().log_softmax(-1).max(-1)
        weights += logprobs
        return token_ids.unsqueeze(1), torch.arange(len(logits)), weights


def test_a_sampler_may_change_weights_in_place() -> None:
    model = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    arguments: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": [], "details": True}
    found = gen.generate(model, ["ab", "c"], sampler=InPlace(), **arguments)
    wanted = gen.generate(model, ["ab", "c"], sampler=gen.samplers.greedy(), **arguments)
    for own, greedy in zip(found, wanted, strict=True):
        assert own.token_ids == greedy.token_ids
        assert own.logprobs == pytest.approx(greedy.logprobs, abs=1e-5)


def test_tensors_as_parameters_are_for_the_samples_of_one_prompt() -> None:
    """Rows are in no order of the prompts: a longer prompt had the first row, and so the other one's temperature."""
    model = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    arguments: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": [], "seed": 1}
    temperatures = torch.tensor([0.0, 5.0])
    each = gen.samplers.multinomial(2, temperature=temperatures)
    own = [gen.generate(model, "c", sampler=gen.samplers.multinomial(2, temperature=t), **arguments) for t in (0, 5.0)]
    assert gen.generate(model, "c", sampler=each, **arguments) == [own[0][0], own[1][1]]
    with pytest.raises(gen.ArgumentError, match="rows of several prompts have no order; give numbers"):
        gen.generate(model, ["c", "abc"], sampler=gen.samplers.multinomial(temperature=temperatures), **arguments)
