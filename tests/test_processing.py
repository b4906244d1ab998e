"""Processors in the loop: texts equal transformers' with the same settings, each prompt alone and unpadded."""

from typing import Any

import pytest
import torch

import gen
from gen.samplers import beam_search, greedy, multinomial
from gen.samplers.processors import penalize_presence
from tests.helpers import ScriptedModel, byte_tokenizer, tiny_model

PROMPTS = ["a rose is a rose is a rose", "x", "to be or not to be"]
BIAS = {101: 4.0, 32: -6.0, 7: 2.5}

# ours, and what transformers calls it
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    ({"repetition_penalty": 0.6}, {"repetition_penalty": 0.6}),
    ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    ({"no_repeat_ngram_size": 4}, {"no_repeat_ngram_size": 4}),
    ({"logit_bias": BIAS}, {"sequence_bias": [[[token_id], bias] for token_id, bias in BIAS.items()]}),
    ({"min_new_tokens": 9}, {"min_new_tokens": 9}),
    (
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 5, "logit_bias": BIAS},
        {
            "repetition_penalty": 1.3,
            "no_repeat_ngram_size": 3,
            "min_new_tokens": 5,
            "sequence_bias": [[[token_id], bias] for token_id, bias in BIAS.items()],
        },
    ),
]


@pytest.fixture(scope="module")
def model() -> Any:
    """Its output repeats its input (tied embeddings), so that penalties have something to do."""
    hf_model = tiny_model(vocab_size=259, tie_word_embeddings=True)
    with torch.no_grad():
        hf_model.get_input_embeddings().weight *= 0.5
    return gen.from_transformers(hf_model, byte_tokenizer())


def transformers_text(model: Any, prompt: str, eos: list[int], **settings: Any) -> list[int]:
    token_ids = torch.tensor([[*prompt.encode()]])
    output = model.hf_model.generate(
        token_ids,
        attention_mask=torch.ones_like(token_ids),
        do_sample=False,
        max_new_tokens=24,
        eos_token_id=eos,
        pad_token_id=0,
        **settings,
    )
    new: list[int] = output[0, token_ids.shape[1] :].tolist()
    return new[: next((i for i, token in enumerate(new) if token in eos), len(new))]


