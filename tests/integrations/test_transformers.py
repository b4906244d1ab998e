"""gen's draws inside of transformers' generate: they give the tokens of gen.generate, and add no host sync."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from transformers.generation import logits_process as hf

import gen
from gen.integrations.transformers import ConstraintProcessor, SamplerProcessor
from tests.helpers import EOS, byte_tokenizer, tiny_model
from tests.helpers.waits import waits
from virtual_gpus import virtual_gpus

PROMPTS = ["Ada ", "hello there", "x"]
SAMPLERS: dict[str, Any] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(),
    "filtered": gen.samplers.multinomial(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01),
}


def generate(
    model: Any,
    new_tokens: int,
    processor: Any = None,
    repeat: int = 1,
    **options: Any,
) -> list[list[int]]:
    """Transformers' tokens for the prompts, each of them in `repeat` rows."""
    tokenizer = byte_tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = "</s>", "left"
    inputs = tokenizer(PROMPTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    inputs = {name: tensor.repeat_interleave(repeat, 0).to(model.device) for name, tensor in inputs.items()}
    made = model.generate(
        **inputs,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        logits_processor=processor if isinstance(processor, list) else [processor] if processor else [],
        **({"do_sample": False} | options),
    )
    tokens: list[list[int]] = made[:, inputs["input_ids"].shape[1] :].cpu().tolist()
    return tokens


def expected(sampler: Any, seed: Any, new_tokens: int, vocab_size: int = 300, **options: Any) -> list[list[int]]:
    model = gen.from_transformers(tiny_model(vocab_size=vocab_size), byte_tokenizer())
    options = {"seed": seed, "max_new_tokens": new_tokens, "eos_token_id": [], "details": True} | options
    made = gen.generate(model, PROMPTS, sampler=sampler, **options)
    flat = [text for texts in made for text in (texts if isinstance(texts, list) else [texts])]
    return [text.token_ids for text in flat]


@pytest.mark.parametrize("seed", [3, [3, 4, 5]])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_tokens_are_those_of_gen(name: str, seed: Any) -> None:
    """The model has 300 logits, the tokenizer 259 ids."""
    processor = SamplerProcessor(SAMPLERS[name], seed=seed, vocab_size=259)
    wanted = expected(SAMPLERS[name], seed, 12)
    assert generate(tiny_model(), 12, processor) == wanted
    processor.reset()
    assert generate(tiny_model(), 12, processor) == wanted


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [
        (
            {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "sequence_bias": {(104,): 4.0}},
            {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "logit_bias": {104: 4.0}},
        ),
        (
            {"bad_words_ids": [[97], [98, 99]], "suppress_tokens": [100], "min_new_tokens": 6, "eos_token_id": EOS},
            {"bad_words": [[97], [98, 99], [100]], "min_new_tokens": 6},
        ),
    ],
)
def test_penalties_and_bans_of_generate_are_those_of_gens_samplers(settings: Any, sampler: Any) -> None:
    processor = SamplerProcessor(SAMPLERS["filtered"], seed=3, vocab_size=259)
    wanted = expected(replace(SAMPLERS["filtered"], **sampler), 3, 12, eos_token_id=settings.get("eos_token_id", []))
    made = generate(tiny_model(), 12, processor, **settings)
    assert [tokens[: tokens.index(EOS)] if EOS in tokens else tokens for tokens in made] == wanted


@pytest.mark.parametrize(
    "warper",
    [
        hf.TypicalLogitsWarper(0.5),
        hf.EpsilonLogitsWarper(0.004),
        hf.EtaLogitsWarper(0.9),
        hf.TopHLogitsWarper(0.5),
        hf.WatermarkLogitsProcessor(259, "cpu", bias=5.0),
    ],
    ids=lambda warper: type(warper).__name__,
)
def test_what_generate_would_put_behind_it_counts_in_front_of_it(warper: Any) -> None:
    processor = SamplerProcessor(SAMPLERS["multinomial"], seed=3)
    plain, wanted = (expected(SAMPLERS["multinomial"], 3, 12, 259, logits_processors=own) for own in ([], [warper]))
    assert generate(tiny_model(vocab_size=259), 12, [warper, processor]) == wanted != plain


def test_a_prompt_may_have_several_rows() -> None:
    sampler = gen.samplers.multinomial(samples=2)
    processor = SamplerProcessor(sampler, seed=3, vocab_size=259)
    assert generate(tiny_model(), 8, processor, repeat=2) == expected(sampler, 3, 8)


def test_a_seed_is_drawn_and_told() -> None:
    processor = SamplerProcessor(SAMPLERS["multinomial"], vocab_size=259)
    assert generate(tiny_model(), 8, processor) == expected(SAMPLERS["multinomial"], processor.seeds[0], 8)


