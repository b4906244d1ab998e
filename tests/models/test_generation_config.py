"""The sampler that a checkpoint's generation config recommends: log-probabilities equal transformers' processors'."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as hf

import gen
from gen.models.generation_config import recommended_sampler
from gen.models.transformers.model import TransformersModel
from gen.samplers import GreedySampler, MultinomialSampler
from tests.helpers import BOS, EOS, OTHER_EOS, ScriptedModel, byte_tokenizer, stored, tiny_model

PROMPT = [*b"to be or not to be"]


def adapter(**settings: Any) -> TransformersModel:
    model = tiny_model(vocab_size=259)
    model.generation_config = GenerationConfig(bos_token_id=BOS, **settings)
    return gen.from_transformers(model, byte_tokenizer())


def sampler_of(**settings: Any) -> Any:
    return recommended_sampler(GenerationConfig(**settings), 259, (EOS,))


@pytest.mark.parametrize(
    ("settings", "processors"),
    [
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8},
            [hf.TemperatureLogitsWarper(0.7), hf.TopKLogitsWarper(20), hf.TopPLogitsWarper(0.8)],
        ),
        ({"temperature": 1.5, "min_p": 0.1}, [hf.TemperatureLogitsWarper(1.5), hf.MinPLogitsWarper(0.1)]),
        (
            {"do_sample": True, "top_k": 0, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
            [hf.RepetitionPenaltyLogitsProcessor(1.3), hf.NoRepeatNGramLogitsProcessor(2)],
        ),
        (
            {"suppress_tokens": [5, 90], "bad_words_ids": [[65], [7, 8]], "sequence_bias": {(9,): 2.0, (66,): -1.0}},
            [
                hf.SequenceBiasLogitsProcessor({(9,): 2.0, (66,): -1.0}),
                hf.NoBadWordsLogitsProcessor([[65], [7, 8]]),
                hf.SuppressTokensLogitsProcessor([5, 90]),
            ],
        ),
        ({"do_sample": True}, []),  # no top_k of 50, transformers' default
        ({}, []),
    ],
)
def test_tokens_are_drawn_from_what_the_config_makes_of_the_logits(settings: Any, processors: Any) -> None:
    model = adapter(**settings)
    for seed in range(4):
        completion = gen.generate(model, PROMPT, seed=seed, max_new_tokens=16, details=True)
        whole = torch.tensor([PROMPT + completion.token_ids])
        with torch.no_grad():
            logits = model.hf_model(whole).logits[:, len(PROMPT) - 1 : -1]
        assert len(completion.logprobs) == logits.shape[1] == 16
        for position, logprob in enumerate(completion.logprobs):
            token_ids = whole[:, : len(PROMPT) + position]
            scores = LogitsProcessorList(processors)(token_ids, logits[:, position].clone())
            expected = scores.double().log_softmax(-1)[0, completion.token_ids[position]]
            assert logprob == pytest.approx(float(expected), abs=1e-4)


def test_a_config_that_recommends_nothing_draws_at_temperature_one() -> None:
    model = adapter(max_length=20, pad_token_id=0)
    text = gen.generate(model, PROMPT, seed=3, max_new_tokens=16)
    assert text == gen.generate(model, PROMPT, sampler=gen.samplers.multinomial(), seed=3, max_new_tokens=16)
    assert isinstance(model.recommended_sampler, MultinomialSampler)
    assert model.recommended_sampler.penalties is None  # no work at each step for settings that change nothing
    assert sampler_of(repetition_penalty=1.0, no_repeat_ngram_size=0, suppress_tokens=[]).penalties is None


def test_what_was_written_to_the_folder_counts(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], type]] = [
        ("greedy", {"do_sample": False}, GreedySampler),
        ("drawn", {"do_sample": True, "top_p": 0.5}, MultinomialSampler),
        ("nothing", {}, MultinomialSampler),
    ]
    for name, settings, expected in cases:
        folder = tmp_path / name
        sampler = gen.load(stored(adapter(**settings).hf_model, folder), device="cpu").recommended_sampler
        assert isinstance(sampler, expected)
        if isinstance(sampler, MultinomialSampler):
            assert (sampler.temperature, sampler.top_k) == (None, None)
            assert sampler.top_p == settings.get("top_p")


def test_it_is_read_at_each_call_and_by_engines() -> None:
    """Oracle: transformers' own generate, which reads it at each call. What is for draws changes no greedy text."""
    model = adapter(do_sample=False, temperature=0.6, top_p=0.9)
    hf_model: Any = model.hf_model
    settings: dict[str, Any] = {"max_new_tokens": 24, "details": True}

    def theirs() -> list[int]:
        options: dict[str, Any] = {"max_new_tokens": 24, "pad_token_id": 0, "top_p": None, "temperature": None}
        made: list[int] = hf_model.generate(torch.tensor([PROMPT]), **options)[0, len(PROMPT) :].tolist()
        eos = hf_model.generation_config.eos_token_id
        return made[:-1] if made[-1] in (eos if isinstance(eos, list) else [eos]) else made

    plain = theirs()
    changes: list[dict[str, Any]] = [
        {"eos_token_id": plain[5]},
        {"eos_token_id": [plain[9], plain[3]]},
        {"eos_token_id": None, "repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [plain[0]]},
    ]
    with gen.Engine(model) as engine:
        for change in [{}, *changes]:
            for name, value in change.items():
                setattr(hf_model.generation_config, name, value)
            expected = theirs()
            assert gen.generate(model, PROMPT, **settings).token_ids == expected, change
            assert engine.generate(PROMPT, **settings).token_ids == expected, change
            assert "".join(gen.stream(model, PROMPT, max_new_tokens=24)) == model.tokenizer.decode(expected), change
    hf_model.generation_config.suppress_tokens.append(plain[1])  # in place
    assert gen.generate(model, PROMPT, **settings).token_ids == theirs()
    hf_model.generation_config = GenerationConfig(do_sample=True, temperature=0.5, eos_token_id=plain[:2])
    assert model.recommended_sampler == gen.samplers.multinomial(temperature=0.5)
    assert model.eos_token_ids == (plain[0], plain[1])
    for none in (-1, [-1]):  # as an index it would be the vocabulary's last token
        hf_model.generation_config.eos_token_id = none
        assert len(model.eos_token_ids) == 0
        assert gen.generate(model, "a", bool, seed=1) == gen.generate(model, "a", bool, seed=1, eos_token_id=[])
    hf_model.generation_config.eos_token_id = "</s>"
    with pytest.raises(gen.ModelError, match="eos_token_id must be a token id or a list of them, got '</s>'"):
        gen.generate(model, PROMPT)


def test_an_eos_that_only_config_json_names_ends_texts(tmp_path: Path) -> None:
    hf_model = tiny_model(vocab_size=259)
    plain = gen.generate(
        gen.from_transformers(hf_model, byte_tokenizer()), PROMPT, sampler=gen.samplers.greedy(), details=True
    ).token_ids
    hf_model.config.eos_token_id = eos = plain[7]
    hf_model.generation_config = GenerationConfig(temperature=0.6, do_sample=True)
    model = gen.load(stored(hf_model, tmp_path), device="cpu")
    assert model.hf_model.generation_config.eos_token_id is None
    made = gen.generate(model, PROMPT, sampler=gen.samplers.greedy(), details=True)
    assert (made.token_ids, made.finish_reason) == (plain[: plain.index(eos)], "eos")
    model.hf_model.generation_config.eos_token_id = OTHER_EOS
    assert model.eos_token_ids == (OTHER_EOS,)


def test_what_gen_does_not_have_is_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="gen"):
        model = adapter(
            do_sample=True, num_beams=4, typical_p=0.9, sequence_bias={(1, 2): 1.0}, min_length=3, stop_strings=["a"]
        )
        for _ in range(2):
            gen.generate(model, "x", max_new_tokens=1)
    [record] = [record for record in caplog.records if record.name.startswith("gen")]
    for name in ("num_beams=4", "typical_p=0.9", "sequence_bias=", "min_length=3", "stop_strings=['a']"):
        assert name in record.getMessage()


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 1, "typical_p": 1.0, "min_length": 0},
        {"do_sample": False, "typical_p": 0.5, "epsilon_cutoff": 0.1},
    ],
)
def test_what_changes_nothing_is_not_in_the_log(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    sampler_of(max_new_tokens=5, pad_token_id=0, use_cache=True, **settings)
    assert not [record for record in caplog.records if record.name.startswith("gen")]


def test_bans_of_ids_that_cannot_come_and_of_the_eos_mean_nothing() -> None:
    sampler = sampler_of(bad_words_ids=[[EOS], [65, 400], [66]], suppress_tokens=[259, 3], sequence_bias=[[[300], 1.0]])
    assert sampler.penalties.bad_words == ((3,), (66,))
    assert not sampler.penalties.logit_bias
    model = adapter(eos_token_id=[EOS, OTHER_EOS], bad_words_ids=[[OTHER_EOS]], suppress_tokens=[300])
    assert gen.generate(model, "x", max_new_tokens=2, details=True).token_ids


def test_a_value_that_no_sampler_takes_is_refused_where_it_is_needed() -> None:
    model = adapter()
    model.hf_model.generation_config.top_p = 7.0
    assert gen.generate(model, "x", sampler=gen.samplers.greedy(), max_new_tokens=1, details=True).token_ids
    with pytest.raises(
        gen.ModelError, match=r"config cannot be used: top_p .*7.0; give a sampler, such as gen.samplers"
    ):
        gen.generate(model, "x", max_new_tokens=1)


def test_an_adapter_may_recommend_a_sampler_and_need_not() -> None:
    class Recommending(ScriptedModel):
        recommended_sampler = gen.samplers.greedy(bad_words=[[*b"l"]])

    assert gen.generate(ScriptedModel("hello"), "x") == "hello"
    with pytest.raises(gen.SamplingError):  # the script has only its "l" to write
        gen.generate(Recommending("hello"), "x")


def test_the_users_seed_of_torch_has_no_part_in_the_draws() -> None:
    model = adapter()
    texts = []
    for _ in range(2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        texts.append(gen.generate(model, "x", max_new_tokens=16))
        assert torch.equal(torch.get_rng_state(), before)
    assert texts[0] != texts[1]  # 259 ** 16 texts, at random
