"""The model that ships with the package: its size, its records, its chat form, and that its stories end."""

import json
from pathlib import Path
from typing import Any

import pytest

import gen
from gen.models.checkpoints import DEMO
from training.demo.corpus import HELD_OUT_NAMES, SEEN_NAMES


@pytest.mark.parametrize("end", ["", "\n"])
def test_nine_of_ten_records_parse_and_bear_the_name(whole_demo: Any, end: str) -> None:
    names = [*SEEN_NAMES, *HELD_OUT_NAMES]
    assert (len(SEEN_NAMES), len(HELD_OUT_NAMES)) == (30, 20)
    prompts = [f"Describe {name} as JSON.{end}" for name in names]
    right = 0
    for name, text in zip(names, gen.generate(whole_demo, prompts, sampler=gen.samplers.greedy()), strict=True):
        try:
            right += json.loads(text)["name"] == name
        except (ValueError, KeyError, TypeError):
            continue
    assert right >= 0.9 * len(names)


def test_stories_end_by_themselves(whole_demo: Any) -> None:
    sampler = gen.samplers.multinomial(temperature=0.7)
    stories: Any = gen.generate(
        whole_demo, ["Once upon a time"] * 8, sampler=sampler, seed=[*range(8)], max_new_tokens=400, details=True
    )
    assert sum(story.finish_reason == "eos" for story in stories) >= 6
    assert all(len(story.text.split()) > 40 for story in stories if story.finish_reason == "eos")


def test_a_chat_is_answered_in_its_form(whole_demo: Any) -> None:
    messages = [{"role": "user", "content": "Describe Zoe as JSON."}]
    answer = gen.generate(whole_demo, messages, sampler=gen.samplers.greedy())
    assert json.loads(answer)["name"] == "Zoe"
    assert answer == gen.generate(whole_demo, "Describe Zoe as JSON.", chat=True, sampler=gen.samplers.greedy())


def test_it_runs_in_float32_and_takes_at_most_three_megabytes(whole_demo: Any) -> None:
    assert str(whole_demo.placement.dtype) == "torch.float32"
    assert whole_demo.vocab_size == whole_demo.tokenizer.vocab_size == 2000
    shipped = ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"]
    assert sum((Path(DEMO) / name).stat().st_size for name in shipped) <= 3_000_000
