"""Texts as tensors: the oracles are completions, and the softmax of the model's own forward in float64."""

import math
from typing import Any

import pytest
import torch

import gen
import gen.api
from gen.calls.rollouts import Rollouts, rollouts_of
from gen.errors import ArgumentError
from gen.models.transformers.model import TransformersModel
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers import byte_tokenizer, tiny_model
from virtual_gpus import no_host_sync, virtual_gpus

PROMPTS = ["hello", "to be or not", "x = [1"]


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    made = gen.from_transformers(tiny_model(), byte_tokenizer())
    assert isinstance(made, TransformersModel)
    return made


def own_logprobs(model: TransformersModel, prompt: str, token_ids: list[int], temperature: float) -> torch.Tensor:
    """The log-probabilities of a text's tokens under the model alone."""
    prompt_ids = model.tokenizer.encode(prompt)
    with torch.inference_mode():
        logits = model.hf_model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    known = logits[:, : model.tokenizer.vocab_size].double().nan_to_num(-math.inf) / temperature
    own: torch.Tensor = known.log_softmax(1).gather(1, torch.tensor(token_ids).unsqueeze(1)).squeeze(1)
    return own


@pytest.mark.parametrize("speculate", ["auto", False])
@pytest.mark.parametrize(
    ("sampler", "temperature"),
    [
        (multinomial(), 1.0),
        (multinomial(2, temperature=0.7, top_k=20), 0.7),
        (multinomial(top_p=0.8, presence_penalty=0.5), 1.0),
        ([greedy(), multinomial(temperature=1.5, min_p=0.02), multinomial(top_k=3)], (1.0, 1.5, 1.0)),
    ],
    ids=["plain", "top-k", "penalties", "each its own"],
)
def test_logprobs_and_what_is_kept_give_the_models_own(
    sampler: Any, temperature: Any, speculate: Any, model: TransformersModel
) -> None:
    arguments: dict[str, Any] = {"seed": [1, 2, 3], "max_new_tokens": [9, 40, 30], "sampler": sampler}
    told = gen.generate(model, PROMPTS, details=True, speculate=False, **arguments)
    found = gen.generate(model, PROMPTS, details="tensors", speculate=speculate, **arguments)
    flat = [one for each in told for one in (each if isinstance(each, list) else [each])]
    each = len(flat) // len(PROMPTS)
    assert [one.token_ids for one in found.completions] == [one.token_ids for one in flat]
    assert found.mask.sum(1).tolist() == found.lengths.tolist()
    for number, one in enumerate(flat):
        length, ended = int(found.lengths[number]), one.finish_reason == "eos"
        token_ids = found.token_ids[number, :length].tolist()
        assert token_ids[: len(one.token_ids)] == one.token_ids and length == len(one.token_ids) + ended
        assert not ended or token_ids[-1] in model.eos_token_ids
        assert found.logprobs[number, : len(one.token_ids)].tolist() == pytest.approx(one.logprobs, abs=1e-4)
        degrees = temperature[number] if isinstance(temperature, tuple) else temperature
        own = own_logprobs(model, PROMPTS[number // each], token_ids, degrees)
        ours = found.logprobs[number, :length] + found.kept[number, :length].log()
        torch.testing.assert_close(ours.double(), own, atol=1e-5, rtol=0)
        behind = found.token_ids[number, length:], found.logprobs[number, length:], found.kept[number, length:] - 1
        assert not any(one.any() for one in behind)


def test_an_output_type_takes_of_what_is_kept(model: TransformersModel) -> None:
    found = gen.generate(model, PROMPTS[0], gen.regex("(ab|cd){4}"), details="tensors", seed=1)
    length, own = int(found.lengths[0]), own_logprobs(model, PROMPTS[0], found.token_ids[0].tolist(), 1.0)
    ours = (found.logprobs + found.kept.log())[0, :length]
    torch.testing.assert_close(ours.double(), own, atol=1e-5, rtol=0)
    assert found.kept.max() < 0.5 and found.completions[0].value == found.completions[0].text


def test_a_token_whose_logit_is_nan_has_no_part_in_what_is_kept() -> None:
    own, token_id = gen.from_transformers(tiny_model(), byte_tokenizer()), ord("~")
    own.hf_model.lm_head.weight.data[token_id] = math.nan
    found = gen.generate(own, PROMPTS[0], sampler=multinomial(top_k=20), details="tensors", seed=1, max_new_tokens=9)
    length = int(found.lengths[0])
    expected = own_logprobs(own, PROMPTS[0], found.token_ids[0, :length].tolist(), 1.0)
    ours = (found.logprobs + found.kept.log())[0, :length]
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=0)


def test_tensors_are_on_the_device_and_nothing_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_syncs(*given: Any) -> Rollouts:
        with no_host_sync():
            return rollouts_of(*given)

    monkeypatch.setattr(gen.api, "rollouts_of", without_syncs)
    sampler = multinomial(temperature=0.8, top_k=9)
    with virtual_gpus(1):
        own = gen.from_transformers(tiny_model().to("cuda:0"), byte_tokenizer())
        found = gen.generate(own, PROMPTS, sampler=sampler, details="tensors", seed=1, max_new_tokens=5)
        assert 0 < found.kept.min() < 0.9
        assert {one.device.type for one in (found.token_ids, found.logprobs, found.kept, found.lengths)} == {"cuda"}


def test_searches_and_returned_errors_are_refused(model: TransformersModel) -> None:
    for arguments in ({"sampler": beam_search(2)}, {"errors": "return"}):
        given: Any = arguments
        with pytest.raises(ArgumentError, match='details="tensors" is for whole texts'):
            gen.generate(model, PROMPTS, details="tensors", **given)
    assert gen.generate(model, [], details="tensors").token_ids.shape == (0, 0)
