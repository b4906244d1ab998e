"""Rows with no token left to choose: the error names prompt, sample and place; searches find the texts there are."""

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.samplers import BeamSearchSampler, Sampler, beam_search, greedy, multinomial
from tests.helpers import ScriptedModel, ScriptedRows

ALLOWED = [97, 98, 99]
ONLY = {token: -math.inf for token in range(259) if token not in ALLOWED}  # each once: no_repeat_ngram_size=1


class DyingModel(ScriptedModel):
    """After its script all logits have one value; a prompt's script is the prompt itself."""

    def __init__(self, value: float) -> None:
        super().__init__(lambda prompt: [*prompt.encode()])
        self.value = value
        self.eos_token_ids = ()

    class rows(ScriptedRows):
        _model: "DyingModel"

        def logits(self, rows: Sequence[int]) -> Tensor:
            dead = torch.tensor([self._said[row] >= len(self._scripts[row]) - 1 for row in rows])
            return super().logits(rows).masked_fill(dead.unsqueeze(1), self._model.value)


def test_a_typed_text_that_dies_is_told_nothing_about_dtypes() -> None:
    for value in (math.nan, -math.inf):
        with pytest.raises(gen.SamplingError, match="no token was left to choose after 2 new ones") as caught:
            gen.generate(DyingModel(value), "ab", gen.regex("[ab]{3}"))
        assert "output type allows" in str(caught.value) and "dtype" not in str(caught.value)


def after(number: int, prompt: str) -> str:
    """The beginning of the error of a prompt that dies at its own end."""
    return f"prompt {number}: no token was left to choose after {len(prompt)} new ones"


@pytest.mark.parametrize("value", [-math.inf, math.nan])
@pytest.mark.parametrize("sampler", [greedy(), multinomial(top_p=0.9, min_p=0.1), beam_search(1), beam_search(3)])
def test_the_error_names_the_prompt_and_how_many_tokens_came_before(sampler: Sampler, value: float) -> None:
    for prompts in (["dead", "four"], ["longer", "dead"]):  # all of them fail
        with pytest.raises(gen.SamplingError, match=rf"^{after(0, prompts[0])}"):
            gen.generate(DyingModel(value), prompts, sampler=sampler, max_new_tokens=9)
        assert gen.generate(DyingModel(value), prompts[:1], sampler=sampler, max_new_tokens=4) == [prompts[0][:4]]
    prompts = ["much longer", "a", "long"]
    with pytest.raises(gen.BatchError, match=f"of 3 prompts 2 prompts, .* {after(1, 'a')}") as caught:
        gen.generate(DyingModel(value), prompts, sampler=sampler, max_new_tokens=9)
    text, *errors = caught.value.results
    assert text == "much long"
    for number, error in enumerate(errors, 1):
        assert isinstance(error, gen.SamplingError)
        assert str(error).startswith(after(number, prompts[number]))
    with pytest.raises(gen.SamplingError, match=r"^prompt 0: .* after 2 new ones"):
        gen.generate(DyingModel(value), "to", sampler=sampler)


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_stream_gives_what_came_before_and_then_the_error(value: float) -> None:
    pieces = gen.stream(DyingModel(value), "dead", sampler=greedy(), max_new_tokens=9)
    assert [next(pieces) for _ in range(4)] == [*"dead"]
    with pytest.raises(gen.SamplingError, match=r"^prompt 0: no token was left to choose after 4 new ones"):
        next(pieces)
    with pytest.raises(gen.GenError, match="the stream has failed and has no completion: prompt 0"):
        pieces.completion()


def test_the_error_names_the_sample(llama: Any) -> None:
    """A NaN in the second of three rows."""

    class SecondDies:
        samples, penalties = 3, None

        def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
            rows = torch.arange(len(logits))
            dead = torch.where(rows % 3 == 1, math.nan, 0.8)
            token_ids, _, weights = multinomial(temperature=dead).step(logits, weights, keys)
            return token_ids, rows, weights

    with pytest.raises(gen.SamplingError, match=r"^prompt 0, sample 1: no token was left to choose after 0 new ones"):
        gen.generate(llama, ["a", "b"], sampler=SecondDies())


