"""Models whose layers keep recurrent or convolutional states: batches of unequal prompts, samples and beams."""

from typing import Any

import pytest
import torch

import gen
from gen.attention.plan import Run
from gen.attention.steps import attend_rows
from tests.helpers import HYBRIDS, byte_tokenizer, plain_choices, tiny_model

PROMPTS = ["to be or not to be", "a", "x = [1]"]


@pytest.mark.parametrize("shape", HYBRIDS)
def test_greedy_texts_of_unequal_prompts_equal_the_models_plain_forward_of_each_alone(shape: str) -> None:
    hf_model, tokenizer = tiny_model(shape), byte_tokenizer()
    model = gen.from_transformers(hf_model, tokenizer, probe=False)
    together = gen.generate(model, PROMPTS, sampler=gen.samplers.greedy(), max_new_tokens=12, details=True)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        assert len(completion.token_ids) == 12
        assert completion.token_ids == plain_choices(hf_model, tokenizer(prompt)["input_ids"], completion.token_ids)
    assert len({token for completion in together for token in completion.token_ids}) > 6, "the texts hardly vary"


@pytest.mark.parametrize("shape", HYBRIDS)
def test_samples_and_beams_take_their_states_along(shape: str) -> None:
    hf_model, tokenizer = tiny_model(shape, vocab_size=259), byte_tokenizer()
    model = gen.from_transformers(hf_model, tokenizer)
    prompts = PROMPTS[:2]
    groups = gen.generate(
        model, prompts, sampler=gen.samplers.multinomial(samples=2), seed=5, max_new_tokens=5, details=True
    )
    for prompt, group in zip(prompts, groups, strict=True):
        assert isinstance(group, list)
        for completion in group:
            assert gen.generate(model, prompt, seed=completion.seed, max_new_tokens=5) == completion.text
    found = gen.generate(model, prompts, sampler=gen.samplers.beam_search(3), max_new_tokens=5, details=True)
    for prompt, best in zip(prompts, found, strict=True):
        assert isinstance(best, gen.Completion)
        token_ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        expected = hf_model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            num_beams=3,
            do_sample=False,
            max_new_tokens=5,
            pad_token_id=0,
        )
        assert best.token_ids == expected[0, token_ids.shape[1] :].tolist()


@pytest.mark.parametrize("shape", HYBRIDS)
@torch.inference_mode()
def test_a_step_looks_at_each_rows_own_columns_whichever_layer_has_keys_first(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer(), probe=False)
    seen: list[tuple[Run, ...]] = []

    def watched(*arguments: Any) -> torch.Tensor:
        seen.append(arguments[4].runs)
        return attend_rows(*arguments)

    monkeypatch.setattr("gen.models.transformers.attention.attend_rows", watched)
    monkeypatch.setattr("gen.attention.plan._CALL", 0)
    logits = []
    for lengths in ([], [91, 4]):
        rows: Any = model.new_rows(2, 128)
        rows.prefill(slice(0, 1), [[1 + number % 97 for number in range(90)]])
        rows.prefill(slice(1, 2), [[5, 6, 7]])
        rows.look_at(lengths)
        logits.append(rows.step(torch.tensor([[8], [9]]), 128))
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
    if model.attention is None:  # the model computes attention itself
        assert not seen
    else:
        half = len(seen) // 2
        assert seen[:half] == [()] * half and seen[half:] == [((0, 1, 96), (1, 2, 32))] * half and half
