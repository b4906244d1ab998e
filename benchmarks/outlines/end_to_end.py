"""Generation with Outlines 0.0.46 and a tiny model of random weights; run by `benchmarks.outlines.suite`.

The samplers are those of `outlines.samplers`, which the suite replaces by gen's in its second run.
"""

import json
import re
from enum import Enum
from typing import Any

import pytest
import torch
from outlines import generate, models
from outlines.samplers import beam_search, greedy, multinomial
from pydantic import BaseModel
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

PROMPTS = ["Write a number", "And another one, please"]
SAMPLERS = {
    "greedy": lambda: greedy(),
    "multinomial": lambda: multinomial(),
    "multinomial of two": lambda: multinomial(2, temperature=0.7, top_k=40),
    "multinomial with top-p": lambda: multinomial(top_p=0.9),
    "beam search": lambda: beam_search(2),
}


class Colour(Enum):
    red = "red"
    green = "green"


class Car(BaseModel):
    colour: Colour
    electric: bool


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<eos>", *alphabet])}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", padding_side="left"
    )
    config = GPT2Config(vocab_size=len(vocabulary), n_positions=256, n_embd=32, n_layer=2, n_head=2)
    return models.Transformers(GPT2LMHeadModel(config).eval(), fast)


def flat(results: Any) -> list[Any]:
    return [one for result in results for one in flat(result)] if isinstance(results, list) else [results]


@pytest.mark.parametrize("name", SAMPLERS)
def test_text(model: Any, name: str) -> None:
    sampler = SAMPLERS[name]()
    texts = generate.text(model, sampler)(PROMPTS, max_tokens=12, rng=torch.Generator().manual_seed(0))
    assert len(texts) == 2
    assert len(flat(texts)) == 2 * sampler.samples
    assert all(isinstance(text, str) for text in flat(texts))


@pytest.mark.parametrize("name", SAMPLERS)
def test_regex(model: Any, name: str) -> None:
    generator = generate.regex(model, r"[0-9]{3}-[ab]", SAMPLERS[name]())
    for text in flat(generator(PROMPTS, rng=torch.Generator().manual_seed(0))):
        assert re.fullmatch(r"[0-9]{3}-[ab]", text)


@pytest.mark.parametrize("name", SAMPLERS)
def test_json(model: Any, name: str) -> None:
    generator = generate.json(model, json.dumps(Car.model_json_schema()), SAMPLERS[name](), whitespace_pattern="")
    for car in flat(generator(PROMPTS, rng=torch.Generator().manual_seed(0))):
        assert Car.model_validate(car)


def test_a_seeded_generator_repeats_and_goes_on(model: Any) -> None:
    generator, rng = generate.text(model, multinomial(temperature=0.9)), torch.Generator()
    first, second = (generator(PROMPTS, max_tokens=12, rng=rng.manual_seed(3)) for _ in range(2))
    assert first == second
    assert generator(PROMPTS, max_tokens=12, rng=rng) != first


def test_a_stream_gives_the_same_text(model: Any) -> None:
    generator = generate.text(model, greedy())
    assert "".join(generator.stream(PROMPTS[0], max_tokens=12)) == generator(PROMPTS[0], max_tokens=12)