def text_ids(model: Any, sampler: Any, eos: list[int]) -> list[list[int]]:
    completions = gen.generate(model, PROMPTS, sampler=sampler, max_new_tokens=24, eos_token_id=eos, details=True)
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize(("ours", "theirs"), SETTINGS, ids=lambda value: "+".join(value))
def test_greedy_texts_equal_transformers(model: Any, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    # an id of the plain texts ends them early, unless a processor prevents it; n-grams need longer ones to repeat
    eos = [258] if "no_repeat_ngram_size" in ours else [transformers_text(model, PROMPTS[0], [258])[3]]
    expected = [transformers_text(model, prompt, eos, **theirs) for prompt in PROMPTS]
    assert expected != [transformers_text(model, prompt, eos) for prompt in PROMPTS], "the setting changes nothing"
    assert text_ids(model, greedy(**ours), eos) == expected


def test_bad_words_equal_transformers(model: Any) -> None:
    plain = [transformers_text(model, prompt, [258]) for prompt in PROMPTS]
    bad = [plain[0][2:4], plain[1][5:6], plain[2][1:4], [1, 2, 3, 4, 5, 6] * 5]
    expected = [transformers_text(model, prompt, [258], bad_words_ids=bad) for prompt in PROMPTS]
    assert expected != plain
    assert text_ids(model, greedy(bad_words=bad), [258]) == expected


def test_a_bad_word_given_as_text_is_kept_out_with_and_without_a_space() -> None:
    biased = {ord(letter): 9.0 for letter in "no "}
    model = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    free = gen.generate(model, "x", sampler=multinomial(logit_bias=biased), seed=1, max_new_tokens=80)
    kept = gen.generate(model, "x", sampler=multinomial(logit_bias=biased, bad_words=["no"]), seed=1, max_new_tokens=80)
    assert "no" in free
    assert "no" not in kept


def test_presence_and_frequency_count_the_new_tokens_alone(model: Any) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    new = torch.tensor([[3, 3, 1, -1], [-1, -1, -1, -1]])
    penalized = penalize_presence(logits, new, presence=0.5, frequency=0.25)
    assert penalized.tolist() == [[1.0, 1.25, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0]]
    settings: Any = {"presence_penalty": 3.0, "frequency_penalty": 1.5}
    ours = gen.generate(model, PROMPTS, sampler=greedy(**settings), max_new_tokens=12, details=True)
    for prompt, completion in zip(PROMPTS, ours, strict=True):
        token_ids = [*prompt.encode()]
        for chosen in completion.token_ids:  # by hand, a forward of the whole text for each token
            with torch.no_grad():
                row = model.hf_model(torch.tensor([token_ids])).logits[0, -1]
            for token in set(token_ids[len(prompt) :]):
                row[token] -= 3.0 + 1.5 * token_ids[len(prompt) :].count(token)
            assert int(row.argmax()) == chosen
            token_ids.append(chosen)


def test_processors_work_in_any_batch_with_samples_and_streamed(model: Any) -> None:
    sampler = multinomial(temperature=0.9, repetition_penalty=1.5, no_repeat_ngram_size=2, frequency_penalty=0.3)
    alone = [gen.generate(model, prompt, sampler=sampler, seed=4, max_new_tokens=16) for prompt in PROMPTS]
    assert gen.generate(model, PROMPTS[::-1], sampler=sampler, seed=4, max_new_tokens=16) == alone[::-1]
    assert "".join(gen.stream(model, PROMPTS[0], sampler=sampler, seed=4, max_new_tokens=16)) == alone[0]
    several = multinomial(3, temperature=0.9, repetition_penalty=1.5, no_repeat_ngram_size=2, frequency_penalty=0.3)
    groups: Any = gen.generate(model, PROMPTS, sampler=several, seed=4, max_new_tokens=16, details=True)
    assert [group[0].text for group in groups] == alone
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            again = gen.generate(model, prompt, sampler=sampler, seed=completion.seed, max_new_tokens=16)
            assert again == completion.text


def test_beams_carry_their_own_tokens(model: Any) -> None:
    completions: Any = gen.generate(
        model,
        PROMPTS,
        sampler=beam_search(4, no_repeat_ngram_size=1),
        num_return_sequences=4,
        max_new_tokens=20,
        eos_token_id=[],
        details=True,
    )
    for prompt, group in zip(PROMPTS, completions, strict=True):
        for completion in group:
            token_ids = completion.token_ids
            assert len(set(token_ids)) == 20
            assert not set(token_ids) & set(prompt.encode())


def test_a_sampler_with_processors_cannot_be_called_without_the_tokens_so_far() -> None:
    with pytest.raises(gen.ArgumentError, match=r"need the tokens so far, which only gen\.generate and gen\.stream"):
        greedy(repetition_penalty=1.2)(torch.zeros(1, 4), torch.zeros(1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0"),
        ({"presence_penalty": "x"}, "presence_penalty must be a number"),
        ({"min_new_tokens": -1}, "min_new_tokens must be a whole number at least 0"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size must be a whole number"),
        ({"logit_bias": {-1: 1.0}}, "a token id of logit_bias must be a whole number at least 0"),
        ({"logit_bias": {900: 1.0}}, "logit_bias has the token id 900; the vocabulary is 0 to 258"),
        ({"bad_words": "no"}, "bad_words takes a list of texts or of lists of token ids, got 'no'"),
        ({"bad_words": [""]}, "bad_words takes a list"),
        ({"bad_words": [[900]]}, "bad_words has the token id 900"),
        ({"repetition": 2}, "got 'repetition'; did you mean 'repetition_penalty'"),
    ],
)
def test_unusable_settings_are_refused_before_the_model_runs(settings: dict[str, Any], message: str) -> None:
    model = ScriptedModel("hello")
    for sampler in (greedy, multinomial, beam_search):
        with pytest.raises(gen.ArgumentError, match=message):
            gen.generate(model, "x", sampler=sampler(**settings))
    assert model.steps == 0