@pytest.mark.parametrize("name", SAMPLERS)
def test_it_adds_no_host_sync(name: str) -> None:
    with virtual_gpus(2):
        model = tiny_model().to("cuda:1")
        for new_tokens in (3, 5):
            processor = SamplerProcessor(SAMPLERS[name], seed=3, vocab_size=259)
            (plain, held), _ = waits(partial(generate, model, new_tokens), None, processor)
            assert held == plain
        processor.reset()
        on_gpu = generate(model, 6, processor)
    assert on_gpu == expected(SAMPLERS[name], 3, 6)


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        (gen.samplers.beam_search(2), {}, r"takes a greedy or multinomial sampler .*generate\(num_beams=...\)"),
        (None, {}, "takes a greedy or multinomial sampler"),
        (gen.samplers.greedy(repetition_penalty=1.2), {}, "penalties, .* are transformers' own"),
        (gen.samplers.greedy(), {"seed": "7"}, "seed must be a whole number"),
        (gen.samplers.greedy(), {"seed": [1, -1]}, "seed must be a whole number"),
        (gen.samplers.greedy(), {"vocab_size": 0}, "vocab_size must be a whole number at least 1"),
    ],
)
def test_what_it_cannot_do_is_refused(sampler: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        SamplerProcessor(sampler, **options)


@pytest.mark.parametrize("kind", ["sampler", "constraint"])
def test_another_call_without_a_reset_is_refused(kind: str) -> None:
    processor = SamplerProcessor(SAMPLERS["greedy"], vocab_size=259) if kind == "sampler" else held()
    wanted = generate(tiny_model(), 6, processor)
    with pytest.raises(gen.ArgumentError, match=r"one call of generate: after input_ids \(3, \d+\) it takes \(3, "):
        generate(tiny_model(), 6, processor)
    processor.reset()
    assert generate(tiny_model(), 6, processor) == wanted


def test_rows_of_other_prompts_are_refused() -> None:
    with pytest.raises(gen.ArgumentError, match="has 3 rows; SamplerProcessor has 2 seeds for prompts of 1 row"):
        generate(tiny_model(), 2, SamplerProcessor(SAMPLERS["greedy"], seed=[1, 2]))


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True},
    "beams": {"num_beams": 3},
}
PATTERN = r"[0-9]{3}-[ab]c?"


def held(new_tokens: int = 12, output_type: Any = None) -> ConstraintProcessor:
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    constraint = gen.compile(model, gen.regex(PATTERN) if output_type is None else output_type)
    return ConstraintProcessor(constraint, max_new_tokens=new_tokens, eos_token_id=EOS)


def texts(made: list[list[int]]) -> list[str]:
    return [byte_tokenizer().decode([token for token in tokens if token not in (0, EOS)]) for tokens in made]


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_held_to_an_output_type(way: str) -> None:
    processor = held()
    for _ in range(2):
        made = texts(generate(tiny_model(), 12, processor, eos_token_id=EOS, **WAYS[way]))
        assert all(re.fullmatch(PATTERN, text) for text in made), made
        processor.reset()


def test_greedy_texts_are_those_of_gen() -> None:
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    expected = gen.generate(model, PROMPTS, gen.regex(PATTERN), sampler=gen.samplers.greedy(), eos_token_id=EOS)
    assert texts(generate(tiny_model(), 12, held(), eos_token_id=EOS)) == expected


def test_behind_its_end_a_text_does_not_go_on_where_generate_was_not_told_of_the_end() -> None:
    made = generate(tiny_model(), 12, held())
    for tokens in made:
        end = tokens.index(EOS)
        assert re.fullmatch(PATTERN, byte_tokenizer().decode(tokens[:end]))
        assert tokens[end:] == [EOS] * (12 - end)


def test_a_text_is_whole_by_the_last_token() -> None:
    processor = held(6, gen.regex("[a-z]+[.]"))
    made = texts(generate(tiny_model(), 6, processor, eos_token_id=EOS, do_sample=True))
    assert all(re.fullmatch("[a-z]+[.]", text) for text in made), made


@pytest.mark.parametrize("way", WAYS)
def test_a_constraint_adds_no_host_sync_for_a_token(way: str) -> None:
    pattern = gen.regex("[a-z]{30}")
    with virtual_gpus(2):
        model = tiny_model().to("cuda:1")
        (short, long), _ = waits(lambda most: generate(model, most, None, **WAYS[way]), 4, 8)
        (begin, end), _ = waits(lambda most: generate(model, most, held(40, pattern), **WAYS[way]), 4, 8)
        assert end - begin == long - short


def test_what_a_constraint_processor_cannot_do_is_refused() -> None:
    with pytest.raises(gen.ArgumentError, match=r"takes what gen.compile makes, got '\[a-z\]'"):
        ConstraintProcessor("[a-z]", max_new_tokens=4, eos_token_id=EOS)  # type: ignore[arg-type]
    with pytest.raises(gen.ArgumentError, match="a whole text takes 5 tokens, got max_new_tokens=3"):
        held(3)
    with pytest.raises(gen.ArgumentError, match="needs the host at each token"):
        held(output_type=gen.grammar('start: "(" start ")" | "x"'))
    constraint = gen.compile(gen.from_transformers(tiny_model(), byte_tokenizer()), gen.regex("a"))
    with pytest.raises(gen.ArgumentError, match="eos_token_id must name a token"):
        ConstraintProcessor(constraint, max_new_tokens=3, eos_token_id=[])
