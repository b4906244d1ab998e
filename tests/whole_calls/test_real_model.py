"""SmolLM2-135M-Instruct from GGUF: greedy texts equal transformers' own generate, alone, in a batch and streamed; the
example's ten values are whole.
"""

import runpy
from functools import cache
from pathlib import Path

import pytest
import torch

import gen
from gen.models.transformers.model import TransformersModel

MODELS = Path(__file__).parents[2] / "models"
FOLDER, FILE = MODELS / "SmolLM2-135M-Instruct", MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
NEW_TOKENS = 16
EOS = 2  # <|im_end|>
CHATS = [
    "Hi!",
    "What is the capital of France?",
    "Name three colours.",
    "What is 7 plus 5?",
    "Write one sentence about the sea.",
    "Translate to French: Good morning.",
    "Who wrote Hamlet?",
    "List the first five prime numbers, separated by commas.",
    "Explain in one sentence why the sky is blue.",
    "Give me a name for a cat.",
    "Is a whale a fish? Answer yes or no.",
    "Write a Python function that adds two numbers.",
    "What comes after Monday?",
    "Correct this: She go to school.",
    "Was ist das Gegenteil von heiß?",
    "日本の首都はどこですか。",
    "Write a haiku about rain.",
    "Reply with the word OK.",
    "How many legs do three dogs have?",
    "Summarize: Bees live in colonies. One queen lays all the eggs, and the workers do everything else.",
]

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="run `make real` first: it fetches the model"),
]


@cache
def model() -> TransformersModel:
    return gen.load(FOLDER, device="cpu", dtype="float32")


@cache
def expected(chat: str) -> list[int]:
    """The new tokens of transformers' generate, with its own tokenizer and template, without the eos."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": chat}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model().hf_model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
    new: list[int] = output[0, prompt["input_ids"].shape[1] :].tolist()
    return new[: new.index(EOS)] if EOS in new else new


def greedy(loaded: TransformersModel, prompts: list[str]) -> list[list[int]]:
    sampler = gen.samplers.greedy()
    found = gen.generate(loaded, prompts, chat=True, sampler=sampler, max_new_tokens=NEW_TOKENS, details=True)
    return [completion.token_ids for completion in found]


@pytest.mark.parametrize("chat", CHATS)
def test_a_chats_tokens_are_transformers_own(chat: str) -> None:
    assert greedy(model(), [chat]) == [expected(chat)]


def test_the_chats_as_one_batch_have_the_same_tokens() -> None:
    assert greedy(model(), CHATS) == [expected(chat) for chat in CHATS]


@pytest.mark.parametrize("chat", ["Hi!", "日本の首都はどこですか。"])
def test_a_stream_is_the_text_of_the_same_tokens(chat: str) -> None:
    pieces = list(gen.stream(model(), chat, chat=True, sampler=gen.samplers.greedy(), max_new_tokens=NEW_TOKENS))
    assert len(pieces) > 3
    assert "".join(pieces) == model().tokenizer.decode(expected(chat))


def test_an_answer_ends_with_the_models_own_end_of_turn() -> None:
    answer = gen.generate(model(), "Hi!", chat=True, sampler=gen.samplers.greedy(), details=True)
    assert answer.finish_reason == "eos"
    assert "<|im_end|>" not in answer.text


def test_the_file_gives_the_texts_of_the_folder() -> None:
    from_file = gen.load(FILE, device="cpu", dtype="float16").hf_model.state_dict()
    from_folder = gen.load(FOLDER, device="cpu").hf_model.state_dict()
    assert from_file.keys() == from_folder.keys()
    assert all(torch.equal(from_file[name], tensor) for name, tensor in from_folder.items())


def test_the_file_loads_in_bfloat16_and_answers() -> None:
    loaded = gen.load(FILE, device="cpu", dtype="bfloat16")
    assert loaded.placement.dtype == torch.bfloat16
    assert loaded.eos_token_ids == (EOS,)
    assert "Paris" in gen.generate(
        loaded, "What is the capital of France?", chat=True, sampler=gen.samplers.greedy(), max_new_tokens=NEW_TOKENS
    )


def test_the_ten_values_of_the_example_are_whole_and_mostly_right() -> None:
    example = runpy.run_path(str(FOLDER.parents[1] / "examples" / "structured.py"))
    prompts = [prompt for prompt, _ in example["PROMPTS"]]
    types = [output_type for _, output_type in example["PROMPTS"]]
    made = gen.generate(
        model(), prompts, types, chat=True, sampler=gen.samplers.greedy(), max_new_tokens=160, details=True
    )
    assert [one.engine for one in made] == ["device"] * 10
    values = [one.value for one in made]
    assert [type(value) for value in values[:7]] == types[:7]
    assert values[1].day.isoformat() == "2024-03-05"
    assert (values[2].quantity, values[2].currency, values[2].price) == (3, "EUR", 12.5)
    assert (values[3].city, values[3].postal_code) == ("Berlin", "10115")
    assert values[4].minutes == 20
    assert values[7] == "German"
    assert values[8] in ("spam", "not spam")
    assert values[9] is True
