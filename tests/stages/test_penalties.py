"""Penalties and bans: logits and texts equal those of transformers' processors, each row or prompt alone."""

import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

import gen
from gen.requests.request import Request
from gen.samplers import greedy, multinomial
from gen.stages.penalties import PenaltyStage
from tests.helpers import by_transformers, byte_tokenizer, tiny_model

PROMPTS = ["a rose is a rose is a rose", "x", "to be or not to be"]
BIAS = {101: 4.0, 32: -6.0, 7: 2.5}

# our settings, and transformers' names for them
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
    """A model whose output repeats its input (tied embeddings), so that penalties matter."""
    hf_model = tiny_model(vocab_size=259, tie_word_embeddings=True)
    with torch.no_grad():
        hf_model.get_input_embeddings().weight *= 0.5
    return gen.from_transformers(hf_model, byte_tokenizer())


def transformers_text(model: Any, prompt: str, eos: list[int], **settings: Any) -> list[int]:
    return by_transformers(model.hf_model, prompt.encode(), 24, eos, **settings)


plain_text = cache(lambda model, prompt, end: transformers_text(model, prompt, [end]))


def text_ids(model: Any, sampler: Any, eos: list[int]) -> list[list[int]]:
    completions = gen.generate(model, PROMPTS, sampler=sampler, max_new_tokens=24, eos_token_id=eos, details=True)
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize(("ours", "theirs"), SETTINGS, ids=lambda value: "+".join(value))
def test_greedy_texts_equal_transformers(model: Any, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    # an id of the plain texts ends them early, unless a processor prevents it; n-grams need longer ones to repeat
    eos = [258] if "no_repeat_ngram_size" in ours else [plain_text(model, PROMPTS[0], 258)[3]]
    expected = [transformers_text(model, prompt, eos, **theirs) for prompt in PROMPTS]
    assert expected != [plain_text(model, prompt, *eos) for prompt in PROMPTS], "the setting changes nothing"
    assert text_ids(model, greedy(**ours), eos) == expected


def test_bad_words_equal_transformers(model: Any) -> None:
    plain = [plain_text(model, prompt, 258) for prompt in PROMPTS]
    bad = [plain[0][2:4], plain[1][5:6], plain[2][1:4], [1, 2, 3, 4, 5, 6] * 5]
    expected = [transformers_text(model, prompt, [258], bad_words_ids=bad) for prompt in PROMPTS]
    assert expected != plain
    assert text_ids(model, greedy(bad_words=bad), [258]) == expected


def test_a_bad_word_given_as_text_is_kept_out_with_and_without_a_space() -> None:
    biased = {ord(letter): 9.0 for letter in "no "}
    model = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    free = gen.generate(model, "x", sampler=multinomial(logit_bias=biased), seed=4, max_new_tokens=80)
    kept = gen.generate(model, "x", sampler=multinomial(logit_bias=biased, bad_words=["no"]), seed=4, max_new_tokens=80)
    assert "no" in free
    assert "no" not in kept


VOCAB = 8  # few, so that tokens repeat


def random_request(rng: random.Random, prompt_ids: list[int]) -> Request:
    """A request with some of the settings; many have none."""
    settings: dict[str, Any] = {}
    if rng.random() < 0.3:
        settings["repetition_penalty"] = rng.choice([0.5, 1.3, 2.0])
    if rng.random() < 0.3:
        settings["presence_penalty"], settings["frequency_penalty"] = rng.choice([-1.0, 2.0]), rng.choice([0.0, 0.5])
    if rng.random() < 0.3:
        settings["logit_bias"] = {rng.randrange(VOCAB): rng.choice([-2.0, 3.0]) for _ in range(rng.randint(1, 4))}
    if rng.random() < 0.3:
        settings["no_repeat_ngram_size"] = rng.randint(1, 4)
    if rng.random() < 0.3:
        settings["min_new_tokens"] = rng.randint(1, 6)
    words: set[tuple[int, ...]] = set()
    if rng.random() < 0.4:
        words = {tuple(rng.choices(range(VOCAB), k=rng.randint(1, 4))) for _ in range(rng.randint(1, 5))}
    eos = tuple(rng.sample(range(VOCAB), rng.randint(0, 3)))
    sampler = greedy(**settings, bad_words=[[*word] for word in words] or None)
    return Request(
        prompt_ids=prompt_ids, sampler=sampler, seeds=(0,), limit=99, eos_token_ids=eos, bad_words=tuple(words)
    )


def penalized_alone(request: Request, token_ids: list[int], logits: Tensor) -> Tensor:
    """One row's logits (vocab,) after transformers' processors, without padding; the presence penalty by hand."""
    asked: Any = request.sampler.penalties
    if asked is None:
        return logits
    new = token_ids[len(request.prompt_ids) :]
    processors = LogitsProcessorList()
    if asked.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[one], bias] for one, bias in asked.logit_bias.items()]))
    if asked.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(asked.repetition_penalty))
    processors.append(
        lambda _, scores: (
            scores
            - torch.tensor(
                [
                    new.count(token) * asked.frequency_penalty + (token in new) * asked.presence_penalty
                    for token in range(VOCAB)
                ]
            )
        )
    )
    if asked.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(asked.no_repeat_ngram_size))
    if request.bad_words:
        processors.append(NoBadWordsLogitsProcessor([[*word] for word in request.bad_words]))
    if asked.min_new_tokens and request.eos_token_ids:
        processors.append(
            MinNewTokensLengthLogitsProcessor(len(request.prompt_ids), asked.min_new_tokens, [*request.eos_token_ids])
        )
    changed: Tensor = processors(torch.tensor([token_ids]), logits.unsqueeze(0).clone())[0]
    return changed


