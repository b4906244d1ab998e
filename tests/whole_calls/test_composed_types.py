"""Texts of composed types: whole at every limit, and the same on any device and whatever runs beside them."""

from typing import Any

import pytest

import gen
from benchmarks.constraints.compositions import check_generating, compositions
from gen.samplers import beam_search, multinomial
from tests.constraints.vocabularies import spelled, wordy_tokenizer
from tests.helpers import tiny_model
from virtual_gpus import virtual_gpus


def new_model(device: str = "cpu") -> Any:
    size = len(spelled())
    return gen.from_transformers(
        tiny_model(vocab_size=size, bos_token_id=None, eos_token_id=size - 4).to(device), wordy_tokenizer()
    )


def test_random_compositions_are_whole_from_the_least_limit_up_and_the_same_everywhere() -> None:
    with virtual_gpus(2):
        model, other = new_model(), new_model("cuda:1")
        kinds = list(compositions(24, seed=3))
        made = [check_generating(model, other, kinds[:12], 1), check_generating(model, other, kinds[12:], 2)]
        assert sum(one.texts for one in made) > 150 and all(one.ended > 7 for one in made)


@pytest.mark.parametrize("sampler", [multinomial(samples=3), beam_search(3)], ids=["samples", "beams"])
def test_with_several_samples_and_beams(sampler: Any) -> None:
    kind = gen.sequence(gen.text("<"), gen.repeat(gen.sequence("<", gen.regex("[a-z]{1,3}"), ">"), "", 1, 3))
    arguments: Any = {"sampler": sampler, "seed": 1, "max_new_tokens": 12, "shorten": True, "details": True}
    made = gen.generate(new_model(), "x", kind, **arguments)
    for one in made if isinstance(made, list) else [made]:
        text, tags = one.value
        assert text + "".join("".join(tag) for tag in tags) == one.text