@pytest.mark.parametrize("make", [greedy, multinomial, beam_search])
def test_processors_that_ban_everything_are_an_error(llama: Any, make: Any) -> None:
    everything = [[token] for token in range(259)]
    for settings in ({"bad_words": everything}, {"logit_bias": dict.fromkeys(range(259), -math.inf)}):
        with pytest.raises(gen.SamplingError, match=r"^prompt 0: no token was left to choose after 0 new ones"):
            gen.generate(llama, ["x", "y"], sampler=make(**settings))
    once = make(logit_bias=ONLY, no_repeat_ngram_size=1)
    with pytest.raises(gen.BatchError, match=r"prompt 1: no token was left to choose after 1 new ones") as caught:
        gen.generate(llama, ["x", "ab"], sampler=once, eos_token_id=[], max_new_tokens=3)
    text, error = caught.value.results
    assert sorted(text) == [*"abc"]
    assert isinstance(error, gen.SamplingError)
    with pytest.raises(gen.SamplingError, match=r"^prompt 0: no token was left to choose after 3 new ones"):
        gen.generate(llama, "x", sampler=once, eos_token_id=[], max_new_tokens=4)


def likelihood(model: Any, prompt: str, token_ids: list[int]) -> float:
    """The log-probability of a text, by one forward over the whole text: what is banned changes no probability."""
    prompt_ids = [*prompt.encode()]
    with torch.no_grad():
        logits = model.hf_model(torch.tensor([prompt_ids + token_ids])).logits[0].double()
    logprobs = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(token_ids).unsqueeze(1)).sum())


@pytest.mark.parametrize("beams", [6, 7, 40])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 50.0, -50.0])
def test_more_beams_than_texts_find_every_text(llama: Any, beams: int, penalty: float) -> None:
    """The oracle is all texts of the tokens a, b, c and the eos, each at most once."""
    eos = 257
    bias = {token: value for token, value in ONLY.items() if token != eos}
    sampler = beam_search(beams, length_penalty=penalty, logit_bias=bias, no_repeat_ngram_size=1)
    for prompt, eos_token_ids in (("x", []), ("xyz", []), ("x", [eos]), ("a", [eos])):
        ends, allowed = [eos] if eos_token_ids else [], [token for token in ALLOWED if token not in prompt.encode()]
        texts = [list(text) + ends for n in range(4) for text in permutations(allowed, n)]
        texts = [text for text in texts if eos_token_ids or len(text) == len(allowed)]
        if beams < len(texts):
            continue
        found: Any = gen.generate(
            llama,
            [prompt],
            sampler=sampler
            if eos_token_ids
            else beam_search(beams, length_penalty=penalty, logit_bias=ONLY, no_repeat_ngram_size=1),
            num_return_sequences=beams,
            eos_token_id=eos_token_ids,
            max_new_tokens=4 if eos_token_ids else len(allowed),
            details=True,
        )
        [found] = found
        scores = {
            tuple(token for token in text if token != eos): likelihood(llama, prompt, text) / len(text) ** penalty
            for text in texts
        }
        assert [tuple(one.token_ids) for one in found] == sorted(scores, key=lambda text: -scores[text])
        for one in found:
            assert one.score == pytest.approx(scores[tuple(one.token_ids)], rel=1e-4)


@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_step_of_dead_beams_gives_token_zero_and_no_weight(beams: int, value: float) -> None:
    logits = torch.full((2 * beams, 300), value)
    logits[beams:, 7] = 1.0
    token_ids, ancestors, weights = BeamSearchSampler(beams)(logits, torch.zeros(2 * beams))
    assert not token_ids[:beams].any() and weights[:beams].isneginf().all()
    assert token_ids[beams:].eq(7).all() and weights[beams] == 0
    assert ((ancestors >= 0) & (ancestors // beams == torch.arange(2 * beams) // beams)).all()
