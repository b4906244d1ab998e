"""gen's logits processors inside of Outlines 1.3, with its transformers models, give gen's texts."""

import re
from importlib.metadata import version
from typing import Any

import pytest
import torch

import gen
from gen.integrations.transformers import ConstraintProcessor, SamplerProcessor
from tests.helpers import EOS, byte_tokenizer, tiny_model
from tests.helpers.waits import waits
from virtual_gpus import virtual_gpus

outlines = pytest.importorskip("outlines", reason="Outlines is not installed: pip install 'outlines>=1.3,<1.4'")
if not version("outlines").startswith("1."):
    pytest.skip(f"this is Outlines {version('outlines')}, without Generator(processor=)", allow_module_level=True)

PROMPTS = ["Ada ", "hello there", "x"]
PATTERN = r"[0-9]{3}-[ab]c?"
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": EOS}


def both(device: str = "cpu") -> tuple[Any, Any]:
    """The same model for Outlines and for gen."""
    model, tokenizer = tiny_model().to(device), byte_tokenizer()
    tokenizer.pad_token = "</s>"
    return outlines.from_transformers(model, tokenizer), gen.from_transformers(model, byte_tokenizer())


def constrained(model: Any, own: Any) -> Any:
    constraint = gen.compile(own, gen.regex(PATTERN))
    processor = ConstraintProcessor(constraint, max_new_tokens=12, eos_token_id=EOS)
    return outlines.Generator(model, processor=processor)


def test_greedy_texts_are_those_of_gen_call_after_call() -> None:
    model, own = both()
    generator, greedy = constrained(model, own), gen.samplers.greedy()
    expected = gen.generate(own, PROMPTS, gen.regex(PATTERN), sampler=greedy, **OPTIONS)
    for _ in range(2):  # Outlines calls reset() before each call
        assert [generator(prompt, **OPTIONS) for prompt in PROMPTS] == expected
        assert generator.batch(PROMPTS, **OPTIONS) == expected


@pytest.mark.parametrize(
    "way",
    [
        {"do_sample": True},
        {"do_sample": True, "num_return_sequences": 2},
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2},
    ],
    ids=str,
)
def test_sampled_texts_and_beams_are_held_to_the_output_type(way: dict[str, Any]) -> None:
    generator = constrained(*both())
    torch.manual_seed(0)
    for _ in range(2):
        for made in (generator(PROMPTS[0], **OPTIONS, **way), *generator.batch(PROMPTS, **OPTIONS, **way)):
            for text in made if isinstance(made, list) else [made]:
                assert re.fullmatch(PATTERN, text)


def test_a_seed_draws_the_texts_of_gen() -> None:
    model, own = both()
    sampler = gen.samplers.multinomial(temperature=0.9, top_k=40)
    expected = gen.generate(own, PROMPTS, sampler=sampler, seed=3, **OPTIONS)
    generator = outlines.Generator(model, processor=SamplerProcessor(sampler, seed=3, vocab_size=259))
    for _ in range(2):
        assert generator.batch(PROMPTS, **OPTIONS, do_sample=False) == expected


def test_on_the_second_gpu_it_adds_no_host_sync_for_a_token() -> None:
    with virtual_gpus(2):
        model, own = both("cuda:1")
        plain, held = outlines.Generator(model), constrained(model, own)
        (_, begin, end), _ = waits(lambda most: held.batch(PROMPTS, max_new_tokens=most), 2, 4, 12)
        (short, long), _ = waits(lambda most: plain.batch(PROMPTS, max_new_tokens=most), 4, 12)
        assert end - begin == long - short