def test_each_rows_logits_equal_transformers_whatever_its_neighbours_ask_for_and_when_they_came() -> None:
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    changed = 0
    for _ in range(14):
        count, columns = rng.randint(1, 6), 24
        stage = PenaltyStage(count, torch.device("cpu"))
        requests: dict[int, Request] = {}
        texts = {row: [0] for row in range(count)}
        for _ in range(12):
            first = rng.randrange(count)
            rows = range(first, rng.randint(first + 1, count))  # these rows begin anew
            for row in rows:
                texts[row] = rng.choices(range(VOCAB), k=rng.randint(1, 9))
                requests[row] = random_request(rng, [*texts[row]])
            if rows:
                stage.admit(slice(rows.start, rows.stop), [requests[row] for row in rows], [texts[row] for row in rows])
            for row, text in texts.items():
                texts[row] = [*text, *rng.choices(range(VOCAB), k=rng.randint(0, 1))]
            here = range(max(requests) + 1) if requests and rng.random() < 0.8 else rows
            if not here or stage.key() is None:
                continue
            logits = torch.randn(len(here), VOCAB, generator=generator)
            history = torch.tensor([texts[row] + [-1] * (columns - len(texts[row])) for row in here])
            lengths = torch.tensor([[len(texts[row])] for row in here])
            prompts = [len(requests[row].prompt_ids) if row in requests else 1 for row in here]
            made = stage(logits, slice(here.start, here.stop), history, lengths, lengths - torch.tensor([prompts]).T)
            for place, row in enumerate(here):
                expected = logits[place]
                if row in requests:
                    expected = penalized_alone(requests[row], texts[row], logits[place])
                changed += not torch.equal(expected, logits[place])
                torch.testing.assert_close(made[place], expected)
    assert changed > 100


def test_samples_of_a_prompt_have_its_penalties_each() -> None:
    stage = PenaltyStage(5, torch.device("cpu"))
    requests = [
        Request(prompt_ids=[1], sampler=greedy(logit_bias={token: 1.0}), seeds=(0, 1), limit=9) for token in (2, 3)
    ]
    stage.admit(slice(0, 4), requests, [[1], [1]])
    history, ones = torch.ones(5, 4, dtype=torch.int64), torch.ones(5, 1, dtype=torch.int64)
    made = stage(torch.zeros(5, 4), slice(0, 5), history, ones, ones - 1)
    assert made.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_the_smallest_and_largest_penalties_leave_logits_numbers() -> None:
    stage = PenaltyStage(2, torch.device("cpu"))
    for row, penalty in enumerate((1e-300, 1e30)):
        request = Request(prompt_ids=[0, 1, 2], sampler=greedy(repetition_penalty=penalty), seeds=(0,), limit=9)
        stage.admit(slice(row, row + 1), [request], [[0, 1, 2]])
    history, lengths = torch.tensor([[0, 1, 2]] * 2), torch.full((2, 1), 3)
    made = stage(torch.tensor([[-3.0, 0.0, 3.0]] * 2), slice(0, 2), history, lengths, lengths - 3)
    assert not made.isnan().any()
    assert not made.isinf().any()
    assert made[0].argmax() == 2


def test_a_sampler_with_processors_cannot_be_called_without_the_tokens_so_far() -> None:
    with pytest.raises(gen.ArgumentError, match="need the tokens so far, which gen's own loop has"):
        greedy(repetition_penalty=1.2)(torch.zeros(1, 4), torch.zeros(1))
